"""A payload in segments, on a computer: the payloads to publish, each of them an MQMDE and a piece.

    ids = GroupIds(b"host-1", os.urandom(8))
    with open("log.bin", "rb") as file:
        for payload in segments(file, ids=ids):
            await client.publish("host-1/log", payload, qos=1)

The rules are the core's (``headwater.ibmmq.segments``), which has what a board needs: clients that have to wait.
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
    E_LATE: "it goes on behind its length",
    E_TOO_LARGE: "it is too large for one message",
    E_ARGUMENT: "it is neither bytes nor a binary file",
}


class PayloadError(ValueError):
    """A payload that cannot be sent, or not to its end: ``status`` is what the core says."""

    def __init__(self, number: int, status: int):
        super().__init__(f"payload {number} cannot be sent: {_WHY.get(status) or describe(status)}")
        self.status = status


class _Taken:
    """A client that keeps what was published last."""

    payload = b""

    def publish(self, topic: bytes, payload: memoryview, qos: int) -> int:
        """Always taken."""
        self.payload = bytes(payload)
        return 0


def segments(
    *payloads: bytes | bytearray | memoryview | io.BufferedIOBase | io.RawIOBase,
    ids: GroupIds,
    piece: int = 65536,
    length: int | None = None,
    **header: Any,
) -> Iterator[bytes]:
    """The messages of one payload, or of several, which are then a group. Files are read as it goes on.

    ``piece``: bytes of payload in each, a multiple of 16. ``length``: how many bytes a single file has, when that is
    known: one that has others has no last segment. ``header``: ``big``, ``ccsid``, ``format``, ``encoding`` and
    ``data_ccsid`` of ``Segmenter``. Raises ValueError for arguments that are none, its PayloadError for a payload that
    is too large, or not as long as was said; BlockingIOError when a file has nothing for now.
    """
    if length is not None and len(payloads) != 1:
        raise ValueError("a length is for one payload")
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
                raise BlockingIOError(f"payload {number} has nothing for now")
            if status >= 0:
                yield client.payload
        if status < 0:
            raise PayloadError(number, status)


def _reader(file: Any) -> Callable[[bytearray, int, int], int | None]:
    """A stream as a function: what a pipe has for now may go anywhere in the buffer, and here a view costs nothing."""

    def read(buf: bytearray, at: int, n: int) -> int | None:
        found: int | None = file.readinto(memoryview(buf)[at : at + n])
        return found

    return read
