"""The way into the log on a disk that is held up: order, acknowledgements, and the gate that closes and opens."""

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from headwater.connection import IDLE, ONLINE
from headwater.mqtt.packets import Packet
from headwater.mqtt.v5 import ClientV5
from headwater_host.capture import CaptureReader
from headwater_host.client.mqtt.session import HostClientSession, HostServerSession
from headwater_host.client.session_config import SessionConfig
from headwater_host.gateway.recording import Acknowledgements, Recorder
from headwater_host.gateway.source import Source, offending_frame
from tests.host.clocks import loop_clock_stands
from tests.host.recording import Disk, recording
from tests.rows import each_row
from tests.waiting import until

LIMIT = 20_000


def log(directory: Path) -> AbstractAsyncContextManager[tuple[Recorder, Disk]]:
    return recording(directory, LIMIT, block_bytes=4000)


def frames(directory: Path) -> list[bytes]:
    return [record.frame for block in CaptureReader(directory).blocks() for record in block.records()]


async def test_what_the_log_refuses_is_kept_in_its_order(tmp_path: Path) -> None:
    taken = [b"%4d" % number + bytes(996) for number in range(100)]
    behind = [b"x", b"y", b"z"]

    async with log(tmp_path) as (recorder, disk):
        gates: list[tuple[bool, int]] = []
        durable: list[int] = []
        recorder.on_gate(lambda is_open: gates.append((is_open, recorder.records)))
        disk.go.clear()
        for number, frame in enumerate(taken, 1):
            assert recorder.record(7, "serial:x", frame) == number
            recorder.when_durable(number, lambda n=number: durable.append(n))  # type: ignore[misc]
            await asyncio.sleep(0)
        # The gate closed at half of the limit, and a good deal more was taken all the same.
        (first,) = gates
        assert first[0] is False
        assert LIMIT // 2 <= 1000 * first[1] < LIMIT
        assert recorder._overflow
        assert durable == []
        # One block is written, so that the log has room again: what has waited for it comes first all the same.
        disk.once()
        await until(lambda: recorder.durable)
        for frame in behind:
            recorder.record(7, "serial:x", frame)
        disk.go.set()
        await until(lambda: recorder.durable == 103)
        await until(lambda: recorder.is_open)
        await until(lambda: len(durable) == 100)
        assert durable == list(range(1, 101))
        assert [is_open for is_open, _ in gates] == [False, True]
        assert recorder.waiting == 0
        # And it goes on as before.
        recorder.record(7, "serial:x", b"last")
        assert recorder.is_open
        await until(lambda: recorder.durable == 104)
    assert frames(tmp_path) == [*taken, *behind, b"last"]


class Backlog:
    """A source that delivers what it has whenever it hears that the gate is open, and until it hears otherwise."""

    def __init__(self, recorder: Recorder, name: int, count: int):
        self._recorder = recorder
        self._left = [b"%2d %4d" % (name, number) + bytes(992) for number in range(count)]
        self._is_open = False
        #: What waited for the disk at most.
        self.most = 0
        recorder.on_gate(self._on_gate)

    def _on_gate(self, is_open: bool) -> None:
        self._is_open = is_open
        while self._is_open and self._left:
            recorder = self._recorder
            recorder.record(7, "serial:x", self._left.pop(0))
            self.most = max(self.most, recorder.waiting)


async def test_a_source_that_closes_the_gate_keeps_it_closed_for_those_behind_it(tmp_path: Path) -> None:
    async with log(tmp_path) as (recorder, disk):
        sources = [Backlog(recorder, name, 50) for name in range(20)]
        told: list[bool] = []
        recorder.on_gate(told.append)
        disk.go.clear()
        while recorder.is_open:
            recorder.record(7, "serial:x", bytes(1000))
        begun = recorder.records
        disk.go.set()
        await until(lambda: recorder.records == begun + 1000 and not recorder.waiting and recorder.is_open)
        # Half of the limit and the frame that reaches it, of 1,000 bytes each.
        assert max(source.most for source in sources) <= LIMIT // 2 // 1000 + 1
        # Each source hears the truth last.
        assert told[-1] is True
    assert len(frames(tmp_path)) > 1000
    assert len(set(frames(tmp_path))) == 1001


@pytest.mark.parametrize("qos", [1, 2])
async def test_acknowledgements_wait_for_the_disk(tmp_path: Path, qos: int) -> None:
    async with log(tmp_path) as (recorder, disk):
        session = HostServerSession()
        session.acks.automatic = False
        pushed: list[bytes] = []

        def push() -> None:
            n = session.out()
            while n > 0:
                pushed.append(bytes(session.out_buf[session.out_at : session.out_at + n]))
                session.sent(n)
                n = session.out()

        acknowledgements = Acknowledgements(recorder, session, push, push)

        def take(p: Packet) -> None:
            acknowledgements.add(recorder.record(1, "serial:x", p.payload_bytes()), p.packet_id, qos)

        session.on_message = take
        feed(session, "10 0f 0004 4d515454 04 00 0000 0003 616263")
        push()
        pushed.clear()
        disk.go.clear()
        for packet_id in range(1, 51):
            feed(session, f"{0x30 | qos << 1:02x} 06 0001 74 {packet_id:04x} 78")
        await asyncio.sleep(0.05)
        assert pushed == []
        assert len(acknowledgements) == 50
        disk.go.set()
        await until(lambda: not len(acknowledgements))
        answers = b"".join(pushed)
        kind = b"\x40\x02" if qos == 1 else b"\x50\x02"
        assert answers == b"".join(kind + packet_id.to_bytes(2, "big") for packet_id in range(1, 51))


