# heap: 1M
"""Messages of FMQ that are larger than the buffer: whole to a sink whatever the pieces, or past it."""

from headwater.errors import E_UTF8
from headwater.fmq import frames, spec
from headwater.fmq.frames import Frame
from headwater.fmq.session import LargeMessage
from headwater.fmq.streaming import StreamedMessage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

IDENT = b"\x31\x01\x03\xb0\x15\xcd\x4e\x2b\x84\x5b\xd7\x18"
PAYLOAD = bytes([i * 7 & 255 for i in range(3000)])
BEHIND = b"\xe0" + IDENT + b"\x00"


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


def passed(data: bytes, capacity: int, piece: int, large: LargeMessage) -> int:
    """Give a frame to a buffer in pieces, as an endpoint does: how many bytes of it were taken, or a code."""
    buf = bytearray(capacity)
    f = Frame(buf, 1 << 20)
    held = at = taken = 0
    begun = False
    while True:
        n = min(piece, capacity - held, len(data) - at)
        buf[held : held + n] = data[at : at + n]
        held += n
        at += n
        i = 0
        if not begun:
            stop = frames.decode_header(f, 0, held)
            if stop < 0:
                return stop
            if stop:
                assert stop > capacity
                i = large.begin(f, 0, held, capacity)
                if i < 0:
                    return i
                if i:
                    begun = True
                    large.offer(f)
        if begun:
            while i < held and large.left:
                i = large.take(buf, i, held)
            if large.left == 0:
                large.close(True)
                return taken + i
            taken += i
            assert i == held
            held = 0
        if n == 0:
            return taken


def message(tags: "list[bytes]", topic: bytes = b"plant/1/temp") -> bytes:
    buf = bytearray(4096)
    return bytes(buf[: frames.encode_frame(buf, 0, 4096, 0x34, IDENT, [topic, tags, PAYLOAD])])


def test_whatever_the_pieces_the_sink_gets_the_payload() -> None:
    buf = bytearray(4096)
    to = b"\x35\x07\x00\x00\x00\x01"
    end = frames.encode_frame(buf, 0, 4096, 0xB0, IDENT, [to, None, [b"raw"], PAYLOAD])
    for data, want in (
        (message([]), [3, b"plant/1/temp", b"\xd0"]),
        (message([b"raw", b"celsius"]), [3, b"plant/1/temp", frames.tag_list([b"raw", b"celsius"])]),
        (bytes(buf[:end]), [11, b"", frames.tag_list([b"raw"])]),
    ):
        for capacity in (64, 100, 1024):
            for piece in (1, 7, 100000):
                sink = Sink()
                large = StreamedMessage(sink)
                assert passed(data + BEHIND, capacity, piece, large) == len(data)
                assert sink.said == want and sink.size == len(PAYLOAD)
                assert sink.got == PAYLOAD and sink.ends == [True]
                assert large.head == data[0] and large.ident[: large.id_size] == IDENT


def test_a_message_nobody_wants_passes() -> None:
    data = message([b"raw"])
    for sink in (None, Sink(False)):
        large = LargeMessage() if sink is None else StreamedMessage(sink)
        assert passed(data + BEHIND, 64, 7, large) == len(data)
        assert large.head == 0x34 and large.ident[: large.id_size] == IDENT
        assert sink is None or (sink.got == b"" and sink.ends == [])


def test_a_topic_that_does_not_fit_is_passed_over() -> None:
    for data in (message([], b"x" * 200), message([b"y" * 100, b"z"])):
        for piece in (1, 7, 100000):
            sink = Sink()
            large = StreamedMessage(sink)
            assert passed(data + BEHIND, 64, piece, large) == len(data)
            assert sink.size == -1
            assert large.head == 0x34 and large.ident[: large.id_size] == IDENT


def test_what_is_wrong_with_it_is_found_before_the_payload() -> None:
    data = message([b"raw"])
    at = data.index(b"raw")
    for piece in (1, 100000):
        bad = data[:at] + b"\xc3" + data[at + 1 :]
        assert passed(bad, 64, piece, LargeMessage()) == E_UTF8
        bad = data[: at - 2] + b"\x21" + data[at - 1 :]
        assert passed(bad, 64, piece, LargeMessage()) == spec.E_FORM


def test_the_sink_is_told_when_it_ends_early() -> None:
    data = message([])
    sink = Sink()
    large = StreamedMessage(sink)
    passed(data[:2000], 64, 10, large)
    assert large.left and sink.ends == []
    large.give_up()
    assert large.left == 0 and sink.ends == [False]
    assert PAYLOAD[: len(sink.got)] == sink.got


def test_a_sink_that_raises_loses_its_message_and_no_other() -> None:
    data = message([])
    sink = Sink()
    sink.fails = True
    large = StreamedMessage(sink)
    buf = bytearray(64)
    f = Frame(buf, 1 << 20)
    buf[:] = data[:64]
    assert frames.decode_header(f, 0, 64) == len(data)
    at = large.begin(f, 0, 64, 64)
    assert large.offer(f)
    left = large.left
    try:
        large.take(buf, at, 64)
        raise AssertionError("no error")
    except ValueError:
        pass
    assert sink.ends == [False] and large.head == 0
    # What is left passes, and the sink hears nothing of it.
    assert large.left == left - (64 - at)
    assert large.take(buf, 0, 64) == 64
    assert sink.ends == [False]
