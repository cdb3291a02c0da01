"""What goes into a Segmenter and what takes what comes out; and a simple reader, which puts it together."""

import struct

from headwater.ibmmq.segments import GroupIds, Segmenter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headwater.types import Bytes

PIECE = 32
TOPIC = b"board/log"
NONE = bytes(24)
#: MsgFlags of a segment, the last one, a message in a group, and the last of these.
SEGMENT, LAST, IN_GROUP, LAST_IN_GROUP = 2, 6, 8, 24


class Taker:
    """A client: ``answers`` are what the next calls of ``publish`` say; then 0."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.calls: list[tuple[bytes, bytes, int]] = []
        self.calls_refused = 0
        self.waits: list[int] = []

    def publish(self, topic: "Bytes", payload: "Bytes", qos: int) -> int:
        answer = self.answers.pop(0) if self.answers else 0
        if answer < 0:
            self.calls_refused += 1
        else:
            self.calls.append((bytes(topic), bytes(payload), qos))
        return answer

    def wait(self, ms: int) -> int:
        return self.waits.pop(0) if self.waits else 0


class Stream:
    """Reads of ``script``'s sizes: 0 is None, "there is nothing now"; then as much as there is room for."""

    def __init__(self, data: bytes, script: "tuple[int, ...]" = ()):
        self.data = data
        self.script = list(script)
        self.at = 0

    def readinto(self, buf: "Any") -> "int | None":
        n = len(buf)
        if self.script:
            k = self.script.pop(0)
            if k == 0:
                return None
            n = min(n, k)
        data = self.data[self.at : self.at + n]
        self.at += len(data)
        buf[: len(data)] = data
        return len(data)


def function(data: bytes, script: "tuple[int, ...]" = ()) -> "Any":
    """The same as a function."""
    stream = Stream(data, script)

    def source(buf: bytearray, at: int, n: int) -> "int | None":
        assert n > 0
        piece = bytearray(n)
        k = stream.readinto(piece)
        if k:
            buf[at : at + k] = piece[:k]
        return k

    return source


SOURCES = (Stream, function)


def payload_of(n: int) -> bytes:
    return bytes([(i * 7 + i // 256) & 255 for i in range(n)])


def made(client: "Any" = None, size: int = 72 + PIECE, **options: "Any") -> Segmenter:
    return Segmenter(client or Taker(), bytearray(size), GroupIds(b"board-1", b"\x07"), **options)


def mde(payload: bytes, big: bool = True) -> "tuple[Any, ...]":
    """GroupId, MsgSeqNumber, Offset, MsgFlags; the rest is checked."""
    order = ">" if big else "<"
    assert struct.unpack(order + "ii", payload[4:12]) == (2, 72)
    assert struct.unpack(order + "i", payload[28:32]) == (0,)
    sequence, offset, flags, original = struct.unpack(order + "iiii", payload[56:72])
    assert original == -1
    return payload[32:56], sequence, offset, flags


def joined(
    payloads: "list[bytes]", piece: int = PIECE, big: bool = True
) -> "list[tuple[bytes, int, int, bytes]]":
    """(GroupId, MsgSeqNumber, flags of the group, payload) of each logical message; nothing may be amiss."""
    found = []
    group, number, data, under_way = NONE, 1, b"", False
    for payload in payloads:
        ident, sequence, offset, flags = mde(payload, big)
        if under_way:
            assert (ident, sequence, offset) == (group, number, len(data)) and flags & SEGMENT, payload
        else:
            assert offset == 0 and (flags & LAST) in (0, SEGMENT)
            group, number, data = ident, sequence, b""
        data += payload[72:]
        under_way = flags & LAST == SEGMENT
        assert not under_way or len(payload) == 72 + piece
        assert len(payload) <= 72 + piece
        assert (ident != NONE) == bool(flags)
        if not under_way:
            found.append((group, number, flags & LAST_IN_GROUP, data))
    assert not under_way, "a message without an end"
    return found


def sent(s: Segmenter, most: int = 10000) -> int:
    for _ in range(most):
        status = s.step()
        if status <= 0:
            return status
    raise AssertionError("it does not end")
