"""The gateway's hub: what its clients publish is in the log, and answered when hub and log have it on disk."""

import asyncio
import contextlib
import errno
import json
import os
import random
import re
import resource
from collections.abc import AsyncIterator, Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headwater.fmq import spec
from headwater_host.capture import CaptureReader, verify
from headwater_host.fmq.hashes import hash_of
from headwater_host.gateway.hub_source import HubSource
from headwater_host.gateway.recording import Recorder
from headwater_host.gateway.source import SOURCE_STATISTICS
from headwater_host.hub.access import ANY, Rule
from headwater_host.hub.config import HubConfig
from headwater_host.hub.storage import Store, writer
from headwater_host.inspect.records import decoded
from tests.host.clocks import loop_clock_stands
from tests.host.command import Running, headwater, running
from tests.host.gateway_peers import gateway, running_gateway
from tests.host.hub_client import Got, Peer, abort_clients, config, new_id, until
from tests.host.hub_storage import writing
from tests.host.recording import Disk, recording


class Message(NamedTuple):
    peer: str
    qos: int
    dup: bool
    topic: str
    payload: bytes


def frames(directory: Path) -> list[bytes]:
    return [record.frame for record in CaptureReader(directory / "log").records()]


def messages(directory: Path) -> list[Message]:
    """The log's messages, all of which are FMQ's."""
    found = []
    for record in CaptureReader(directory / "log").records():
        assert (record.direction, record.protocol, record.version) == (0, 2, 0)
        said = decoded(record)
        assert said is not None
        assert said["type"] == "PUBLISH"
        payload = bytes.fromhex(said["payload"])
        found.append(Message(record.peer, said["qos"], said["dup"], said["topic"], payload))
    return found


@contextlib.asynccontextmanager
async def hub_source(
    directory: Path, settings: HubConfig | None = None, **options: Any
) -> AsyncIterator[tuple[HubSource, Recorder, Disk]]:
    """A hub that records in a log, and the log's disk."""
    async with recording(directory / "log", **options) as (recorder, disk):
        source = HubSource(recorder, settings or config(directory))
        await source.start()
        try:
            yield source, recorder, disk
        finally:
            disk.go.set()
            abort_clients(source.hub)
            await source.stop()


async def test_what_is_published_is_recorded_as_it_came(tmp_path: Path) -> None:
    async with hub_source(tmp_path) as (source, recorder, _):
        peer = await Peer.login(source.hub, "board")
        for qos in range(3):
            await peer.send_message("a/b", b"%d" % qos, qos, tags=("x",))
        hashed = peer.send(spec.PUBLISH, (hash_of("a/b"), b"\xd0", b"by hash"), 1 << 1)
        assert (await peer.answer(hashed)).code == 0
        other = await Peer.login(source.hub)
        await other.send_message("c", b"\xff", 1, retain=True)
        status = source.status()
        assert status.keys() == SOURCE_STATISTICS.keys() - {"link", "duplicates", "protocol", "full_windows"}
        assert status["records"] == {"qos0": 1, "qos1": 3, "qos2": 1}
        assert (status["clients"], status["connections"]) == (2, 2)
        assert status["bytes"] == recorder.bytes
        assert status["storage"]["error"] is None

    found = messages(tmp_path)
    assert [(m.topic, m.payload, m.qos) for m in found] == [
        ("a/b", b"0", 0),
        ("a/b", b"1", 1),
        ("a/b", b"2", 2),
        (f"#{hash_of('a/b'):032x}", b"by hash", 1),
        ("c", b"\xff", 1),
    ]
    assert all(re.fullmatch(r"fmq:127\.0\.0\.1:\d+", m.peer) for m in found)
    assert len({m.peer for m in found}) == 2
    records = list(CaptureReader(tmp_path / "log").records())
    assert len({record.connection for record in records}) == 2


async def test_an_answer_waits_for_nothing_but_the_disks(tmp_path: Path) -> None:
    async with hub_source(tmp_path) as (source, recorder, _):
        peer = await Peer.login(source.hub, "board")
        with loop_clock_stands():
            for number in range(5):
                await peer.send_message("a/b", b"%d" % number, 1 + number % 2)
                assert recorder.durable >= number + 1


