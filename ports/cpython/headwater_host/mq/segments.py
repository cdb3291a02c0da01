"""Split payloads into segments with an MQMDE.

    ids = GroupIds(b"host-1", os.urandom(8))
    with open("log.bin", "rb") as file:
        for payload in segments(file, ids=ids):
            await client.publish("host-1/log", payload, qos=1)

The rules are the core's (``headwater.ibmmq.segments``), which also serves boards, whose clients have to wait.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

from headwater.errors import E_ARGUMENT, E_TOO_LARGE
from headwater.ibmmq.segments import E_EARLY, E_LATE, LATER, MORE, GroupIds, Segmenter
from headwater.reasons import describe
from headwater_host.mq.CMQC import MQMDE_LENGTH_2

_WHY = {
    E_EARLY: "it ends before its length",
    E_LATE: "it is longer than its length",
    E_TOO_LARGE: "it is too large for one message",
    E_ARGUMENT: "it is neither bytes nor a binary file",
}


class PayloadError(ValueError):
    """A payload cannot be sent, or not completely. ``status`` is the core's status code."""

    def __init__(self, number: int, status: int):
        super().__init__(f"payload {number} cannot be sent: {_WHY.get(status) or describe(status)}")
        self.status = status


class _Taken:
    """A client that keeps the last payload."""

    payload = b""

    def publish(self, topic: bytes, payload: memoryview, qos: int) -> int:
        """Accept the payload."""
        self.payload = bytes(payload)
        return 0


def segments(
    *payloads: bytes | bytearray | memoryview | io.BufferedIOBase | io.RawIOBase,
    ids: GroupIds,
    piece: int = 65536,
    length: int | None = None,
    **header: Any,
) -> Iterator[bytes]:
    """Yield the segments of one payload, or of several payloads as a group. Files are read step by step.

    Args:
        ids: the source of GroupIds.
        piece: bytes of payload in each segment, a multiple of 16.
        length: the length of a single file in bytes, if known; a file of another length gets no last segment.
        header: ``big``, ``ccsid``, ``format``, ``encoding`` and ``data_ccsid`` of ``Segmenter``.

    Raises ValueError for wrong arguments, PayloadError if a payload is too large or has another length, and
    BlockingIOError if a file has no data for now.
    """
    if length is not None and len(payloads) != 1:
        raise ValueError("length needs exactly one payload")
    if piece <= 0 or piece % 16:
        raise ValueError(f"a piece is a multiple of 16 bytes, not {piece}")
    client = _Taken()
    segmenter = Segmenter(client, bytearray(MQMDE_LENGTH_2 + piece), ids, **header)
    if len(payloads) > 1:
        segmenter.begin_group()
    for number, payload in enumerate(payloads, 1):
        source: Any = payload
        size = length
        if isinstance(payload, str):
            raise TypeError(f"payload {number} is text; encode it first: text.encode()")
        if isinstance(payload, (bytes, bytearray, memoryview)):
            source, size = io.BytesIO(payload), memoryview(payload).nbytes
        if hasattr(source, "readinto"):
            source = _reader(source)
        status = segmenter.begin(b"", source, size, last=number == len(payloads) > 1) or MORE
        while status > 0:
            status = segmenter.step()
            if status == LATER:
                raise BlockingIOError(f"payload {number} has no data for now")
            if status >= 0:
                yield client.payload
        if status < 0:
            raise PayloadError(number, status)


def _reader(file: Any) -> Callable[[bytearray, int, int], int | None]:
    """Return a function that reads a stream into a range of a buffer."""

    def read(buf: bytearray, at: int, n: int) -> int | None:
        found: int | None = file.readinto(memoryview(buf)[at : at + n])
        return found

    return read
