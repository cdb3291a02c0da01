# heap: 1M
"""Messages of FMQ that are larger than the buffer: whole to a sink whatever the pieces, or past it."""

from headwater.connection import ONLINE
from headwater.errors import E_UTF8
from headwater.fmq import frames, spec
from headwater.fmq.frames import Frame
from headwater.fmq.queues import find_request
from headwater.fmq.session import LIVE, ClientSession
from headwater.streaming import stream_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

IDENT = b"\x31\x01\x03\xb0\x15\xcd\x4e\x2b\x84\x5b\xd7\x18"
PAYLOAD = bytes([i * 7 & 255 for i in range(3000)])
# An answer to an unknown message.
BEHIND = b"\xe0" + IDENT + b"\x00"
PUBREC = b"\x50" + IDENT
SUBSCRIPTION = b"\x35\x07\x00\x00\x00\x01"


class Sink:
    def __init__(self, takes: bool = True):
        self.takes = takes
        self.said: list[object] = []
        self.got = bytearray()
        self.size = -1
        self.ends: list[bool] = []
        self.fails = False

    def open(self, f: Frame, size: int) -> bool:
        self.said = [f.kind(), f.topic_bytes(), bytes(f.buf[f.tags_at : f.payload_at])]
        self.size = size
        return self.takes

    def write(self, buf: "Bytes", at: int, n: int) -> None:
        assert n > 0
        if self.fails:
            raise ValueError
        self.got += bytes(buf[at : at + n])

    def close(self, complete: bool) -> None:
        self.ends.append(complete)


class Passing:
    """A session that receives large messages, in pieces of ``piece`` bytes."""

    def __init__(self, sink: "Sink | None" = None, rx_size: int = 64, piece: int = 7):
        self.session = s = ClientSession(b"board", rx_size=rx_size)
        assert s.connect(0) == 0
        self.piece = piece
        self.feed(b"\xe0" + self.sent()[1:12] + b"\x07\x31\x00\x31\x05\x20\xb1\x00")
        assert s.state == ONLINE
        s.requests.put(1, LIVE, SUBSCRIPTION, 0, len(SUBSCRIPTION))
        s.find_request = find_request
        stream_to(s, sink)

    def feed(self, data: bytes) -> int:
        s = self.session
        status = at = 0
        while at < len(data) and status == 0:
            n = min(s.rx.window(), self.piece, len(data) - at)
            s.rx.view[:n] = data[at : at + n]
            status = s.feed(n)
            s.feeding = False
            at += n
        return status

    def sent(self) -> bytes:
        """Everything that the session sends."""
        s = self.session
        found = b""
        n = s.out()
        while n > 0:
            found += bytes(s.out_buf[s.out_at : s.out_at + n])
            n = s.sent(n)
        return found


def message(tags: "list[bytes]", topic: bytes = b"plant/1/temp") -> bytes:
    buf = bytearray(4096)
    return bytes(buf[: frames.encode_frame(buf, 0, 4096, 0x34, IDENT, [topic, tags, PAYLOAD])])


def test_whatever_the_pieces_the_sink_gets_the_payload() -> None:
    buf = bytearray(4096)
    end = frames.encode_frame(buf, 0, 4096, 0xB0, IDENT, [SUBSCRIPTION, None, [b"raw"], PAYLOAD])
    for data, want, answer in (
        (message([]), [3, b"plant/1/temp", b"\xd0"], PUBREC),
        (
            message([b"raw", b"celsius"]),
            [3, b"plant/1/temp", frames.tag_list([b"raw", b"celsius"])],
            PUBREC,
        ),
        (bytes(buf[:end]), [11, b"", frames.tag_list([b"raw"])], b""),
    ):
        for rx_size in (72, 120, 1024):
            for piece in (1, 7, 100000):
                sink = Sink()
                p = Passing(sink, rx_size, piece)
                assert p.feed(data + BEHIND) == 0
                assert sink.said == want and sink.size == len(PAYLOAD)
                assert sink.got == PAYLOAD and sink.ends == [True]
                assert p.sent() == answer and p.session.strays == 1 and p.session.skipped == 0


def test_a_message_nobody_wants_passes() -> None:
    for sink in (None, Sink(False)):
        p = Passing(sink)
        assert p.feed(message([b"raw"]) + BEHIND) == 0
        assert p.sent() == PUBREC and p.session.strays == p.session.skipped == 1
        assert sink is None or (sink.got == b"" and sink.ends == [])


def test_a_topic_that_does_not_fit_is_passed_over() -> None:
    for data in (message([], b"x" * 200), message([b"y" * 100, b"z"])):
        for piece in (1, 7, 100000):
            sink = Sink()
            p = Passing(sink, 64, piece)
            assert p.feed(data + BEHIND) == 0
            assert sink.size == -1
            assert p.sent() == PUBREC and p.session.strays == p.session.skipped == 1


def test_what_is_wrong_with_it_is_found_before_the_payload() -> None:
    data = message([b"raw"])
    at = data.index(b"raw")
    for piece in (1, 100000):
        assert Passing(None, 64, piece).feed(data[:at] + b"\xc3" + data[at + 1 :]) == E_UTF8
        assert Passing(None, 64, piece).feed(data[: at - 2] + b"\x21" + data[at - 1 :]) == spec.E_FORM


def test_the_sink_is_told_when_it_ends_early() -> None:
    sink = Sink()
    p = Passing(sink, 64, 10)
    assert p.feed(message([])[:2000]) == 0
    assert p.session.large_left and sink.ends == []
    p.session.lost()
    assert p.session.large_left == 0 and sink.ends == [False]
    assert PAYLOAD[: len(sink.got)] == sink.got


def test_a_sink_that_raises_loses_its_message_and_no_other() -> None:
    sink = Sink()
    sink.fails = True
    p = Passing(sink)
    data = message([]) + BEHIND
    try:
        p.feed(data)
        raise AssertionError("no error")
    except ValueError:
        pass
    assert sink.ends == [False]
    # What is left passes, and the sink hears nothing of it.
    rest = p.session.large_left
    assert 2900 < rest < 3000
    assert p.feed(data[len(data) - len(BEHIND) - rest :]) == 0
    assert p.session.large_left == 0 and sink.ends == [False]
    assert p.sent() == b"" and p.session.strays == 1
