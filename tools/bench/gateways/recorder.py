"""A subscriber that appends payloads to a file, syncs it, and then acknowledges: the gateway's reference.

`python -m tools.bench.gateways.recorder PORT TOPIC QOS FILE [RECEIVE_MAXIMUM]`: MQTT 5.0 with a RECEIVE_MAXIMUM,
otherwise 3.1.1. One sync covers what arrived during the previous one, as in the gateway. It prints `subscribed`,
and on SIGTERM the receive time of each message in ns.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator

HOST = "127.0.0.1"
PUBLISH, PUBREL, SUBACK = 3, 6, 9


def packets(data: bytes | bytearray) -> Iterator[tuple[int, int, int]]:
    """Yield the first byte, the start of the body and the end of each complete packet."""
    at, size = 0, len(data)
    while at + 1 < size:
        length = shift = 0
        body = at + 1
        while True:
            if body == size:
                return
            byte = data[body]
            body += 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if body + length > size:
            return
        yield data[at], body, body + length
        at = body + length


def packet_id_at(data: bytes | bytearray, body: int) -> int:
    """Return the offset of the packet identifier of a PUBLISH at QoS 1 or 2."""
    return body + 2 + int.from_bytes(data[body : body + 2], "big")


class Recorder(asyncio.Protocol):
    """The subscriber."""

    def __init__(self, fd: int, topic: str, qos: int, receive_maximum: int) -> None:
        self._fd = fd
        self._topic = topic.encode()
        self._qos = qos
        self._receive_maximum = receive_maximum
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self._payloads: list[bytes] = []
        self._answers: list[bytes] = []
        self._writing = False
        self.times: list[int] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send CONNECT and SUBSCRIBE without waiting for CONNACK."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        five = self._receive_maximum > 0
        more = b"\x03\x21" + self._receive_maximum.to_bytes(2, "big") if five else b""
        connect = b"\x00\x04MQTT" + bytes((5 if five else 4, 2, 0, 60)) + more + b"\x00\x05bench"
        name = len(self._topic).to_bytes(2, "big") + self._topic
        subscribe = b"\x00\x01" + (b"\x00" if five else b"") + name + bytes((self._qos,))
        transport.write(bytes((0x10, len(connect))) + connect + bytes((0x82, len(subscribe))) + subscribe)

    def data_received(self, data: bytes) -> None:
        """Process the messages of one read; write them unless a sync is running."""
        now = time.time_ns()
        data = self._rest + data
        end = 0
        for head, body, end in packets(data):
            kind = head >> 4
            if kind == PUBLISH:
                self._take(data, head, body, end)
                self.times.append(now)
            elif kind == PUBREL:
                self._transport.write(b"\x70\x02" + data[body : body + 2])
            elif kind == SUBACK:
                print("subscribed", flush=True)
        self._rest = data[end:]
        if self._payloads and not self._writing:
            self._writing = True
            self._loop.call_soon(self._write)

    def _take(self, data: bytes, head: int, body: int, end: int) -> None:
        at = packet_id_at(data, body)
        if head & 6:
            self._answers.append((b"\x40\x02" if head & 2 else b"\x50\x02") + data[at : at + 2])
            at += 2
        if self._receive_maximum:
            at += 1 + data[at]
        self._payloads.append(data[at:end])

    def _write(self) -> None:
        payloads, self._payloads = self._payloads, []
        answers, self._answers = self._answers, []
        self._loop.run_in_executor(None, self._sync, payloads, answers)

    def _sync(self, payloads: list[bytes], answers: list[bytes]) -> None:
        os.write(self._fd, b"".join(payloads))
        os.fdatasync(self._fd)
        self._loop.call_soon_threadsafe(self._done, answers)

    def _done(self, answers: list[bytes]) -> None:
        if answers:
            self._transport.write(b"".join(answers))
        self._writing = bool(self._payloads)
        if self._writing:
            self._write()


async def main(port: int, topic: str, qos: int, file: str, receive_maximum: int) -> None:
    """Serve until SIGTERM."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    _, recorder = await loop.create_connection(lambda: Recorder(fd, topic, qos, receive_maximum), HOST, port)
    await ended.wait()
    print(*recorder.times)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], int([*sys.argv, "0"][5])))
