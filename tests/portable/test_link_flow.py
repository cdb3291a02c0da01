# heap: 768K
"""The serial link's flow: windows and credit, and what is sent again when; see ``line.py``.

Every byte that a stream delivers is checked where it is read.
"""

from line import Bench, End, Line, Rng, bench_up, content, handmade, kinds, put, read, say

from headwater.link.frames import ACK, ASK, DATA
from headwater.link.link import IDLE, REPEAT, UP, Sender


def test_a_reader_that_stops_stops_the_writer_and_loses_nothing() -> None:
    bench = Bench(size=6000)
    bench.until(bench.up)
    bench.b.reading = False
    bench.run(1000)
    bench.step_ms = 50
    bench.run(20000)
    assert bench.up()
    bench.step_ms = 10
    # One window is with the reader, one with the writer.
    assert bench.a.sent - bench.b.got <= 2 * 4 * 240
    assert bench.a.channel.write(b"x", 0, 1) is None
    assert bench.a.channel.sender.credit == 0
    repeated = bench.a.channel.sender.repeated
    assert repeated == 0
    bench.b.reading = True
    bench.until(bench.delivered)
    assert bench.a.channel.streams == 1


def test_a_reader_that_goes_on_says_so_at_once() -> None:
    bench = bench_up()
    a, b = bench.a.channel, bench.b.channel
    while a.sender.credit:
        a.write(b"w" * 240, 0, 240)
        bench.turn()
    bench.run(300)
    a.sender.rto = 9000
    # Half of the window is room enough to tell of; less is not.
    assert read(b, 240) == b"w" * 240
    bench.run(100)
    assert a.sender.credit == 0
    assert read(b, 240) == b"w" * 240
    bench.until(lambda: a.sender.credit == 2, 50)


def test_a_lost_credit_is_asked_for() -> None:
    """The frame that says that there is room again is lost: the writer does not wait for ever."""
    bench = Bench(size=6000)
    bench.a.link.keep_ms = bench.b.link.keep_ms = 50000
    bench.a.link.dead_ms = bench.b.link.dead_ms = 100000
    bench.until(bench.up)
    bench.b.reading = False
    bench.until(lambda: bench.a.channel.sender.credit == 0 and bench.a.channel.write(b"", 0, 0) is None)
    bench.run(1500)
    bench.ba.cut = True
    bench.b.reading = True
    bench.run(100)
    bench.ba.cut = False
    bench.until(lambda: bench.a.channel.sender.credit > 0, 1500)
    bench.until(bench.delivered)


def test_small_writes_travel_together() -> None:
    bench = bench_up()
    channel = bench.a.channel
    for i in range(100):
        assert channel.write(bytes([i]), 0, 1) == 1
    assert channel.waiting() == 1
    bench.run(200)
    assert channel.sender.frames == 1
    assert read(bench.b.channel, 300) == bytes(range(100))
    # All that a window holds, one byte at a time: less than in one piece, as joining costs room, but not much less.
    taken = 0
    while channel.write(bytes([taken & 0xFF]), 0, 1):
        taken += 1
    assert channel.waiting() == 4
    assert 4 * 120 < taken <= 4 * 240, taken
    bench.run(1000)
    got = b""
    while len(got) < taken:
        got += read(bench.b.channel, 300) or b""
        bench.run(50)
    assert got == bytes([i & 0xFF for i in range(taken)])


def test_what_was_sent_once_does_not_change() -> None:
    """Bytes written while a frame is on its way go into the next one, however small the first is."""
    bench = bench_up()
    channel = bench.a.channel
    bench.ab.cut = True
    say(channel, b"one")
    bench.turn()
    say(channel, b"two")
    assert channel.waiting() == 2
    bench.ab.cut = False
    bench.run(1000)
    assert read(bench.b.channel) == b"onetwo"
    assert channel.sender.repeated >= 1


def test_the_line_may_take_one_byte_at_a_time() -> None:
    bench = Bench(size=500, rate=1, step_ms=1)
    bench.until(bench.delivered)
    assert bench.a.channel.sender.timeouts <= 2


