"""The job of a measured client, and its clock."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass

HOST = "127.0.0.1"
TOPIC = "bench/host"
TOPIC_BYTES = TOPIC.encode()
#: Topic of the last message of a QoS 0 run, at QoS 1: its acknowledgement shows that the broker has read all.
MARK = "bench/mark"
SIZE = 64
#: Messages in flight by QoS, where the client can set it. mosquitto disconnects at more than 20 at QoS 2.
WINDOWS = (1000, 1000, 20)
#: Messages between two readings of the clock.
GROUP = 64


@dataclass(frozen=True)
class Job:
    """One measurement: `task` is `publish` (for `ms` milliseconds) or `receive` (`messages` of them)."""

    client: str
    task: str
    qos: int
    port: int
    ms: int
    messages: int
    cpu: int


def payload(number: int) -> bytes:
    """Return the payload of a message: its number, and padding."""
    return b"%08d" % number + bytes(SIZE - 8)


def packet(qos: int, number: int) -> bytes:
    """Encode PUBLISH number n, from 0; packet identifiers are 1 to 65535."""
    name = len(TOPIC_BYTES).to_bytes(2, "big") + TOPIC_BYTES
    packet_id = (number % 65535 + 1).to_bytes(2, "big") if qos else b""
    body = name + packet_id + payload(number)
    return bytes((0x30 | qos << 1, len(body))) + body


class Clock:
    """Wall and CPU seconds from `start` to `stop`."""

    def start(self) -> None:
        self._began = time.perf_counter()
        self._used = _cpu()

    def stop(self) -> None:
        self.seconds = time.perf_counter() - self._began
        self.cpu_seconds = _cpu() - self._used


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Outgoing:
    """Payloads to publish for `ms` milliseconds from the first one; `count` is their number."""

    def __init__(self, ms: int) -> None:
        self._ms = ms
        self.count = 0

    def __iter__(self) -> Iterator[bytes]:
        body = payload(0)
        clock = time.perf_counter
        end = clock() + self._ms / 1000
        while clock() < end:
            for _ in range(GROUP):
                yield body
            self.count += GROUP


class Incoming:
    """Payloads that arrive. `take` stops the running clock at the last of `messages`."""

    def __init__(self, messages: int, clock: Clock) -> None:
        self._messages = messages
        self._clock = clock
        self._list: list[bytes] = []
        self.keep = self._list.append

    def take(self, body: bytes) -> bool:
        """Store a payload; return whether it was the last one."""
        self.keep(body)
        if len(self._list) < self._messages:
            return False
        self._clock.stop()
        return True

    def check(self) -> None:
        """Raise ValueError unless each message arrived once and in order."""
        for number, body in enumerate(self._list):
            if bytes(body) != payload(number):
                raise ValueError(f"message {number} arrived as {bytes(body)[:8]!r}, {len(body)} bytes")
