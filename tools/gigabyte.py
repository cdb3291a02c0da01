"""Send a gigabyte from a virtual board with 256 KB of heap and a buffer of 1 KB, and check that it arrives.

    python -m tools.gigabyte [--bytes N] [--protocol mqtt|fmq] [--qos 0|1|2]

The board (MicroPython) generates the bytes and sends them as one message in MQMDE segments through mosquitto or a hub.
A client here checks the content of each segment, and the order with ``headwater_host.mq.reassembly.logical``. The
collector of the board is off, so the heap in use shows every allocation.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from headwater.ibmmq.header import MQMDE
from headwater_host.client import fmq
from headwater_host.client import mqtt as aio
from headwater_host.hub.config import HubConfig, Listener
from headwater_host.hub.service import Hub
from headwater_host.mq.reassembly.logical import Message
from headwater_host.mq.structures import decode
from tools import deploy
from tools.broker import HOST, Mosquitto
from tools.virtual_board import VirtualBoard

PROGRAM = Path(__file__).parent / "device" / "gigabyte.py"
TOPIC = "board-1/gigabyte"
HEAP = "256K"
HEADER = 72
#: The largest logical message.
GIGABYTE = 10**9 - 1
#: GroupId, MsgSeqNumber, Offset, MsgFlags, OriginalLength; what is before them is the same in all segments.
_NUMBERS = struct.Struct(">24siiii")
_BEGIN = 32


class Reception:
    """Checks the segments of one message against what the board generates."""

    def __init__(self, piece: int) -> None:
        """Expect segments of ``piece`` bytes of payload."""
        self._piece = piece
        self.segments = self.duplicates = 0
        self.group_id = self._begin = b""
        self._first: Any = {}
        self._message = Message(1)
        self._block = bytearray(i * 7 & 255 for i in range(piece))

    @property
    def received(self) -> int:
        """The number of received bytes."""
        return self._message.covered

    @property
    def whole(self) -> bool:
        """Whether the message is complete."""
        return self._message.whole

    def take(self, payload: bytes) -> None:
        """Check the next segment; AssertionError if it is wrong."""
        group_id, seq, offset, flags, _ = _NUMBERS.unpack_from(payload, _BEGIN)
        if not self.segments:
            self._first = decode(MQMDE, payload, big=True, ccsid=819)
            self._begin = payload[:_BEGIN]
            self.group_id = group_id
        assert (payload[:_BEGIN], group_id, seq) == (self._begin, self.group_id, 1)
        data = payload[HEADER:]
        fault = self._message.meet(
            offset, len(data), flags, self._first["Encoding"], self._first["CodedCharSetId"]
        )
        assert fault is None, str(fault)
        number = offset // self._piece
        self._block[:4] = self._block[-4:] = number.to_bytes(4, "little")
        assert data == self._block[: len(data)], f"the bytes at {offset} are not those that were sent"
        self.segments += 1
        if offset == self._message.covered:
            self._message.covered += len(data)
            return
        # With a clean session and one connection nothing is lost; at QoS 1 duplicates are possible.
        assert offset < self._message.covered, f"segments before {offset} are missing"
        self.duplicates += 1


class Report(NamedTuple):
    """The board's report: minimum, maximum and final bytes of heap in use, and the duration."""

    lowest: int
    highest: int
    end: int
    samples: int
    seconds: float


@dataclass(frozen=True)
class Way:
    """Protocol, QoS, and the board's outbox and segment buffer in bytes."""

    protocol: str = "mqtt"
    qos: int = 1
    outbox: int = 16384
    buffer: int = 1024

    @property
    def piece(self) -> int:
        """Return the bytes of payload in a segment: a multiple of 16, behind the MQMDE."""
        return (self.buffer - HEADER) & -16


def program(length: int, way: Way, **line: object) -> str:
    """Return the board's program; ``line`` has the address of the server."""
    settings = {"bytes": length, **asdict(way), **line}
    return f"SETTINGS = {settings!r}\n{PROGRAM.read_text(encoding='utf-8')}"


def reported(board: VirtualBoard, timeout: float) -> Report:
    """Wait until the board has sent everything; return its report."""
    board.wait_for(" end\n", timeout)
    found = re.search(r"status (-?\d+) heap (\d+) (\d+) (\d+) samples (\d+) ms (\d+) end", board.log)
    assert found is not None, board.log
    status, lowest, highest, end, samples, ms = map(int, found.groups())
    assert status == 0, status
    return Report(lowest, highest, end, samples, ms / 1000)


@contextlib.asynccontextmanager
async def _broker(folder: Path) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
    with Mosquitto(folder, settings={"max_inflight_messages": 1000}) as broker:
        async with aio.Client(HOST, broker.port, limits=aio.Limits(queued_incoming=1000)) as client:
            await client.subscribe(TOPIC, qos=1)
            yield broker.port, (message.payload async for message in client.messages)


@contextlib.asynccontextmanager
async def _hub(folder: Path) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
    hub = Hub(HubConfig(folder / "hub.db", listeners=(Listener(port=0),)))
    await hub.start()
    try:
        port = hub.addresses[0][1]
        async with fmq.Client(HOST, port) as client:
            await client.subscribe(TOPIC)
            yield port, (message.payload async for message in client.messages)
    finally:
        await hub.stop()


async def send(length: int, way: Way, folder: Path, timeout: float = 600.0) -> tuple[Reception, Report]:
    """Send ``length`` bytes from a board and check them; return the reception and the board's report."""
    made = _hub if way.protocol == "fmq" else _broker
    async with made(folder) as (port, payloads):
        text = program(length, way, host=HOST, port=port)
        with VirtualBoard(main=text, files=deploy.package_files("mpy"), heap=HEAP, name="gigabyte") as board:
            reception = Reception(way.piece)

            async def take() -> None:
                async for payload in payloads:
                    reception.take(payload)
                    if reception.whole:
                        return

            await asyncio.wait_for(take(), timeout)
            report = await asyncio.to_thread(reported, board, timeout)
    assert reception.received == length
    return reception, report


def main() -> int:
    """Send and print the result."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.gigabyte",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--bytes", type=int, default=GIGABYTE, help="number of bytes (default: %(default)s)")
    parser.add_argument("--protocol", choices=["mqtt", "fmq"], default="mqtt", help="(default: %(default)s)")
    parser.add_argument("--qos", type=int, choices=[0, 1, 2], default=1, help="(default: %(default)s)")
    chosen = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        way = Way(chosen.protocol, chosen.qos)
        reception, report = asyncio.run(send(chosen.bytes, way, Path(folder), 3600.0))
    print(
        f"{reception.received:,} bytes in {reception.segments:,} segments, {reception.duplicates} duplicates\n"
        f"{time.monotonic() - begin:.1f} s; the board sent for {report.seconds:.1f} s, "
        f"{reception.received / report.seconds / 1e6:.1f} MB/s\n"
        f"heap of the board in use: {report.lowest:,} to {report.highest:,} bytes, {report.end:,} at the end; "
        f"{report.samples:,} samples"
    )
    return 0 if report.lowest == report.highest == report.end else 1


if __name__ == "__main__":
    sys.exit(main())