def test_a_slot_on_the_line_is_not_overwritten() -> None:
    """A frame is repeated; half of it is on the line when the acknowledgement of its first copy comes."""
    bench = bench_up(window=1)
    a, b = bench.a, bench.b
    say(a.channel, b"first" * 20)
    bench.turn()
    bench.ba.cut = True
    bench.run(200)
    bench.ba.cut = False
    repeated = a.channel.sender.repeated
    while a.channel.sender.repeated == repeated:
        bench.now += 10
        a.link.poll(bench.now)
        a.link.out()
    a.link.sent(10)
    # What the other end says now acknowledges the first copy.
    put(b.link, handmade(ASK, b.channel._key_in), bench.now + b.clock)
    answer = b.out(1000)
    put(a.link, answer, bench.now)
    assert a.channel.waiting() == 0
    assert a.channel.write(b"second", 0, 6) is None
    rest = a.out(1000)
    assert rest[-1] == 0
    assert a.channel.write(b"second", 0, 6) == 6
    refused, damaged = b.channel.refused, b.link.damaged
    put(b.link, bytes(rest), bench.now + b.clock)
    assert b.link.damaged == damaged + 1  # its first ten bytes were not fed
    assert read(b.channel, 200) == b"first" * 20
    bench.run(500)
    assert b.channel.refused == refused
    assert read(b.channel, 200) == b"second"


def test_channels_share_the_line_and_nothing_else() -> None:
    rng = Rng(4)
    a = End(11, 3000, rng, channels=3)
    b = End(22, 3000, rng, channels=3)
    ab, ba = Line(rng, flip=20), Line(rng, flip=20)
    for end in (a, b):
        for channel in end.link.channels[1:]:
            channel.open()
    full = content(1, 0, 960)
    logs = [b"", b""]
    logged = [0, 0]
    now = 0
    while not (a.got == b.got == 3000 and len(logs[0]) == len(logs[1]) == 2000):
        now += 10
        a.work(now, ba.take(115))
        b.work(now, ab.take(115))
        for i, end in enumerate((a, b)):
            # Channel 1 is written and never read, channel 2 carries both.
            if end.link.channels[1].state == UP:
                end.link.channels[1].write(full, 0, 960)
            log = end.link.channels[2]
            if log.state == UP and not log.waiting() and logged[i] < 2000:
                piece = content(end.channel.session, logged[i], 500)
                logged[i] += log.write(piece, 0, 500) or 0
            logs[i] += read(log) or b""
        ab.put(a.out(max(0, 230 - ab.waiting)))
        ba.put(b.out(max(0, 230 - ba.waiting)))
        assert now < 120000, (a.got, b.got, len(logs[0]), len(logs[1]))
    assert logs == [content(b.channel.session, 0, 2000), content(a.channel.session, 0, 2000)]
    assert a.link.channels[1].sender.credit == b.link.channels[1].sender.credit == 0
    # The end of one stream is no other one's.
    a.link.channels[1].close()
    b.link.channels[1].close()
    for channel in (a.channel, a.link.channels[2]):
        assert channel.state == UP


def test_a_repeated_acknowledgement_changes_nothing() -> None:
    bench = bench_up()
    a, b = bench.a.channel, bench.b.channel
    say(a, b"1")
    bench.run(200)
    sender = a.sender
    before = (sender.una, sender.credit, a.waiting())
    key = a._key_in
    # Acknowledgements from the past, and of frames that were never sent.
    for ack in (0, 255, 3, 100, 128):
        put(bench.a.link, handmade(ACK, key, 0, ack, 0), bench.now)
    assert (sender.una, sender.credit, a.waiting()) == before
    say(a, b"2")
    bench.run(200)
    assert read(b) == b"12"


def test_data_beyond_the_room_is_refused_and_asked_for_again() -> None:
    """An end that does not keep to the credit loses nothing but time."""
    bench = bench_up()
    b = bench.b
    key = b.channel._key_in
    b.out(1000)
    for seq in range(4):
        put(b.link, handmade(DATA, key, seq, 0, 4, b"d" * 240), bench.now)
    refused = b.channel.refused
    put(b.link, handmade(DATA, key, 4, 0, 4, b"e" * 240), bench.now)
    assert b.channel.refused == refused + 1
    assert read(b.channel, 1000) == b"d" * 960
    put(b.link, handmade(DATA, key, 4, 0, 4, b"e" * 240), bench.now)
    assert read(b.channel, 1000) == b"e" * 240


def test_a_gap_is_mended_without_waiting_for_the_time_to_be_up() -> None:
    bench = bench_up()
    a, b = bench.a.channel, bench.b.channel
    assert a.write(b"1" * 240 + b"2" * 240 + b"3" * 240, 0, 720) == 720
    a.sender.rto = 5000
    lost = bench.a.out(300)
    assert kinds(lost)[0] == DATA
    bench.until(lambda: not a.waiting(), 300)
    assert a.sender.timeouts == 0
    got = read(b, 1000)
    assert got == b"1" * 240 + b"2" * 240 + b"3" * 240


