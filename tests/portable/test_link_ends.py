# heap: 512K
"""How the serial link's streams end: closed, reset, on a dead line; see ``line.py``.

Every byte that a stream delivers is checked where it is read.
"""

from line import Bench, bench_up, handmade, put, raises, read, say

from headwater.link.frames import ACK, DATA, FIN, RESET
from headwater.link.link import (
    CLOSING,
    ENDED,
    IDLE,
    OPENING,
    UP,
    WHY_CLOSED,
    WHY_DEAD,
    WHY_LINE,
    WHY_NOT,
    WHY_RESET,
    Link,
)


def test_close_ends_the_stream_behind_the_last_byte() -> None:
    bench = bench_up()
    a, b = bench.a.channel, bench.b.channel
    say(a, b"x" * 700)
    a.close()
    assert a.state == CLOSING
    raises(OSError, lambda: a.write(b"more", 0, 4))
    raises(OSError, lambda: a.readinto(bytearray(4), 4))
    bench.until(lambda: a.state == IDLE, 1000)
    assert b.state == ENDED
    raises(OSError, lambda: b.write(b"answer", 0, 6))
    assert read(b, 1000) == b"x" * 700
    for _ in range(3):
        assert read(b) == b""
    assert b.why == WHY_CLOSED
    assert a.why == WHY_NOT
    b.close()
    raises(OSError, lambda: b.readinto(bytearray(4), 4))
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
                got += read(b, 50) or b""
        while True:
            piece = read(b, 50)
            if piece == b"":
                break
            got += piece or b""
        assert got == b"y" * taken


def test_close_with_a_window_of_one() -> None:
    """The end of the stream waits for a place, and the acknowledgement that makes it is not that of the end."""
    bench = bench_up(window=1)
    a, b = bench.a.channel, bench.b.channel
    say(a, b"z" * 240)
    bench.turn()
    a.close()
    assert a.waiting() == 2
    assert b.state == UP
    bench.until(lambda: a.state == IDLE, 2000)
    assert b.why == WHY_CLOSED
    assert read(b, 300) == b"z" * 240
    assert read(b, 300) == b""


def test_both_ends_close_at_once() -> None:
    bench = bench_up()
    say(bench.a.channel, b"bye")
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
    raises(OSError, lambda: channel.write(b"x", 0, 1))
    assert link.out() == 0


def test_what_comes_while_closing_is_dropped_and_acknowledged() -> None:
    bench = bench_up()
    a, b = bench.a.channel, bench.b.channel
    say(b, b"unread" * 100)
    bench.run(300)
    a.close()
    say(b, b"too late")
    bench.until(lambda: a.state == IDLE, 1000)
    a.open()
    b.open()
    bench.until(bench.up, 2000)
    assert read(a) is None


def test_a_stream_opened_behind_the_one_that_closes() -> None:
    bench = bench_up()
    a, b = bench.a.channel, bench.b.channel
    first = a.session
    say(a, b"last words")
    a.close()
    a.open()
    assert a.state == CLOSING
    # The transport is there, and its stream is not up yet.
    assert a.write(b"early", 0, 5) is None
    assert read(a) is None
    bench.until(lambda: b.state == ENDED, 1000)
    assert read(b) == b"last words"
    assert read(b) == b""
    bench.until(lambda: a.state == OPENING, 1000)
    assert a.session == first + 1
    b.open()
    bench.until(bench.up, 1000)
    say(a, b"first words")
    bench.run(200)
    assert read(b) == b"first words"


def test_open_on_a_stream_that_is_up_begins_the_next() -> None:
    bench = bench_up()
    a, b = bench.a.channel, bench.b.channel
    a.open()
    bench.until(lambda: b.state == ENDED, 1000)
    b.open()
    bench.until(bench.up, 2000)
    assert a.streams == b.streams == 2


def test_an_end_that_does_not_read_holds_up_a_close_for_so_long_only() -> None:
    bench = bench_up(dead_ms=5000)
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
        piece = read(b)
        if not piece:
            break
        got += piece
    assert got == b"z" * 960
    assert b.why == WHY_RESET


def test_session_numbers_go_round_and_are_never_0() -> None:
    bench = bench_up()
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
    bench = bench_up()
    a, b = bench.a.channel, bench.b.channel
    say(a, b"unread")
    bench.run(100)
    a.close()
    bench.until(lambda: b.state == ENDED, 1000)
    b.open()
    a.open()
    bench.until(bench.up, 1000)
    assert read(b) is None
    say(a, b"new")
    bench.run(100)
    assert read(b) == b"new"


