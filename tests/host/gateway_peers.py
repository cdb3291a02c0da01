"""What the gateway's tests put at its other ends: a board on a pty, and the log read back as messages."""

import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from headwater.errors import HeadwaterError
from headwater.fmq.client import Client as FmqClient
from headwater.link.link import Link
from headwater.link.pump import Pump, Stream
from headwater.mqtt import packets_server
from headwater.mqtt.client import Client
from headwater.mqtt.packets import Packet
from headwater.mqtt.properties import Packet5
from headwater_host.capture import CaptureReader
from headwater_host.gateway.serial_port import new_session, ticks_ms
from tests.host.command import Running, running
from tools.lines import open_pty


class PtyLine:
    """The board's end of a serial line. ``path`` names the gateway's end, whenever the line is plugged in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = self._other = -1
        self.plug()

    def plug(self) -> None:
        """The line is there."""
        self.fd, self._other = open_pty(interrupts=False)
        self.path.unlink(missing_ok=True)
        self.path.symlink_to(os.ttyname(self._other))

    def unplug(self) -> None:
        """The line is gone, as when the cable is pulled."""
        if self.fd >= 0:
            os.close(self.fd)
            os.close(self._other)
            self.path.unlink()
            self.fd = -1

    def readinto(self, buf: bytearray | memoryview, n: int) -> int | None:
        try:
            data = os.read(self.fd, n)
        except BlockingIOError:
            return None
        buf[: len(data)] = data
        return len(data)

    def write(self, buf: bytes | bytearray | memoryview, off: int, n: int) -> int | None:
        try:
            return os.write(self.fd, memoryview(buf)[off : off + n]) or None
        except BlockingIOError:
            return None

    def close(self) -> None:
        """The line stays."""


class PtyDialer:
    """A dialer over a ``PtyLine``: what ``headwater_board.serial.Serial`` is on a board."""

    def __init__(self, line: PtyLine) -> None:
        self.line = line
        self.ticks_ms = ticks_ms
        self.reset()

    def reset(self) -> None:
        """As after a reset of the board: another session number, nothing known."""
        self.link = Link(new_session())
        self._pump = Pump(self.line, self.link, ticks_ms)
        self._stream = Stream(self._pump, self.link.channels[0])

    def open(self) -> Stream:
        if self._pump.error is not None:
            self._pump.attach(self.line)
        self._stream.channel.open()
        return self._stream

    def wait(self, ms: int) -> None:
        self._pump.pump()
        select.select([self.line.fd], [], [], min(ms, self.link.due(), 20) / 1000)


C = TypeVar("C", Client, FmqClient)


class _Board(Generic[C]):
    """A board that publishes numbers, and knows which were acknowledged."""

    make: Callable[..., C]

    def __init__(
        self, line: PtyLine, client_id: bytes = b"board-1", clean: bool = False, keep_alive: int = 5
    ) -> None:
        self.dialer = PtyDialer(line)
        self.client: C = type(self).make(
            self.dialer,
            client_id,
            clean_start=clean,
            response_ms=3000,
            keep_alive=keep_alive,
            outbox_size=1 << 18,
        )
        self.client.on_delivered = self._delivered
        self.under_way: dict[int, bytes] = {}
        self.acknowledged: list[bytes] = []

    def _delivered(self, packet_id: int) -> None:
        self.acknowledged.append(self.under_way.pop(packet_id))

    def connect(self, seconds: float = 200) -> None:
        """Connect, however often it takes."""
        begin = ticks_ms()
        while True:
            try:
                self.client.connect()
            except (HeadwaterError, OSError):
                if (ticks_ms() - begin) & 0x3FFFFFFF > seconds * 1000:
                    raise
                self.dialer.wait(50)
            else:
                return

    def publish(self, payload: bytes, qos: int, topic: bytes = b"t") -> int:
        """Publish; waits for room while the connection lasts. The status."""
        while True:
            status = self.client.publish(topic, payload, qos)
            if status >= 0 or self.client.poll():
                break
            self.dialer.wait(5)
        if status > 0:
            self.under_way[status] = payload
        return status


class PtyBoard(_Board[Client]):
    """It speaks MQTT."""

    make = Client


class FmqPtyBoard(_Board[FmqClient]):
    """It speaks FMQ."""

    make = FmqClient


@dataclass(frozen=True)
class Recorded:
    """A PUBLISH out of the log."""

    peer: str
    connection: int
    qos: int
    dup: bool
    retain: bool
    topic: str
    payload: bytes


def recorded(directory: Path) -> Iterator[Recorded]:
    """The log's messages; damage is an error, and so is a frame that is not one whole packet."""

    def damaged(problem: object) -> None:
        raise AssertionError(problem)

    for block in CaptureReader(directory, on_problem=damaged).blocks():
        for record in block.records():
            assert (record.direction, record.protocol) == (0, 1)
            assert record.version in (4, 5)
            p = Packet5(record.frame) if record.version == 5 else Packet(record.frame)
            read = packets_server.decode_packet(p, 0, len(record.frame))
            assert read == len(record.frame), record.frame[:50]
            yield Recorded(
                record.peer,
                record.connection,
                p.qos(),
                p.dup(),
                p.retain(),
                p.topic_text(),
                p.payload_bytes(),
            )


def gateway(
    directory: Path,
    *,
    serials: Iterable[object] = (),
    fmq_serials: Iterable[object] = (),
    broker: int | None = None,
    topics: Iterable[str] = (),
    hub_port: int | None = None,
    stats: bool = True,
) -> list[object]:
    """The arguments of a ``headwater gateway`` that records in ``directory / "log"``.

    ``broker``: the port of a broker on this machine; ``hub_port``: runs a hub, 0 on any port.
    """
    arguments: list[object] = ["gateway", "--capture", directory / "log"]
    arguments += ["--stats", directory / "stats.json"] if stats else []
    arguments += [part for port in serials for part in ("--serial", f"{port}:115200")]
    arguments += [part for port in fmq_serials for part in ("--fmq-serial", f"{port}:115200")]
    if broker is not None:
        arguments += ["--broker", f"127.0.0.1:{broker}"]
    arguments += [part for topic in topics for part in ("--topic", topic)]
    if hub_port is not None:
        arguments += ["--hub", directory / "hub.db", "--hub-port", hub_port]
    return arguments


def running_gateway(directory: Path, **options: Any) -> AbstractContextManager[Running]:
    """A ``headwater gateway`` with the options of ``gateway``, which is killed at the end if it still runs."""
    return running(*gateway(directory, **options), directory=directory)


def serve(
    board: PtyBoard | FmqPtyBoard, condition: Callable[[], object], what: str, seconds: float = 200
) -> None:
    """Poll the board, reconnecting it, until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        if board.client.poll():
            board.connect()
        board.dialer.wait(10)


def end(command: Running, *boards: PtyBoard | FmqPtyBoard, how: signal.Signals = signal.SIGTERM) -> int:
    """End the gateway while the boards go on with their side of the line: the exit code."""
    command.process.send_signal(how)
    deadline = time.monotonic() + 200
    while (code := command.process.poll()) is None:
        assert time.monotonic() < deadline, command.errors
        for board in boards:
            board.client.poll()
            board.dialer.wait(5)
    return code


def log_has(directory: Path, count: int) -> bool:
    try:
        return sum(block.header.records for block in CaptureReader(directory / "log").blocks()) >= count
    except FileNotFoundError:
        return False