def test_one_frame_tries_the_line_when_the_time_was_up() -> None:
    bench = bench_up()
    a = bench.a.channel
    assert a.write(b"5" * 960, 0, 960) == 960
    bench.run(30)
    bench.ab.cut = True
    bench.until(lambda: a.sender.timeouts == 2, 2000)
    bench.turn()
    repeated = a.sender.repeated
    bench.until(lambda: a.sender.timeouts == 3, 2000)
    bench.run(100)
    assert a.sender.repeated == repeated + 1
    bench.ab.cut = False
    bench.until(lambda: not a.waiting(), 2000)
    assert a.sender._sent == 0
    assert read(bench.b.channel, 1000) == b"5" * 960
    bench.run(50)
    assert a.write(b"6" * 960, 0, 960) == 960
    bench.until(lambda: a.sender.flight > 2, 100)


def test_the_time_out_follows_the_round_trip() -> None:
    fast = Bench(size=3000, rate=1000, step_ms=5)
    fast.until(fast.delivered)
    assert fast.a.channel.sender.rto <= 80
    # 9,600 baud: a window takes longer than the first time-out.
    slow = Bench(size=8000, rate=10, step_ms=10)
    slow.until(lambda: slow.a.got >= 4000 and slow.b.got >= 4000)
    sender = slow.a.channel.sender
    assert sender.rto > 500
    repeated = sender.repeated
    assert repeated < 12
    slow.until(slow.delivered)
    assert sender.repeated == repeated


def test_a_repeated_frame_is_not_timed() -> None:
    """Which of its copies is acknowledged is unknown (Karn's rule)."""
    for again in ("time is up", "gap"):
        sender = Sender(1, 10)
        sender.clear(500)
        sender.credit = 1
        assert sender.write(b"x", 0, 1, 0) == 1
        assert sender.next(0) == 0
        if again == "gap":
            sender.missed()
        else:
            assert sender.expired(500) == REPEAT
        assert sender.next(500) == 0
        sender.acknowledge(1, 1, 505)
        # Neither the 505 ms since the first copy nor the 5 ms since the second.
        assert sender.rto in (500, 750), (again, sender.rto)


def test_a_writer_that_is_blocked_asks_seldom() -> None:
    bench = bench_up()
    a = bench.a.channel
    while a.sender.credit:
        a.write(b"b" * 240, 0, 240)
        bench.turn()
    a.write(b"b" * 240, 0, 240)
    frames = bench.a.link.frames_out
    bench.step_ms = 50
    bench.run(10000)
    assert 8 < bench.a.link.frames_out - frames < 20


def test_half_a_window_is_acknowledged_at_once() -> None:
    bench = bench_up()
    bench.b.link.ack_ms = 2000
    a = bench.a.channel
    assert a.write(b"6" * 480, 0, 480) == 480
    bench.until(lambda: not a.waiting(), 100)
    a.sender.rto = 9000
    say(a, b"one frame waits for data to travel with")
    bench.run(200)
    assert a.waiting() == 1
    say(bench.b.channel, b"data")
    bench.until(lambda: not a.waiting(), 50)


def test_the_end_is_acknowledged_at_once() -> None:
    bench = bench_up()
    bench.b.link.ack_ms = 2000
    bench.a.channel.close()
    bench.until(lambda: bench.a.channel.state == IDLE, 60)


def test_what_comes_twice_is_acknowledged_twice() -> None:
    bench = bench_up()
    b = bench.b
    b.out(1000)
    key = b.channel._key_in
    for _ in range(2):
        put(b.link, handmade(DATA, key, 0, 0, 4, b"w"), bench.now + b.clock)
    (answer,) = kinds(b.out(1000))
    assert answer == ACK
    assert read(b.channel) == b"w"


def test_a_gap_is_answered_once_a_wave() -> None:
    bench = bench_up()
    b = bench.b
    now = bench.now + b.clock
    key = b.channel._key_in

    def naks(*seqs: int) -> int:
        before = b.link.frames_out
        for seq in seqs:
            put(b.link, handmade(DATA, key, seq, 0, 4, b"w"), now)
            b.out(1000)
        return b.link.frames_out - before

    assert naks(1) == 1
    assert naks(2, 3) == 0
    # The other end has gone back, and the first was lost again.
    assert naks(1, 2, 3) == 1
    assert naks(2, 3) == 1
    b.link.poll(now)
    put(b.link, handmade(DATA, key, 0, 0, 4, b"w"), now)
    assert read(b.channel) == b"w"
    assert naks(2) >= 1
