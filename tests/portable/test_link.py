# heap: 512K
"""The serial link between two ends, on a line that is good or bad in one way at a time; see ``line.py``.

Every byte that a stream delivers is checked where it is read.
"""

from line import Bench, End, Line, Rng, content, frame_on_line, kinds

from headwater.link.crc16 import INIT, crc16
from headwater.link.frame import ACK, ASK, DATA, FIN, HELLO, RESET, TRAILER, fill_trailer
from headwater.link.link import Link
from headwater.link.transitions import (
    CLOSING,
    ENDED,
    HALF,
    IDLE,
    OPENING,
    UP,
    WHY_CLOSED,
    WHY_DEAD,
    WHY_LINE,
    WHY_NOT,
    WHY_RESET,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.link.channel import Channel


def _raises(error: "type[Exception]", call: "Callable[[], object]") -> None:
    try:
        call()
    except error:
        return
    raise AssertionError("no error")


def _frame(kind: int, key: int, seq: int = 0, ack: int = 0, credit: int = 4, payload: bytes = b"") -> bytes:
    """A frame on the line, made by hand."""
    trailer = bytearray(TRAILER)
    fill_trailer(trailer, kind << 3, seq, ack, credit, key, len(payload))
    crc = crc16(trailer, 0, 7, crc16(payload, 0, len(payload), INIT))
    return frame_on_line(payload + bytes(trailer[:7]) + bytes([crc >> 8, crc & 0xFF]))


def _put(link: Link, data: bytes, now: int) -> None:
    link.feed(data, 0, len(data), now)


def _say(channel: "Channel", data: bytes) -> None:
    assert channel.write(data, 0, len(data)) == len(data)


def _read(channel: "Channel", n: int = 100) -> "bytes | None":
    buf = bytearray(n)
    k = channel.readinto(buf, n)
    return None if k is None else bytes(buf[:k])


def _bench_up(**options: int) -> Bench:
    """A good line and two ends that are connected, and do nothing by themselves."""
    bench = Bench(1, 0, 115, 10, None, **options)
    bench.until(bench.up, 2000)
    bench.a.reading = bench.b.reading = False
    bench.run(100)
    return bench


# ---- opening ---------------------------------------------------------------------------------------------------------


def test_everything_comes_both_ways() -> None:
    bench = Bench(size=5000)
    bench.until(bench.delivered)
    for end in (bench.a, bench.b):
        link, channel = end.link, end.channel
        assert channel.sender.repeated == channel.sender.timeouts == channel.refused == 0
        assert link.damaged == link.foreign == channel.stale == channel.echoes == 0
        assert channel.streams == 1
        assert channel.sender.frames == (bench.b if end is bench.a else bench.a).channel.received
    assert bench.a.link.bytes_out == bench.b.link.bytes_in
    assert bench.a.link.frames_out == bench.b.link.frames_in


def test_a_line_is_used_to_nine_tenths() -> None:
    bench = Bench(size=12000, rate=58, step_ms=5, window=8)
    bench.a.most = bench.b.most = 1000
    bench.until(bench.up)
    taken = bench.until(bench.delivered)
    # Both ways at once, acknowledgements included; 11,600 bytes a second is 115,200 baud.
    passed = 58 * taken // 5
    assert 9 * passed <= 10 * 12000, (passed, taken)


def test_either_end_may_come_first() -> None:
    for late in (0, 1):
        bench = Bench(size=300)
        first, second = (bench.a, bench.b) if late else (bench.b, bench.a)
        second.channel.close()
        second.over = True
        assert second.channel.state == IDLE
        bench.run(3000)
        assert first.channel.state == OPENING
        second.open()
        taken = bench.until(bench.delivered)
        assert taken < 700, taken


def test_nothing_is_written_before_the_stream_is_up() -> None:
    bench = Bench(size=0)
    channel = bench.a.channel
    assert channel.state == OPENING
    assert channel.write(b"early", 0, 5) is None
    assert _read(channel) is None
    bench.until(lambda: channel.state == HALF or channel.state == UP)
    bench.until(bench.up)
    assert channel.write(b"now", 0, 3) == 3


def test_the_answer_that_completes_the_opening_is_lost() -> None:
    bench = Bench(size=0)
    bench.until(lambda: bench.b.channel.state == HALF)
    bench.ab.cut = True
    bench.until(lambda: bench.a.channel.state == UP)
    bench.ab.cut = False
    assert bench.b.channel.state == HALF
    # It repeats its HELLO, and is answered.
    bench.until(bench.up, 400)


def test_the_smaller_window_and_payload_hold() -> None:
    bench = Bench(size=0)
    bench.a = End(1, 3000, bench.rng, window=8, payload=200)
    bench.b = End(2, 3000, bench.rng, window=2, payload=50)
    most = 0
    bench.until(bench.up)
    while not bench.delivered():
        bench.turn()
        most = max(most, bench.a.channel.sender.flight)
        assert bench.a.channel.sender.limit == bench.b.channel.sender.limit == 50
    assert most == 2
    assert bench.a.channel.sender.frames >= 3000 // 50


def test_a_window_of_one() -> None:
    for seed in range(3):
        bench = Bench(seed, size=1500, window=1, faults={"lose": 100})
        bench.until(bench.delivered, 120000)


def test_a_payload_of_one() -> None:
    bench = Bench(size=100, payload=1, faults={"lose": 50})
    bench.until(bench.delivered)
    assert bench.a.channel.sender.frames == 100


def test_the_largest_window() -> None:
    bench = Bench(size=8000, window=64, faults={"flip": 20})
    bench.until(bench.delivered, 120000)


def test_sequence_numbers_go_round() -> None:
    bench = Bench(size=3000, payload=5, window=7, faults={"lose": 30})
    bench.until(bench.delivered, 120000)
    assert bench.a.channel.sender.frames >= 600


def test_the_clock_goes_round() -> None:
    bench = Bench(size=3000, faults={"lose": 50})
    assert bench.b.clock + 60000 > 1 << 30
    bench.run(3000)
    bench.until(bench.delivered)
    bench.run(3000)
    assert bench.up()


def test_an_echo_is_not_the_other_end() -> None:
    """A line that gives back what is sent: nothing opens by itself."""
    rng = Rng(1)
    end = End(5, 100, rng)
    back = b""
    for now in range(0, 20000, 50):
        end.work(now, back)
        back = end.out(1000)
        assert end.channel.state in (OPENING, HALF)
    assert end.channel.streams == 0
    assert end.channel.echoes > 50


def test_a_line_that_echoes() -> None:
    """Both ends hear the other one and themselves, and are connected all the same."""
    bench = Bench(size=1500)
    session = bench.a.channel.session
    to_a = to_b = b""
    while not (bench.up() and bench.a.got == bench.b.got == 1500):
        bench.now += 10
        bench.a.work(bench.now, to_a)
        bench.b.work(bench.now, to_b)
        from_a, from_b = bench.a.out(150), bench.b.out(150)
        # One after the other: at once they would destroy each other.
        to_a = to_b = from_a + from_b
        assert bench.now < 60000, bench.report()
    assert bench.a.channel.echoes > 5
    echo = _frame(HELLO, bench.a.channel.session, payload=b"\0\0\xf0")
    for _ in range(10):
        _put(bench.a.link, echo, bench.now + 77)
    assert bench.a.channel.session == session
    assert bench.a.channel.streams == bench.b.channel.streams == 1


def test_both_ends_with_the_same_session_number() -> None:
    bench = Bench(size=500)
    bench.a = End(700, 500, bench.rng)
    bench.b = End(700, 500, bench.rng, 0x12345)
    bench.until(bench.delivered, 20000)
    assert bench.a.channel.session != bench.b.channel.session


def test_arguments_are_checked() -> None:
    for session, channels, window, payload in (
        (0, 1, 4, 240),
        (65536, 1, 4, 240),
        (-1, 1, 4, 240),
        (1, 0, 4, 240),
        (1, 9, 4, 240),
        (1, 1, 0, 240),
        (1, 1, 65, 240),
        (1, 1, 4, 0),
        (1, 1, 4, 241),
    ):
        _raises(ValueError, lambda: Link(session, channels, window, payload))  # noqa: B023 - called at once
    channel = _bench_up().a.channel
    for off, n in ((-1, 2), (0, 4), (3, 1), (0, -1)):
        _raises(ValueError, lambda: channel.write(b"abc", off, n))  # noqa: B023 - called at once
    assert channel.write(b"abc", 3, 0) is None
    assert channel.write(b"abc", 1, 2) == 2


# ---- flow ------------------------------------------------------------------------------------------------------------


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
    bench = _bench_up()
    a, b = bench.a.channel, bench.b.channel
    while a.sender.credit:
        a.write(b"w" * 240, 0, 240)
        bench.turn()
    bench.run(300)
    a.sender.rto = 9000
    # Half of the window is room enough to tell of; less is not.
    assert _read(b, 240) == b"w" * 240
    bench.run(100)
    assert a.sender.credit == 0
    assert _read(b, 240) == b"w" * 240
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
    bench = _bench_up()
    channel = bench.a.channel
    for i in range(100):
        assert channel.write(bytes([i]), 0, 1) == 1
    assert channel.waiting() == 1
    bench.run(200)
    assert channel.sender.frames == 1
    assert _read(bench.b.channel, 300) == bytes(range(100))
    # All that a window holds, one byte at a time: less than in one piece, as joining costs room, but not much less.
    taken = 0
    while channel.write(bytes([taken & 0xFF]), 0, 1):
        taken += 1
    assert channel.waiting() == 4
    assert 4 * 120 < taken <= 4 * 240, taken
    bench.run(1000)
    got = b""
    while len(got) < taken:
        got += _read(bench.b.channel, 300) or b""
        bench.run(50)
    assert got == bytes([i & 0xFF for i in range(taken)])


def test_what_was_sent_once_does_not_change() -> None:
    """Bytes written while a frame is on its way go into the next one, however small the first is."""
    bench = _bench_up()
    channel = bench.a.channel
    bench.ab.cut = True
    _say(channel, b"one")
    bench.turn()
    _say(channel, b"two")
    assert channel.waiting() == 2
    bench.ab.cut = False
    bench.run(1000)
    assert _read(bench.b.channel) == b"onetwo"
    assert channel.sender.repeated >= 1


def test_the_line_may_take_one_byte_at_a_time() -> None:
    bench = Bench(size=500, rate=1, step_ms=1)
    bench.until(bench.delivered)
    assert bench.a.channel.sender.timeouts <= 2


def test_a_slot_on_the_line_is_not_overwritten() -> None:
    """A frame is repeated; half of it is on the line when the acknowledgement of its first copy comes."""
    bench = _bench_up(window=1)
    a, b = bench.a, bench.b
    _say(a.channel, b"first" * 20)
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
    _put(b.link, _frame(ASK, b.channel._key_in), bench.now + b.clock)
    answer = b.out(1000)
    _put(a.link, answer, bench.now)
    assert a.channel.waiting() == 0
    assert a.channel.write(b"second", 0, 6) is None
    rest = a.out(1000)
    assert rest[-1] == 0
    assert a.channel.write(b"second", 0, 6) == 6
    refused, damaged = b.channel.refused, b.link.damaged
    _put(b.link, bytes(rest), bench.now + b.clock)
    assert b.link.damaged == damaged + 1  # its first ten bytes were not fed
    assert _read(b.channel, 200) == b"first" * 20
    bench.run(500)
    assert b.channel.refused == refused
    assert _read(b.channel, 200) == b"second"


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
            logs[i] += _read(log) or b""
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


# ---- the end of a stream ---------------------------------------------------------------------------------------------


def test_close_ends_the_stream_behind_the_last_byte() -> None:
    bench = _bench_up()
    a, b = bench.a.channel, bench.b.channel
    _say(a, b"x" * 700)
    a.close()
    assert a.state == CLOSING
    _raises(OSError, lambda: a.write(b"more", 0, 4))
    _raises(OSError, lambda: a.readinto(bytearray(4), 4))
    bench.until(lambda: a.state == IDLE, 1000)
    assert b.state == ENDED
    _raises(OSError, lambda: b.write(b"answer", 0, 6))
    assert _read(b, 1000) == b"x" * 700
    for _ in range(3):
        assert _read(b) == b""
    assert b.why == WHY_CLOSED
    assert a.why == WHY_NOT
    b.close()
    _raises(OSError, lambda: b.readinto(bytearray(4), 4))
    assert b.state == IDLE


def test_close_behind_a_full_window_on_a_bad_line() -> None:
    for seed in range(5):
        bench = Bench(seed, size=0, faults={"lose": 200})
        bench.until(bench.up)
        bench.a.reading = bench.b.reading = False
        a, b = bench.a.channel, bench.b.channel
        taken = a.write(b"y" * 2000, 0, 2000)
        assert taken == 4 * 240
        a.close()
        assert a.waiting() == 5
        got = b""
        while a.state == CLOSING or b.state == UP:
            bench.turn()
            if b.state == UP:
                got += _read(b, 50) or b""
        while True:
            piece = _read(b, 50)
            if piece == b"":
                break
            got += piece or b""
        assert got == b"y" * taken


def test_close_with_a_window_of_one() -> None:
    """The end of the stream waits for a place, and the acknowledgement that makes it is not that of the end."""
    bench = _bench_up(window=1)
    a, b = bench.a.channel, bench.b.channel
    _say(a, b"z" * 240)
    bench.turn()
    a.close()
    assert a.waiting() == 2
    assert b.state == UP
    bench.until(lambda: a.state == IDLE, 2000)
    assert b.why == WHY_CLOSED
    assert _read(b, 300) == b"z" * 240
    assert _read(b, 300) == b""


def test_both_ends_close_at_once() -> None:
    bench = _bench_up()
    _say(bench.a.channel, b"bye")
    bench.a.channel.close()
    bench.b.channel.close()
    bench.until(lambda: bench.a.channel.state == bench.b.channel.state == IDLE, 2000)


def test_close_before_the_other_end_is_there() -> None:
    link = Link(9)
    channel = link.channels[0]
    channel.close()
    assert channel.state == IDLE
    channel.open()
    channel.close()
    channel.close()
    assert channel.state == IDLE
    _raises(OSError, lambda: channel.write(b"x", 0, 1))
    assert link.out() == 0


def test_what_comes_while_closing_is_dropped_and_acknowledged() -> None:
    bench = _bench_up()
    a, b = bench.a.channel, bench.b.channel
    _say(b, b"unread" * 100)
    bench.run(300)
    a.close()
    _say(b, b"too late")
    bench.until(lambda: a.state == IDLE, 1000)
    a.open()
    b.open()
    bench.until(bench.up, 2000)
    assert _read(a) is None


def test_a_stream_opened_behind_the_one_that_closes() -> None:
    bench = _bench_up()
    a, b = bench.a.channel, bench.b.channel
    first = a.session
    _say(a, b"last words")
    a.close()
    a.open()
    assert a.state == CLOSING
    # The transport is there, and its stream is not up yet.
    assert a.write(b"early", 0, 5) is None
    assert _read(a) is None
    bench.until(lambda: b.state == ENDED, 1000)
    assert _read(b) == b"last words"
    assert _read(b) == b""
    bench.until(lambda: a.state == OPENING, 1000)
    assert a.session == first + 1
    b.open()
    bench.until(bench.up, 1000)
    _say(a, b"first words")
    bench.run(200)
    assert _read(b) == b"first words"


def test_open_on_a_stream_that_is_up_begins_the_next() -> None:
    bench = _bench_up()
    a, b = bench.a.channel, bench.b.channel
    a.open()
    bench.until(lambda: b.state == ENDED, 1000)
    b.open()
    bench.until(bench.up, 2000)
    assert a.streams == b.streams == 2


def test_an_end_that_does_not_read_holds_up_a_close_for_so_long_only() -> None:
    bench = _bench_up(dead_ms=5000)
    a, b = bench.a.channel, bench.b.channel
    assert a.write(b"z" * 960, 0, 960) == 960
    bench.run(500)
    assert a.write(b"z" * 960, 0, 960) == 960
    a.close()
    bench.run(4000)
    assert a.state == CLOSING
    bench.until(lambda: a.state == IDLE, 2000)
    # The other end is told that this stream is no more, and has the part that it took.
    bench.until(lambda: b.state == ENDED, 5000)
    got = b""
    while True:
        piece = _read(b)
        if not piece:
            break
        got += piece
    assert got == b"z" * 960
    assert b.why == WHY_RESET


def test_session_numbers_go_round_and_are_never_0() -> None:
    bench = _bench_up()
    bench.a.start(65534)
    seen = []
    for _ in range(4):
        bench.b.channel.close()
        bench.b.channel.open()
        bench.until(bench.up, 3000)
        seen.append(bench.a.channel.session)
        bench.a.channel.close()
        bench.a.channel.open()
    assert seen == [65534, 65535, 1, 2]


# ---- resets and dead lines -------------------------------------------------------------------------------------------


def test_a_reset_is_seen_once_and_the_next_stream_is_clean() -> None:
    for who in (0, 1):
        bench = Bench(size=4000)
        end, other = (bench.a, bench.b) if who else (bench.b, bench.a)
        while other.got <= 1000:
            bench.turn()
        old = end.channel.session
        end.start(31000)
        while not other.over:
            bench.turn()
        assert [row[0] for row in other.ended] == [old]
        assert other.ended[0][2] == WHY_RESET
        bench.run(1000)
        assert len(other.ended) == 1
        other.open()
        bench.until(bench.delivered)
        assert len(other.ended) == 1
        assert end.ended == []


def test_what_was_not_read_does_not_come_out_in_the_next_stream() -> None:
    bench = _bench_up()
    a, b = bench.a.channel, bench.b.channel
    _say(a, b"unread")
    bench.run(100)
    a.close()
    bench.until(lambda: b.state == ENDED, 1000)
    b.open()
    a.open()
    bench.until(bench.up, 1000)
    assert _read(b) is None
    _say(a, b"new")
    bench.run(100)
    assert _read(b) == b"new"


def test_what_had_come_before_a_reset_can_be_read() -> None:
    bench = _bench_up()
    _say(bench.a.channel, b"before the reset")
    bench.run(200)
    bench.a.start(500)
    bench.until(lambda: bench.b.channel.state == ENDED, 1000)
    assert _read(bench.b.channel) == b"before the reset"
    assert _read(bench.b.channel) == b""


def test_a_reset_to_the_same_session_number() -> None:
    """A board that cannot do better: as long as the old stream is known, it is told apart."""
    bench = Bench(size=4000)
    bench.until(lambda: bench.b.got > 1000)
    bench.a.start(bench.a.channel.session)
    bench.until(lambda: bench.b.over, 1000)
    bench.b.open()
    bench.until(bench.delivered)
    assert len(bench.b.ended) == 1


def test_a_reset_to_the_same_session_number_on_a_quiet_line() -> None:
    bench = _bench_up()
    bench.a.start(bench.a.channel.session)
    # It is asked at once, not when the line has been quiet for a while.
    bench.until(lambda: bench.b.channel.state == ENDED, 100)
    assert bench.b.channel.why == WHY_RESET


def test_frames_of_a_former_stream_are_refused() -> None:
    bench = _bench_up()
    a, b = bench.a.channel, bench.b.channel
    old = a._key_out
    bench.a.start(600)
    bench.until(lambda: b.state == ENDED, 1000)
    b.open()
    bench.until(bench.up, 1000)
    a = bench.a.channel
    stale = b.stale
    for seq in range(6):
        _put(bench.b.link, _frame(DATA, old, seq, 0, 4, b"from the past"), bench.now + bench.b.clock)
    _put(bench.b.link, _frame(FIN, old), bench.now + bench.b.clock)
    assert b.stale == stale + 7
    assert _read(b) is None
    # It is answered with RESET, which means nothing to the stream there is.
    bench.run(500)
    assert a.state == b.state == UP
    _say(a, b"of today")
    bench.run(200)
    assert _read(b) == b"of today"


def test_a_reset_frame_needs_the_right_key() -> None:
    bench = _bench_up()
    a = bench.a.channel
    for key in (0, a._key_in, a._key_out ^ 1, a.session, a.peer):
        _put(bench.a.link, _frame(RESET, key), bench.now)
        assert a.state == UP
    _put(bench.a.link, _frame(RESET, a._key_out), bench.now)
    assert a.state == ENDED
    assert a.why == WHY_RESET


def test_a_program_that_has_no_stream_answers_so() -> None:
    """The other end closed, and its FIN and all that followed were lost."""
    bench = _bench_up()
    a, b = bench.a.channel, bench.b.channel
    bench.ab.cut = bench.ba.cut = True
    b.close()
    bench.step_ms = 50
    bench.run(11000)
    assert b.state == IDLE
    assert a.state == ENDED
    assert a.why == WHY_DEAD
    a.open()
    bench.ab.cut = bench.ba.cut = False
    bench.run(1000)
    assert a.state == OPENING
    b.open()
    bench.until(bench.up, 1000)


def test_one_deaf_direction_ends_the_stream_at_both_ends() -> None:
    bench = _bench_up()
    bench.ab.cut = True
    bench.step_ms = 50
    bench.until(lambda: bench.b.channel.state == ENDED, 10500)
    assert bench.b.channel.why == WHY_DEAD
    # The other one now hears nothing either; when it asks, it is told.
    bench.ab.cut = False
    bench.until(lambda: bench.a.channel.state == ENDED, 3000)
    assert bench.a.channel.why == WHY_RESET


def test_a_quiet_stream_stays_up() -> None:
    bench = _bench_up()
    frames = bench.a.link.frames_out
    bench.step_ms = 50
    bench.run(60000)
    assert bench.up()
    assert bench.a.channel.streams == 1
    # Kept alive by a question every two seconds from either side, and its answer, at most.
    assert bench.a.link.frames_out - frames <= 2 * 60 // 2 + 2


def test_a_dead_line_is_reported_in_time_and_what_had_come_can_be_read() -> None:
    bench = _bench_up()
    _say(bench.a.channel, b"the last")
    bench.run(100)
    bench.ab.cut = bench.ba.cut = True
    _say(bench.b.channel, b"lost")
    taken = bench.until(lambda: bench.b.channel.state == ENDED, 11000)
    assert 9000 <= taken <= 10100, taken
    assert _read(bench.b.channel) == b"the last"
    assert _read(bench.b.channel) == b""
    assert bench.b.channel.why == WHY_DEAD


def test_a_cut_shorter_than_that_costs_time_only() -> None:
    for seed in range(3):
        bench = Bench(seed, size=6000)
        while bench.b.got <= 1000:
            bench.turn()
        bench.ab.cut = bench.ba.cut = True
        bench.step_ms = 50
        bench.run(9000)
        assert not bench.delivered()
        bench.ab.cut = bench.ba.cut = False
        bench.step_ms = 10
        bench.until(bench.delivered, 8000)
        assert bench.a.channel.streams == 1


def test_a_program_that_slept_hears_what_came_meanwhile() -> None:
    """Longer than the time after which a line is dead: what waits in the port's buffer speaks for the other end."""
    bench = _bench_up()
    waiting = b""
    for _ in range(60):
        bench.now += 200
        bench.b.work(bench.now, b"")
        waiting = (waiting + bench.b.out(1000))[-500:]
        if bench.now % 3000 == 0:
            _put(bench.b.link, _frame(ACK, bench.b.channel._key_in), bench.now + bench.b.clock)
    bench.a.work(bench.now, waiting)
    assert bench.a.channel.state == UP


def test_a_lost_line_ends_every_stream_and_forgets_half_a_frame() -> None:
    bench = _bench_up(channels=2)
    a = bench.a
    a.link.channels[1].open()
    _say(a.channel, b"half of this goes out")
    assert a.link.out() > 10
    a.link.sent(10)
    _put(a.link, _frame(DATA, a.channel._key_in, 0, 0, 4, b"half")[:8], bench.now)
    a.link.lost()
    assert a.channel.state == ENDED
    assert a.channel.why == WHY_LINE
    assert a.link.channels[1].state == OPENING
    a.channel.open()
    bench.b.channel.close()
    bench.b.channel.open()
    bench.until(bench.up, 3000)
    assert a.link.damaged == 0


def test_due_tells_when_there_is_something_to_do() -> None:
    link = Link(5)
    channel = link.channels[0]
    link.poll(0)
    assert link.due() == link.keep_ms
    channel.open()
    assert link.due() == 0
    assert link.out() > 0
    link.sent(link.out())
    assert link.out() == 0
    assert link.due() == link.hello_ms
    link.poll(100)
    assert link.due() == link.hello_ms - 100
    link.poll(link.hello_ms)
    assert link.due() == 0
    bench = _bench_up()
    link, channel = bench.a.link, bench.a.channel
    assert 0 < link.due() <= link.keep_ms
    _say(channel, b"x")
    assert bench.a.out(100)
    assert link.due() == channel.sender.rto
    link.poll(bench.now + channel.sender.rto)
    assert link.out() > 0


# ---- counting --------------------------------------------------------------------------------------------------------


def test_a_repeated_acknowledgement_changes_nothing() -> None:
    bench = _bench_up()
    a, b = bench.a.channel, bench.b.channel
    _say(a, b"1")
    bench.run(200)
    sender = a.sender
    before = (sender.una, sender.credit, a.waiting())
    key = a._key_in
    # Acknowledgements from the past, and of frames that were never sent.
    for ack in (0, 255, 3, 100, 128):
        _put(bench.a.link, _frame(ACK, key, 0, ack, 0), bench.now)
    assert (sender.una, sender.credit, a.waiting()) == before
    _say(a, b"2")
    bench.run(200)
    assert _read(b) == b"12"


def test_data_beyond_the_room_is_refused_and_asked_for_again() -> None:
    """An end that does not keep to the credit loses nothing but time."""
    bench = _bench_up()
    b = bench.b
    key = b.channel._key_in
    b.out(1000)
    for seq in range(4):
        _put(b.link, _frame(DATA, key, seq, 0, 4, b"d" * 240), bench.now)
    refused = b.channel.refused
    _put(b.link, _frame(DATA, key, 4, 0, 4, b"e" * 240), bench.now)
    assert b.channel.refused == refused + 1
    assert _read(b.channel, 1000) == b"d" * 960
    _put(b.link, _frame(DATA, key, 4, 0, 4, b"e" * 240), bench.now)
    assert _read(b.channel, 1000) == b"e" * 240


def test_a_gap_is_mended_without_waiting_for_the_time_to_be_up() -> None:
    bench = _bench_up()
    a, b = bench.a.channel, bench.b.channel
    assert a.write(b"1" * 240 + b"2" * 240 + b"3" * 240, 0, 720) == 720
    a.sender.rto = 5000
    lost = bench.a.out(300)
    assert kinds(lost)[0] == DATA
    bench.until(lambda: not a.waiting(), 300)
    assert a.sender.timeouts == 0
    got = _read(b, 1000)
    assert got == b"1" * 240 + b"2" * 240 + b"3" * 240


def test_one_frame_tries_the_line_when_the_time_was_up() -> None:
    bench = _bench_up()
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
    assert _read(bench.b.channel, 1000) == b"5" * 960
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


def test_a_writer_that_is_blocked_asks_seldom() -> None:
    bench = _bench_up()
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
    bench = _bench_up()
    bench.b.link.ack_ms = 2000
    a = bench.a.channel
    assert a.write(b"6" * 480, 0, 480) == 480
    bench.until(lambda: not a.waiting(), 100)
    a.sender.rto = 9000
    _say(a, b"one frame waits for data to travel with")
    bench.run(200)
    assert a.waiting() == 1
    _say(bench.b.channel, b"data")
    bench.until(lambda: not a.waiting(), 50)


def test_the_end_is_acknowledged_at_once() -> None:
    bench = _bench_up()
    bench.b.link.ack_ms = 2000
    bench.a.channel.close()
    bench.until(lambda: bench.a.channel.state == IDLE, 60)


def test_what_comes_twice_is_acknowledged_twice() -> None:
    bench = _bench_up()
    b = bench.b
    b.out(1000)
    key = b.channel._key_in
    for _ in range(2):
        _put(b.link, _frame(DATA, key, 0, 0, 4, b"w"), bench.now + b.clock)
    (answer,) = kinds(b.out(1000))
    assert answer == ACK
    assert _read(b.channel) == b"w"


def test_a_gap_is_answered_once_a_wave() -> None:
    bench = _bench_up()
    b = bench.b
    now = bench.now + b.clock
    key = b.channel._key_in

    def naks(*seqs: int) -> int:
        before = b.link.frames_out
        for seq in seqs:
            _put(b.link, _frame(DATA, key, seq, 0, 4, b"w"), now)
            b.out(1000)
        return b.link.frames_out - before

    assert naks(1) == 1
    assert naks(2, 3) == 0
    # The other end has gone back, and the first was lost again.
    assert naks(1, 2, 3) == 1
    assert naks(2, 3) == 1
    b.link.poll(now)
    _put(b.link, _frame(DATA, key, 0, 0, 4, b"w"), now)
    assert _read(b.channel) == b"w"
    assert naks(2) >= 1