def test_what_had_come_before_a_reset_can_be_read() -> None:
    bench = bench_up()
    say(bench.a.channel, b"before the reset")
    bench.run(200)
    bench.a.start(500)
    bench.until(lambda: bench.b.channel.state == ENDED, 1000)
    assert read(bench.b.channel) == b"before the reset"
    assert read(bench.b.channel) == b""


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
    bench = bench_up()
    bench.a.start(bench.a.channel.session)
    # It is asked at once, not when the line has been quiet for a while.
    bench.until(lambda: bench.b.channel.state == ENDED, 100)
    assert bench.b.channel.why == WHY_RESET


def test_frames_of_a_former_stream_are_refused() -> None:
    bench = bench_up()
    a, b = bench.a.channel, bench.b.channel
    old = a._key_out
    bench.a.start(600)
    bench.until(lambda: b.state == ENDED, 1000)
    b.open()
    bench.until(bench.up, 1000)
    a = bench.a.channel
    stale = b.stale
    for seq in range(6):
        put(bench.b.link, handmade(DATA, old, seq, 0, 4, b"from the past"), bench.now + bench.b.clock)
    put(bench.b.link, handmade(FIN, old), bench.now + bench.b.clock)
    assert b.stale == stale + 7
    assert read(b) is None
    # It is answered with RESET, which means nothing to the stream there is.
    bench.run(500)
    assert a.state == b.state == UP
    say(a, b"of today")
    bench.run(200)
    assert read(b) == b"of today"


def test_a_reset_frame_needs_the_right_key() -> None:
    bench = bench_up()
    a = bench.a.channel
    for key in (0, a._key_in, a._key_out ^ 1, a.session, a.peer):
        put(bench.a.link, handmade(RESET, key), bench.now)
        assert a.state == UP
    put(bench.a.link, handmade(RESET, a._key_out), bench.now)
    assert a.state == ENDED
    assert a.why == WHY_RESET


def test_a_program_that_has_no_stream_answers_so() -> None:
    """The other end closed, and its FIN and all that followed were lost."""
    bench = bench_up()
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
    bench = bench_up()
    bench.ab.cut = True
    bench.step_ms = 50
    bench.until(lambda: bench.b.channel.state == ENDED, 10500)
    assert bench.b.channel.why == WHY_DEAD
    # The other one now hears nothing either; when it asks, it is told.
    bench.ab.cut = False
    bench.until(lambda: bench.a.channel.state == ENDED, 3000)
    assert bench.a.channel.why == WHY_RESET


def test_a_quiet_stream_stays_up() -> None:
    bench = bench_up()
    frames = bench.a.link.frames_out
    bench.step_ms = 50
    bench.run(60000)
    assert bench.up()
    assert bench.a.channel.streams == 1
    # Kept alive by a question every two seconds from either side, and its answer, at most.
    assert bench.a.link.frames_out - frames <= 2 * 60 // 2 + 2


def test_a_dead_line_is_reported_in_time_and_what_had_come_can_be_read() -> None:
    bench = bench_up()
    say(bench.a.channel, b"the last")
    bench.run(100)
    bench.ab.cut = bench.ba.cut = True
    say(bench.b.channel, b"lost")
    taken = bench.until(lambda: bench.b.channel.state == ENDED, 11000)
    assert 9000 <= taken <= 10100, taken
    assert read(bench.b.channel) == b"the last"
    assert read(bench.b.channel) == b""
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
    bench = bench_up()
    waiting = b""
    for _ in range(60):
        bench.now += 200
        bench.b.work(bench.now, b"")
        waiting = (waiting + bench.b.out(1000))[-500:]
        if bench.now % 3000 == 0:
            put(bench.b.link, handmade(ACK, bench.b.channel._key_in), bench.now + bench.b.clock)
    bench.a.work(bench.now, waiting)
    assert bench.a.channel.state == UP


def test_a_lost_line_ends_every_stream_and_forgets_half_a_frame() -> None:
    bench = bench_up(channels=2)
    a = bench.a
    a.link.channels[1].open()
    say(a.channel, b"half of this goes out")
    assert a.link.out() > 10
    a.link.sent(10)
    put(a.link, handmade(DATA, a.channel._key_in, 0, 0, 4, b"half")[:8], bench.now)
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
    bench = bench_up()
    link, channel = bench.a.link, bench.a.channel
    assert 0 < link.due() <= link.keep_ms
    say(channel, b"x")
    assert bench.a.out(100)
    assert link.due() == channel.sender.rto
    link.poll(bench.now + channel.sender.rto)
    assert link.out() > 0
