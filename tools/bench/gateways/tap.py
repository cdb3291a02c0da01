"""A proxy between a broker and one subscriber that measures how long each message waits for PUBACK or PUBREC.

`python -m tools.bench.gateways.tap PORT`, the broker's. It prints its own port, and on SIGTERM, in the order of the
acknowledgements, the times of each message and its acknowledgement in seconds. Bytes are stored with their times
and decoded only at the end.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time

from tools.bench.gateways.recorder import HOST, PUBLISH, packet_id_at, packets

PUBACK, PUBREC = 4, 5
_READ = 1 << 16


class Tap:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._passed: dict[str, list[tuple[float, bytes]]] = {"down": [], "up": []}

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes on in both directions."""
        there, back = await asyncio.open_connection(HOST, self._port)
        await asyncio.gather(self._pass(there, writer, "down"), self._pass(reader, back, "up"))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        passed = self._passed[way]
        while data := await reader.read(_READ):
            passed.append((time.perf_counter(), data))
            writer.write(data)
        writer.close()

    def times(self) -> list[tuple[float, float]]:
        """Return the times of each acknowledged message and of its acknowledgement."""
        sent = self._events("down", {PUBLISH})
        answered = self._events("up", {PUBACK, PUBREC})
        waiting: dict[int, float] = {}
        times = []
        for when, kind, packet_id in sorted(sent + answered):
            if kind == PUBLISH:
                waiting[packet_id] = when
            elif packet_id in waiting:
                times.append((waiting.pop(packet_id), when))
        return times

    def _events(self, way: str, kinds: set[int]) -> list[tuple[float, int, int]]:
        events = []
        rest = b""
        for when, data in self._passed[way]:
            data = rest + data
            end = 0
            for head, body, end in packets(data):  # noqa: B007 - where the last whole packet ends
                kind = head >> 4
                if kind in kinds and (kind != PUBLISH or head & 6):
                    at = packet_id_at(data, body) if kind == PUBLISH else body
                    events.append((when, kind, int.from_bytes(data[at : at + 2], "big")))
            rest = data[end:]
        return events


async def main(port: int) -> None:
    """Serve until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    tap = Tap(port)
    server = await asyncio.start_server(tap.accept, HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await ended.wait()
    for passed, acknowledged in tap.times():
        print(f"{passed:.6f} {acknowledged:.6f}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