async def test_registered_topics_are_recorded(tmp_path: Path) -> None:
    """So the log knows a topic that messages give by its hash alone; it does before that is said to be there."""
    async with hub_source(tmp_path) as (source, recorder, disk):
        disk.go.clear()
        peer = await Peer.login(source.hub, "board")
        ident = peer.send(spec.REGISTER, (b"a/b", 2))
        await until(lambda: recorder.records == 1)
        await peer.ping()
        assert not peer.got
        disk.go.set()
        assert (await peer.answer(ident)).code == 0
        assert (await peer.ask(spec.REGISTER, (b"a/b", 1))).code
        assert (await peer.ask(spec.REGISTER, (b"$own",))).code
        status = source.status()
        assert status["records"] == {"qos0": 0, "qos1": 0, "qos2": 0}
        assert status["bytes"] == recorder.bytes

    (record,) = CaptureReader(tmp_path / "log").records()
    said = decoded(record)
    assert said is not None
    assert said["type"] == "REGISTER"
    assert bytes.fromhex(said["body"]).startswith(b"\x11\x03a/b")


async def test_what_is_refused_is_not_recorded(tmp_path: Path) -> None:
    rules = (
        Rule(types=("PUBLISH",), topics=("secret",), deny=ANY),
        Rule(allow=(ip_network("127.0.0.0/8"),)),
    )

    settings = config(tmp_path, rules=rules, auto_register=False)
    async with hub_source(tmp_path, settings) as (source, recorder, _):
        peer = await Peer.login(source.hub)
        for topic in ("secret", "$own", "unknown", "a/+"):
            assert (await peer.answer(peer.publish(topic, b"x", 1))).code
        assert recorder.records == 0
        stranger = await Peer.open(source.hub)
        stranger.raw(b"GET / HTTP/1.1\r\n\r\n" + bytes(5000))
        await stranger.ended()
        assert (recorder.records, source.malformed) == (0, 0)


async def test_a_message_that_the_hub_knows_is_recorded_again(tmp_path: Path) -> None:
    """The hub may have been killed when it had a message on disk and the log did not."""
    async with hub_source(tmp_path) as (source, _, _):
        peer = await Peer.login(source.hub, "board")
        ident = await peer.send_message("t", b"once", 1)
        await peer.send_message("t", b"once", 1, ident=ident, dup=True)
        assert source.hub.broker.store.duplicates == 1

    assert [(m.payload, m.dup) for m in messages(tmp_path)] == [(b"once", False), (b"once", True)]


async def test_a_will_is_recorded(tmp_path: Path) -> None:
    async with hub_source(tmp_path) as (source, recorder, _):
        peer = await Peer.login(source.hub, "board", will=(b"gone/board", 1, True, b"by itself"))
        peer.abort()
        await until(lambda: recorder.records)

    assert messages(tmp_path) == [Message("fmq:hub", 1, False, "gone/board", b"by itself")]


async def test_what_breaks_the_protocol_is_kept_for_the_quarantine(tmp_path: Path) -> None:
    bad_body = b"\x30" + new_id(spec.PUBLISH) + b"\x04\x11\x02\xc3\x28"
    no_frame = b"\x40" + bytes(9000)

    async with hub_source(tmp_path) as (source, _, _):
        for bad in (bad_body + b"what comes behind it", no_frame):
            peer = await Peer.login(source.hub)
            peer.raw(bad)
            assert (await peer.ended())[-1].code == 0x81
        assert source.malformed == 2

    assert frames(tmp_path) == [bad_body, no_frame[:4096]]


async def test_no_answer_before_the_log_has_it(tmp_path: Path) -> None:
    async with hub_source(tmp_path) as (source, recorder, disk):
        disk.go.clear()
        store = source.hub.broker.store
        peer = await Peer.login(source.hub)
        sent = [peer.publish("t", b"%d" % n, 1 + n % 2) for n in range(10)]
        await until(lambda: recorder.records == 10)
        stored = asyncio.Event()
        store.after(stored.set)
        await asyncio.wait_for(stored.wait(), 200)
        await peer.ping()
        assert [got.name for got in peer.got] == []
        disk.go.set()
        # In the order in which they came.
        assert [(await peer.next()).id for _ in sent] == sent


async def test_no_answer_before_the_hub_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "RETRY", 0.01)

    async with hub_source(tmp_path) as (source, recorder, _):
        store = source.hub.broker.store
        peer = await Peer.login(source.hub)
        await peer.send_message("t", b"first", 1)
        writing(store).execute("PRAGMA max_page_count = 1")
        sent = [peer.publish("t", bytes(5000), 1 + n % 2) for n in range(10)]
        await until(lambda: store.error and recorder.durable == 11)
        source.check_storage()
        assert (source.state, source.status()["storage"]["error"]) == ("failing", "database or disk is full")
        await peer.ping()
        assert peer.got == []
        writing(store).execute("PRAGMA max_page_count = 1000000")
        assert [(await peer.next()).id for _ in sent] == sent
        source.check_storage()
        assert (source.state, source.status()["storage"]["error"]) == ("listening", None)


