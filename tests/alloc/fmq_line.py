"""A transport to a hub that answers at once, and allocates nothing for it."""

from headwater.connection import RxBuf
from headwater.fmq.frames import Frame, decode_header, encode_answer, encode_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

# 2026, as a DateTime.
TIME = b"\xb0" + (1795000000000000000).to_bytes(8, "little")
SUBSCRIPTION = (5 << 32) + 1
# What answers each type of frame: nothing, or the type of the answer.
ANSWERS = b"\x00\x00\x00\x00\x00\x06\x07\x00\x00\x00\x00\x00\x0e\x00\x00\x00"
BY_QOS = b"\x00\x0e\x05"


def made(head: int, ident: bytes, *values: "bool | int | bytes | tuple[bytes, ...] | None") -> bytes:
    buf = bytearray(1200)
    n = encode_frame(buf, 0, 1200, head, ident, values)
    assert n > 0
    return bytes(buf[:n])


class Line:
    """A transport to a hub. It answers what it can without allocating; ``room`` is how much it takes."""

    def __init__(self) -> None:
        self.room = 1 << 20
        self.refuses = False
        self.frames = 0
        self.answers = 0
        self._rx = RxBuf(2048)
        self._frame = Frame(self._rx.buf, 2048)
        self._tx = bytearray(4096)
        self._at = self._end = 0

    def begin(self, now: int) -> None:
        pass

    def readinto(self, buf: "bytearray | memoryview", n: int) -> "int | None":
        if n > self._end - self._at:
            n = self._end - self._at
        if n == 0:
            self._at = self._end = 0
            return None
        for i in range(n):
            buf[i] = self._tx[self._at + i]
        self._at += n
        return n

    def write(self, buf: "Bytes", off: int, n: int) -> "int | None":
        if n > self.room:
            n = self.room
        if n == 0:
            return None
        rx = self._rx
        n = min(n, rx.window())
        for i in range(n):
            rx.view[i] = buf[off + i]
        if rx.gap:
            rx.join(n)
        rx.end += n
        f = self._frame
        while True:
            stop = decode_header(f, rx.start, rx.end)
            assert stop >= 0
            if stop == 0 or stop > rx.end:
                return n
            rx.start = stop
            self._take(f)

    def _take(self, f: Frame) -> None:
        self.frames += 1
        kind = f.head >> 4
        if kind == 0:
            self.give(made(0xE0, bytes(f.buf[f.id_at : f.id_end]), 0, 5, True, TIME))
        elif kind == 8:
            self.give(made(0xE0, bytes(f.buf[f.id_at : f.id_end]), 0, SUBSCRIPTION))
        elif kind == 14 or kind == 5 or kind == 7:
            self.answers += 1
        kind = BY_QOS[f.head >> 1 & 3] if kind == 3 else ANSWERS[kind]
        if kind:
            self._end = encode_answer(self._tx, self._end, 4096, kind, f.buf, f.id_at, f.id_end)
            if self.refuses:
                # A body of two bytes: reason 0x87, which is no more than 8 bits.
                self._tx[self._end - 1] = 2
                self._tx[self._end] = 0x31
                self._tx[self._end + 1] = 0x87
                self._end += 2

    def give(self, data: bytes) -> None:
        for i in range(len(data)):
            self._tx[self._end + i] = data[i]
        self._end += len(data)

    def close(self) -> None:
        pass
