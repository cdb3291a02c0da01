"""What the gateway's record says of a message with DUP: by the state of its receiver, and never by DUP alone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headwater_host.capture import CaptureReader, Record
from headwater_host.capture.format import DUPLICATE, ORIGINAL, UNCERTAIN, UNMARKED
from headwater_host.client.reconnect import Reconnect
from headwater_host.gateway import broker_source
from headwater_host.gateway.broker_source import BrokerSource
from headwater_host.gateway.config import BrokerConfig
from headwater_host.gateway.recording import Recorder
from headwater_spark.pipeline import run_on
from headwater_spark.tables import MESSAGES
from tests.host.mqtt_server import HOST, packet, speak
from tests.host.recording import Disk, recording, task_of
from tests.rows import each_row
from tests.spark.logs import InProcess, ack, publish, rows
from tests.waiting import PATIENCE_S, until

CONNECT, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, DISCONNECT = 1, 4, 5, 6, 7, 8, 14


@dataclass
class Broker:
    """A broker whose every packet the test says."""

    session_present: bool = False
    reader: asyncio.StreamReader = field(default_factory=asyncio.StreamReader)
    writer: asyncio.StreamWriter | None = None
    level: int = 4
    packets: "asyncio.Queue[tuple[int, bytes]]" = field(default_factory=asyncio.Queue)
    connected: asyncio.Event = field(default_factory=asyncio.Event)

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until it is lost."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head, body = await packet(reader)
                kind = head[0] >> 4
                if kind == CONNECT:
                    self.level = body[6]
                    none = b"\0" * (self.level == 5)
                    size = 2 + len(none)
                    writer.write(bytes([0x20, size, self.session_present, 0]) + none)
                    self.writer = writer
                    self.connected.set()
                elif kind == SUBSCRIBE:
                    none = b"\0" * (self.level == 5)
                    writer.write(bytes([0x90, 3 + len(none)]) + body[:2] + none + b"\2")
                else:
                    self.packets.put_nowait((kind, body))

    def send(self, payload: str, qos: int = 1, packet_id: int = 1, dup: bool = False) -> None:
        """PUBLISH."""
        block = b"\0" * (self.level == 5)
        self.write(publish("t", payload, qos=qos, packet_id=packet_id, dup=dup, block=block))

    def write(self, data: bytes) -> None:
        assert self.writer is not None
        self.writer.write(data)

    async def answer(self, kind: int, packet_id: int = 1) -> None:
        """Wait for an acknowledgement."""
        found, body = await asyncio.wait_for(self.packets.get(), PATIENCE_S)
        assert (found, body[:2]) == (kind, packet_id.to_bytes(2, "big"))

    async def again(self, session_present: bool) -> None:
        """Cut the connection, and take the next one."""
        assert self.writer is not None
        self.session_present = session_present
        self.connected.clear()
        self.writer.transport.abort()
        await self.is_connected()

    async def is_connected(self) -> None:
        await asyncio.wait_for(self.connected.wait(), PATIENCE_S)


@contextlib.asynccontextmanager
async def gateway_of(
    log: Path, session_present: bool = False
) -> AsyncIterator[tuple[Broker, Disk, Recorder]]:
    """A gateway's source on a broker, and a disk; a new process each time, as far as the receiver's state goes."""
    other_end = Broker(session_present)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            broker_source, "RECONNECT", Reconnect(first=0.01, longest=0.01, refused=0.01, at_start=True)
        )
        async with (
            recording(log, block_bytes=1 << 16) as (recorder, disk),
            speak(other_end.talk) as port,
            task_of(BrokerSource(recorder, BrokerConfig(HOST, port, (("t", 2),), "gateway")).run()),
        ):
            await other_end.is_connected()
            yield other_end, disk, recorder
            disk.go.set()
            await recorder.capture.flush()


def records(directory: Path) -> list[Record]:
    return [record for block in CaptureReader(directory).blocks() for record in block.records()]


# What happens, step by step: a message at QoS 1 or 2 comes, or comes with DUP, or another one does with its id and DUP;
# the disk is held and let go, and with that the answers; the connection is lost, and the session kept or not.
TABLE = {
    "without DUP": (["new", "new"], [ORIGINAL, ORIGINAL]),
    "at QoS 0": (["qos 0"], [UNMARKED]),
    "never seen": (["dup"], [UNCERTAIN]),
    "not answered": (["hold", "new", "dup"], [ORIGINAL, DUPLICATE]),
    "not answered, of the connection before": (["hold", "new", "cut", "dup"], [ORIGINAL, DUPLICATE]),
    "not answered, twice": (["hold", "new", "cut", "dup", "cut", "dup"], [ORIGINAL, DUPLICATE, DUPLICATE]),
    "on disk only when the connection was lost": (
        ["hold", "new", "cut", "go", "dup"],
        [ORIGINAL, DUPLICATE],
    ),
    "not answered, another content": (["hold", "new", "cut", "other"], [ORIGINAL, ORIGINAL]),
    "not answered, another session": (["hold", "new", "lose", "dup"], [ORIGINAL, UNCERTAIN]),
    "not answered, a session of another between": (
        ["hold", "new", "lose", "cut", "dup"],
        [ORIGINAL, UNCERTAIN],
    ),
    "not answered, without DUP": (["hold", "new", "cut", "new"], [ORIGINAL, ORIGINAL]),
    "answered": (["new", "answer", "dup"], [ORIGINAL, ORIGINAL]),
    "answered over the connection before": (["new", "answer", "cut", "dup"], [ORIGINAL, UNCERTAIN]),
    "a duplicate was answered": (
        ["hold", "new", "cut", "dup", "go", "answer", "dup"],
        [ORIGINAL, DUPLICATE, ORIGINAL],
    ),
    "QoS 2, not released": (["qos 2", "received", "dup 2", "received"], [ORIGINAL]),
    "QoS 2, not released before the connection was lost": (
        ["qos 2", "received", "cut", "dup 2", "received"],
        [ORIGINAL],
    ),
    "QoS 2, released": (["qos 2", "received", "release", "dup 2"], [ORIGINAL, ORIGINAL]),
    "QoS 2, released before the connection was lost": (
        ["qos 2", "received", "release", "cut", "dup 2"],
        [ORIGINAL, ORIGINAL],
    ),
    "QoS 2, never seen": (["dup 2"], [UNCERTAIN]),
    "QoS 2, another session": (["qos 2", "received", "lose", "dup 2"], [ORIGINAL, UNCERTAIN]),
    "QoS 1 behind QoS 2": (["qos 2", "received", "release", "dup"], [ORIGINAL, ORIGINAL]),
    "QoS 2 behind QoS 1": (["new", "answer", "cut", "dup 2"], [ORIGINAL, ORIGINAL]),
}


@each_row("steps, marks", TABLE.values(), ids=TABLE)
async def test_states_of_the_receiver(tmp_path: Path, steps: list[str], marks: list[int]) -> None:
    async with gateway_of(tmp_path) as (other, disk, recorder):
        for step in steps:
            before = recorder.records
            match step:
                case "new" | "dup" | "other":
                    other.send("y" if step == "other" else "x", dup=step != "new")
                    await until(lambda before=before: recorder.records > before)  # type: ignore[misc]
                case "qos 0":
                    other.send("x", qos=0)
                case "qos 2" | "dup 2":
                    other.send("x", qos=2, dup=step == "dup 2")
                case "hold":
                    disk.go.clear()
                case "go":
                    disk.go.set()
                    await until(lambda: not recorder.waiting)
                case "answer":
                    await other.answer(PUBACK)
                case "received":
                    await other.answer(PUBREC)
                case "release":
                    other.write(ack(PUBREL, 1))
                    await other.answer(PUBCOMP)
                case "cut" | "lose":
                    await other.again(step == "cut")
        await until(lambda: recorder.records == len(marks))
    found = records(tmp_path)
    assert [record.mark for record in found] == marks
    assert {record.first_ns for record in found if record.mark == DUPLICATE} <= {found[0].time_ns}
    assert all(record.first_ns == 0 for record in found if record.mark != DUPLICATE)


async def test_seventeen_messages_are_seventeen_rows(tmp_path: Path) -> None:
    """A broker gives sixteen ids out, over and over; the connection is lost with the seventeenth message under way."""
    async with gateway_of(tmp_path / "log") as (other, _, _):
        for packet_id in range(1, 17):
            other.send("20.5", packet_id=packet_id)
            await other.answer(PUBACK, packet_id)
        await other.again(True)
        other.send("20.5", packet_id=1, dup=True)
        await other.answer(PUBACK, 1)
    run_on(InProcess(), tmp_path / "log", tmp_path / "out")
    found = rows(tmp_path / "out", MESSAGES, "payload", "copies", "possible_duplicate")
    assert found == [(b"20.5", 1, False)] * 16 + [(b"20.5", 1, True)]


async def test_what_was_not_acknowledged_comes_again_and_is_one_row(tmp_path: Path) -> None:
    async with gateway_of(tmp_path / "log") as (other, disk, recorder):
        disk.go.clear()
        for packet_id in range(1, 17):
            other.send("20.5", packet_id=packet_id)
        await until(lambda: recorder.records == 16)
        await other.again(True)
        for packet_id in range(1, 17):
            other.send("20.5", packet_id=packet_id, dup=True)
        await until(lambda: recorder.records == 32)
        disk.go.set()
        for packet_id in range(1, 17):
            await other.answer(PUBACK, packet_id)
    result = run_on(InProcess(), tmp_path / "log", tmp_path / "out", partition_bytes=1)
    assert (
        rows(tmp_path / "out", MESSAGES, "payload", "copies", "possible_duplicate")
        == [(b"20.5", 2, False)] * 16
    )
    assert (result.duplicates, result.possible_duplicates) == (16, 0)


async def test_a_retransmission_does_not_acknowledge_the_next_message_with_its_id(tmp_path: Path) -> None:
    """A broker of 3.1.1 may retransmit over the same connection, and reuse the packet id after the first PUBACK."""
    async with gateway_of(tmp_path) as (other, disk, recorder):
        disk.go.clear()
        other.send("x")
        # Its block is at the disk; the retransmission goes into the next block, the other message into a third.
        await until(lambda: recorder.records == 1 and not recorder.capture._current.builder.count)
        other.send("x", dup=True)
        await until(lambda: recorder.records == 2)
        disk.once()
        await until(lambda: recorder.durable == 1 and not recorder.capture._current.builder.count)
        other.send("y")
        await until(lambda: recorder.records == 3)
        disk.once()
        await until(lambda: recorder.durable == 2)
        # PUBCOMP is sent at once: a PUBACK from before would arrive first.
        other.write(ack(PUBREL, 9))
        await other.answer(PUBCOMP, 9)
        disk.go.set()
        await other.answer(PUBACK)
        await until(lambda: not recorder.waiting)
        other.write(ack(PUBREL, 9))
        await other.answer(PUBCOMP, 9)
    assert [record.mark for record in records(tmp_path)] == [ORIGINAL, DUPLICATE, ORIGINAL]


async def test_after_a_restart_of_the_gateway_nobody_knows(tmp_path: Path) -> None:
    async with gateway_of(tmp_path / "log") as (other, _, _):
        other.send("20.5")
        await other.answer(PUBACK)
    async with gateway_of(tmp_path / "log", session_present=True) as (other, _, _):
        other.send("20.5", dup=True)
        await other.answer(PUBACK)
    assert [record.mark for record in records(tmp_path / "log")] == [ORIGINAL, UNCERTAIN]
    run_on(InProcess(), tmp_path / "log", tmp_path / "out")
    assert rows(tmp_path / "out", MESSAGES, "copies", "possible_duplicate") == [(1, False), (1, True)]