async def test_who_waits_for_a_log_that_cannot_be_written_hears_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater_host.hub.broker.PATIENCE", 0.3)
    async with hub_source(tmp_path) as (source, recorder, disk):
        reader, peer = await Peer.login(source.hub), await Peer.login(source.hub, "a", clean=False)
        await reader.subscribe("t")
        await peer.send_message("t", b"first")
        disk.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sent = peer.publish("t", b"second", 1)
        *_, last = await peer.ended()
        assert (last.id, last.code) == (peer.auth_id, 0x97)
        assert last.values[1] == "the hub cannot store anything: No space left on device"
        refusal = await (await Peer.open(source.hub)).auth("b")
        assert (refusal.code, refusal.values[1]) == (0x97, last.values[1])
        # Who waits for nothing stays.
        assert [(await reader.next()).payload for _ in range(2)] == [b"first", b"second"]
        await reader.ping()
        disk.error = None

        def mended() -> bool:
            recorder.check_recovered()
            return recorder.error is None

        await until(mended)
        await until(lambda: not source.hub.broker.unable)
        peer = await Peer.login(source.hub, "a", clean=False)
        await peer.send_message("t", b"second", ident=sent, dup=True)
        await reader.ping()
        assert not reader.got

    assert [message.payload for message in messages(tmp_path)] == [b"first", b"second", b"second"]


async def test_nothing_is_taken_while_too_much_waits_for_the_log(tmp_path: Path) -> None:
    async with hub_source(tmp_path, limit_bytes=20_000, block_bytes=4000) as (source, recorder, disk):
        disk.go.clear()
        broker = source.hub.broker
        peer = await Peer.login(source.hub, keep_alive=60)
        (connection,) = broker.connections
        sent = [peer.publish("t", bytes(1000), 1) for _ in range(200)]
        await until(lambda: broker.paused)
        taken = recorder.records
        assert taken < 20
        # Nobody is let in, and nobody who cannot be heard is held for silent.
        stranger = await Peer.open(source.hub)
        refusal = await stranger.auth()
        assert refusal.code == 0x97
        assert "too much waits for the disk" in refusal.values[1]
        await stranger.ended()
        late = await Peer.open(source.hub)
        connection.heard -= 1000
        broker._look(connection, broker.loop.time())
        assert connection.closed is None
        assert recorder.records == taken
        disk.go.set()
        assert [(await peer.next()).id for _ in sent] == sent
        await until(lambda: not broker.paused)
        assert (await late.auth()).code == 0
        assert connection.heard > broker.loop.time() - 900

    assert len(messages(tmp_path)) == 200


# ---- the process -----------------------------------------------------------------------------------------------------


def port_of(command: Running) -> int:
    command.wait_for("listening on")
    found = re.search(r"fmq:hub: listening on 127\.0\.0\.1, port (\d+)", command.errors)
    assert found is not None
    return int(found[1])


class Publisher:
    """Publishes numbers at QoS 1 and 2, and again what was not answered, over as many connections as it takes."""

    def __init__(self) -> None:
        self.count = 0
        self.waiting: dict[bytes, int] = {}
        self.answered: set[int] = set()

    async def talk(self, port: int, more: Callable[[], bool]) -> None:
        """Over one connection, as long as ``more`` says and it lasts."""
        peer = await Peer.login(("127.0.0.1", port), "publisher", clean=False)
        for ident, number in self.waiting.items():
            self._send(peer, ident, number, again=True)
        while more() or self.waiting:
            while more() and len(self.waiting) < 20:
                ident = new_id(spec.PUBLISH, peer.process)
                number, self.count = self.count, self.count + 1
                self.waiting[ident] = number
                self._send(peer, ident, number)
            self._take(await peer.next())
        await peer.leave()

    @staticmethod
    def _send(peer: Peer, ident: bytes, number: int, *, again: bool = False) -> None:
        peer.publish("numbers", b"%d" % number, 1 + number % 2, ident=ident, dup=again)

    def _take(self, got: Got) -> None:
        if got.name in ("ACK", "PUBREC") and got.id in self.waiting:
            assert got.code == 0
            self.answered.add(self.waiting.pop(got.id))


def numbers_of_hub(directory: Path) -> list[int]:
    store = Store.open(directory / "hub.db")
    found = [int(message.payload.lstrip(b"0") or b"0") for message in store.read("numbers", 0, 0, 10**6)]
    asyncio.run(store.close())
    return found


