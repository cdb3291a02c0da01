# heap: 512K
"""The link's transports: over raw lines that take and give little, that break; and MQTT over them, on a bad line."""

from stream_pair import Dialer, Pair, Server, publish_all

from headwater.link.link import ENDED, OPENING, WHY_LINE
from headwater.mqtt.client import Client
from headwater.mqtt.server import ServerSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def _raised(call: "Callable[[], object]") -> "OSError | None":
    try:
        call()
    except OSError as e:
        return e
    return None


def test_a_line_that_takes_and_gives_a_few_bytes() -> None:
    for most in (1, 3, 40):
        pair = Pair(most=most)
        pair.up()
        data = bytes([i & 0xFF for i in range(800)])
        got = b""
        sent = 0
        buf = bytearray(90)
        while len(got) < len(data):
            pair.now += 5
            if sent < len(data):
                sent += pair.streams[0].write(data, sent, len(data) - sent) or 0
            pair.pumps[0].pump()
            n = pair.streams[1].readinto(buf, 90)
            got += bytes(buf[: n or 0])
            assert pair.now < 200000
        assert got == data
        assert pair.pumps[1].link.damaged == 0


def test_a_broken_line_is_reported_behind_what_had_come() -> None:
    for ended in (False, True):
        pair = Pair()
        pair.up()
        a, b = pair.streams
        buf = bytearray(50)
        assert a.write(b"x" * 60, 0, 60) == 60
        pair.pump(20)
        raw = pair.raws[1]
        if ended:
            raw.ended = True
        else:
            raw.broken = OSError(5)
        assert b.readinto(buf, 50) == 50
        assert pair.pumps[1].error is not None
        assert b.readinto(buf, 50) == 10
        for _ in range(3):
            error = _raised(lambda: b.readinto(buf, 50))  # noqa: B023 - called at once
            assert error is pair.pumps[1].error
        assert b.channel.state == ENDED
        assert b.channel.why == WHY_LINE
        assert _raised(lambda: b.write(buf, 0, 1))  # noqa: B023 - called at once
        # The line is there again: the next stream.
        raw.broken = None
        raw.ended = False
        pair.pumps[1].attach(raw)
        assert pair.pumps[1].error is None
        b.channel.open()
        while a.readinto(buf, 50) != 0:
            pair.pump()
        a.channel.open()
        pair.pump(100)
        assert a.write(b"again", 0, 5) == 5
        pair.pump(20)
        assert b.readinto(buf, 50) == 5


def test_a_line_that_breaks_before_the_stream_is_up() -> None:
    pair = Pair()
    pair.raws[0].broken = OSError(19)
    stream = pair.streams[0]
    stream.channel.open()
    error = _raised(lambda: stream.readinto(bytearray(5), 5))
    assert error is pair.raws[0].broken
    assert stream.channel.state == OPENING


def test_another_line_ends_the_stream_there_is() -> None:
    pair = Pair()
    pair.up()
    pair.pumps[0].attach(pair.raws[0])
    stream = pair.streams[0]
    assert stream.channel.state == ENDED
    assert stream.channel.why == WHY_LINE
    assert stream.readinto(bytearray(5), 5) == 0


def test_close_reaches_the_other_end_when_it_is_pumped_on() -> None:
    pair = Pair()
    pair.up()
    a, b = pair.streams
    assert a.write(b"the end", 0, 7) == 7
    a.close()
    assert a.channel.waiting() == 2
    while a.channel.waiting():
        pair.pump()
    buf = bytearray(20)
    assert b.readinto(buf, 20) == 7
    assert b.readinto(buf, 20) == 0


class Gateway(Server):
    """MQTT's server end over the stream."""

    def __init__(self, pair: Pair):
        self.messages: list[bytes] = []
        session = ServerSession(1024, 1024)
        session.on_message = lambda message: self.messages.append(message.payload_bytes())
        super().__init__(pair, session)

    def _open(self) -> None:
        super()._open()
        self.session.listen(self.pair.ticks_ms())

    def work(self) -> None:
        super().work()
        assert self.session.poll(self.pair.ticks_ms()) == 0


def published(pair: Pair, qos: int, cuts: "tuple[int, ...]" = ()) -> "tuple[list[bytes], list[bytes]]":
    """What was handed in, what the server has."""
    server = Gateway(pair)
    client = Client(Dialer(pair, server), b"board", clean_start=False, keep_alive=0)
    return publish_all(client, server, (qos,), cuts), server.messages


def test_mqtt_over_a_good_line() -> None:
    pair = Pair()
    handed, stored = published(pair, 1)
    assert stored == handed
    assert pair.now < 10000


def test_mqtt_over_a_bad_line() -> None:
    pair = Pair(2, lose=60, flip=60, noise=60)
    handed, stored = published(pair, 2)
    assert stored == handed
    assert pair.streams[0].channel.streams == 1


def test_mqtt_over_a_bad_line_and_resets_of_the_gateway() -> None:
    pair = Pair(3, lose=40, flip=40, drop=40)
    handed, stored = published(pair, 2, (5, 6, 17, 30))
    assert stored == handed
    pair = Pair(4, flip=80)
    handed, stored = published(pair, 1, (3, 11, 12, 39))
    # At QoS 1 a message may come again, after those that were under way with it.
    assert set(stored) == set(handed)
