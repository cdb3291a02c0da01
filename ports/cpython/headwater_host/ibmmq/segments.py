"""A payload in segments, on a computer: the payloads to publish, each of them an MQMDE and a piece.

    ids = GroupIds(b"host-1", os.urandom(8))
    with open("log.bin", "rb") as file:
        for payload in segments(file, ids=ids):
            await client.publish("host-1/log", payload, qos=1)

The rules are the core's (``headwater.ibmmq.segments``), which has what a board needs: clients that have to wait.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from headwater.ibmmq.group_ids import GroupIds
from headwater.ibmmq.segments import LATER, MORE, Segmenter
from headwater.ibmmq.spec import MQMDE_LENGTH_2


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
    **header: Any,
) -> Iterator[bytes]:
    """The messages of one payload, or of several, which are then a group. Files are read as it goes on.

    ``piece``: bytes of payload in each, a multiple of 16. ``header``: ``big``, ``ccsid``, ``format``, ``encoding`` and
    ``data_ccsid`` of ``Segmenter``. Raises ValueError for arguments that are none, and for a payload that is too large;
    BlockingIOError when a file has nothing for now.
    """
    if piece <= 0 or piece % 16:
        raise ValueError(f"a piece is a multiple of 16 bytes, not {piece}")
    client = _Taken()
    segmenter = Segmenter(client, bytearray(MQMDE_LENGTH_2 + piece), ids, **header)
    if len(payloads) > 1:
        segmenter.begin_group()
    for number, payload in enumerate(payloads, 1):
        source: Any = payload
        length = None
        if isinstance(payload, (bytes, bytearray, memoryview)):
            source, length = io.BytesIO(payload), memoryview(payload).nbytes
        status = segmenter.begin(b"", source, length, last=number == len(payloads) > 1) or MORE
        while status > 0:
            status = segmenter.step()
            if status == LATER:
                raise BlockingIOError(f"payload {number} has nothing for now")
            if status >= 0:
                yield client.payload
        if status < 0:
            raise ValueError(f"payload {number} cannot be sent: status {status}")