def numbers_of_log(directory: Path) -> set[int]:
    return {int(m.payload.lstrip(b"0") or b"0") for m in messages(directory)}


def test_what_was_acknowledged_is_in_log_and_hub_when_the_gateway_is_killed(tmp_path: Path) -> None:
    publisher = Publisher()
    fate = random.Random(13)
    for _ in range(5):
        with running_gateway(tmp_path, hub_port=0) as command:
            port = port_of(command)
            enough = len(publisher.answered) + fate.randrange(20, 200)

            def kill(command: Running = command, enough: int = enough) -> bool:
                if len(publisher.answered) >= enough:
                    command.process.kill()
                return True

            with contextlib.suppress(EOFError, ConnectionError):
                asyncio.run(publisher.talk(port, kill))
            command.wait()
        assert publisher.waiting
        assert publisher.answered <= numbers_of_log(tmp_path)
        assert publisher.answered <= set(numbers_of_hub(tmp_path))
    with running_gateway(tmp_path, hub_port=0) as command:
        asyncio.run(publisher.talk(port_of(command), lambda: False))
        assert command.end() == 0
    everything = list(range(publisher.count))
    assert sorted(numbers_of_hub(tmp_path)) == everything
    assert sorted(numbers_of_log(tmp_path)) == everything
    assert not verify(tmp_path / "log").damaged


def test_what_has_come_is_answered_when_the_gateway_ends(tmp_path: Path) -> None:
    publisher = Publisher()
    ended = False
    with running_gateway(tmp_path, hub_port=0) as command:

        def end() -> bool:
            nonlocal ended
            if len(publisher.answered) >= 100 and not ended:
                ended = True
                command.process.terminate()
            return True

        with contextlib.suppress(EOFError, ConnectionError):
            asyncio.run(publisher.talk(port_of(command), end))
        assert command.wait() == 0
        assert "Traceback" not in command.errors
    assert len(publisher.answered) >= 100
    assert numbers_of_log(tmp_path) == set(numbers_of_hub(tmp_path))
    assert publisher.answered <= numbers_of_log(tmp_path)


#: The log is to be larger than everything else that the gateway writes while its files cannot grow.
FILLER = b"%065536d" % 0


def test_a_full_disk_stops_acknowledgements_and_loses_nothing(tmp_path: Path) -> None:
    with running_gateway(tmp_path, hub_port=0) as command:
        address = ("127.0.0.1", port_of(command))

        async def scenario() -> None:
            peer = await Peer.login(address)
            await peer.send_message("numbers", FILLER, 1)
            (segment,) = (tmp_path / "log").glob("segment-*.hwc")
            command.limit_files(segment.stat().st_size + 20)
            sent = [peer.publish("numbers", b"%d" % n, 1 + n % 2) for n in range(1, 20)]
            await until(lambda: "nothing is acknowledged" in command.errors)
            await until(lambda: "the hub's storage: nothing is acknowledged" in command.errors)
            await peer.ping()
            assert peer.got == []
            command.limit_files(resource.RLIM_INFINITY)
            assert [(await peer.next()).id for _ in sent] == sent
            await peer.leave()

        asyncio.run(scenario())
        command.wait_for("the hub's storage can be written again")
        stats = json.loads((tmp_path / "stats.json").read_text())
        assert [source["peer"] for source in stats["sources"]] == ["fmq:hub"]
        assert command.end() == 0
    assert numbers_of_log(tmp_path) == set(range(20))
    assert sorted(numbers_of_hub(tmp_path)) == list(range(20))


def test_a_hub_that_cannot_start_is_said(tmp_path: Path) -> None:
    (tmp_path / "hub.db").write_text("something else " * 1000)
    shown = headwater(*gateway(tmp_path, hub_port=0))
    assert shown.returncode == 1
    assert b"the hub cannot start: " in shown.stderr
    assert b"is no hub's storage" in shown.stderr
    (tmp_path / "hub.db").unlink()
    with running_gateway(tmp_path, hub_port=0) as command:
        other = tmp_path / "other"
        other.mkdir()
        shown = headwater(*gateway(other, hub_port=port_of(command)))
        assert shown.returncode == 1
        says = f"the hub cannot start: cannot listen on 127.0.0.1, port {port_of(command)}: Address already in use\n"
        assert says.encode() in shown.stderr
        assert command.end() == 0
    # What could not start has given the log back.
    with running(*gateway(other, hub_port=0), directory=other) as command:
        port_of(command)
        assert command.end() == 0
