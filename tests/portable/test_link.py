"""How the serial link's streams begin, on a line that is good or bad in one way at a time; see ``line.py``.

Every byte that a stream delivers is checked where it is read.
"""

from line import Bench, End, Rng, bench_up, handmade, put, raises, read

from headwater.link.frames import HELLO
from headwater.link.link import HALF, IDLE, OPENING, UP, Link


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
    assert read(channel) is None
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
    echo = handmade(HELLO, bench.a.channel.session, payload=b"\0\0\xf0")
    for _ in range(10):
        put(bench.a.link, echo, bench.now + 77)
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
        raises(ValueError, lambda: Link(session, channels, window, payload))  # noqa: B023 - called at once
    channel = bench_up().a.channel
    for off, n in ((-1, 2), (0, 4), (3, 1), (0, -1)):
        raises(ValueError, lambda: channel.write(b"abc", off, n))  # noqa: B023 - called at once
    assert channel.write(b"abc", 3, 0) is None
    assert channel.write(b"abc", 1, 2) == 2