@pytest.mark.parametrize("qos", [1, 2])
async def test_acknowledgements_wait_for_nothing_but_the_disk(tmp_path: Path, qos: int) -> None:
    async with log(tmp_path) as (recorder, _):
        session = HostServerSession()
        session.acks.automatic = False
        pushed = asyncio.Event()
        acknowledgements = Acknowledgements(recorder, session, pushed.set, pushed.set)
        session.on_message = lambda p: acknowledgements.add(
            recorder.record(1, "serial:x", p.payload_bytes()), p.packet_id, qos
        )
        feed(session, "10 0f 0004 4d515454 04 00 0000 0003 616263")
        with loop_clock_stands():
            for packet_id in range(1, 6):
                pushed.clear()
                feed(session, f"{0x30 | qos << 1:02x} 06 0001 74 {packet_id:04x} 78")
                await pushed.wait()
                assert recorder.durable == packet_id
                assert not len(acknowledgements)


async def test_a_connection_that_is_gone_gets_no_acknowledgement_of_an_older_one(tmp_path: Path) -> None:
    async with log(tmp_path) as (recorder, disk):
        session = HostServerSession()
        session.acks.automatic = False
        acknowledgements = Acknowledgements(recorder, session, lambda: None, lambda: None)
        session.on_message = lambda p: acknowledgements.add(
            recorder.record(1, "serial:x", p.payload_bytes()), p.packet_id, p.qos()
        )
        connect = "10 0f 0004 4d515454 04 00 0000 0003 616263"
        feed(session, connect)
        disk.go.clear()
        feed(session, "32 06 0001 74 0001 78")
        session.lost()
        feed(session, connect)
        before = session.tx_end
        disk.go.set()
        await until(lambda: not len(acknowledgements))
        assert session.tx_end == before


def feed(session: HostServerSession | HostClientSession, data: str) -> int:
    """Bytes from the other end; the first begin a connection."""
    if session.state == IDLE:
        if isinstance(session, HostServerSession):
            session.listen(0)
        else:
            assert session.connect(0) == 0
            while n := session.out():
                session.sent(n)
    content = bytes.fromhex(data)
    session.rx.window()
    session.rx.view[: len(content)] = content
    return session.feed(len(content))


@each_row("before", ["", "c000", "30 03 0001 61", "32 05 0001 61 0001", "30 8300 0001 61"])
@each_row(
    "bad, behind, kept",
    [
        ("30 05 0002 c328 41", "c000", True),
        ("30 8500 0002 c328 41", "", True),
        ("32 05 0001 61 0000", "c000", True),
        ("30 03 0002 61", "", True),
        ("3a 05 0001 23 0001", "", True),
        ("36 05 0001 61 0001", "", True),
        ("38 03 0001 61", "", True),
        ("00 02 0000", "", True),
        ("30 ffffffff 01", "", True),
        ("62 02 0000", "", False),
        ("82 06 0001 0001 61 03", "", False),
        ("20 02 0000", "", False),
    ],
)
def test_what_broke_the_connection_is_found_again(before: str, bad: str, behind: str, kept: bool) -> None:
    session = HostServerSession()
    feed(session, "10 0f 0004 4d515454 04 00 0000 0003 616263")
    assert feed(session, before + bad + behind) < 0
    assert offending_frame(session) == (bytes.fromhex(bad) if kept else b"")


@each_row("before", ["", "d000", "30 04 0001 61 00", "32 06 0001 61 0001 00"])
@each_row(
    "bad",
    [
        "30 06 0001 61 02 01 02",  # a value there is not
        "30 06 0001 61 02 11 00",  # a property of another packet
        "30 08 0001 61 04 01 00 01 00",  # twice
        "32 07 0001 61 0001 05 01",  # the block reaches beyond the packet
        "30 08 0001 61 80808080 01",  # its length has five bytes
        "30 06 0000 03 23 0001",  # an alias, none of which was offered
        "30 ffffffff 01",
    ],
)
def test_what_broke_a_connection_of_5_0_is_found_again(before: str, bad: str) -> None:
    session = HostClientSession(SessionConfig(client_id=b"c"), version=ClientV5())
    assert feed(session, "20 03 00 00 00") == 0
    assert session.state == ONLINE
    assert feed(session, before + bad) < 0
    assert offending_frame(session) == bytes.fromhex(bad)


async def test_records_have_the_version_of_their_connection(tmp_path: Path) -> None:
    async with log(tmp_path) as (recorder, _):
        source = Source(recorder, "p")
        server, client = (
            HostServerSession(),
            HostClientSession(SessionConfig(client_id=b"c"), version=ClientV5()),
        )
        server.on_message = client.on_message = source.record_publish
        feed(server, "10 0f 0004 4d515454 04 00 0000 0003 616263")
        feed(server, "30 04 0001 61 62")
        feed(client, "20 03 00 00 00")
        feed(client, "30 05 0001 61 00 62")
        assert feed(client, "30 06 0001 61 02 01 02") < 0
        source.record_malformed(client)
    records = [record for block in CaptureReader(tmp_path).blocks() for record in block.records()]
    assert [record.version for record in records] == [4, 5, 5]


def test_a_connect_that_is_wrong_is_not_kept() -> None:
    session = HostServerSession()
    assert feed(session, "10 0f 0004 4d515454 04 01 0000 0003 616263 c000") < 0
    assert offending_frame(session) == b""


def test_garbage_is_kept_up_to_a_limit() -> None:
    session = HostServerSession()
    feed(session, "10 0f 0004 4d515454 04 00 0000 0003 616263")
    garbage = b"\xff" * 10_000
    assert feed(session, garbage.hex()) < 0
    assert offending_frame(session) == garbage[:4096]
