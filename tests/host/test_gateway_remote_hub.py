"""The gateway as a consumer of another hub: what it records is acknowledged when it is on disk."""

import asyncio
import contextlib
import errno
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headwater_host.capture import CaptureReader
from headwater_host.gateway import remote_hub_source
from headwater_host.gateway.config import FmqConfig
from headwater_host.gateway.recording import Recorder
from headwater_host.gateway.remote_hub_source import RemoteHubSource
from headwater_host.hub.config import ClientLimits, Listener
from headwater_host.hub.service import Hub
from headwater_host.hub.storage import Limits, backlog
from headwater_host.hub.users import hashed
from headwater_host.inspect.records import decoded
from tests.host.command import running
from tests.host.hub_client import Peer, config, hub_of
from tests.host.recording import Disk, recording, task_of
from tests.waiting import until

GROUP = "recorder"
TWENTY = [("t", b"%d" % number) for number in range(20)]


def recorded(directory: Path) -> list[tuple[str, bytes]]:
    """Topics and payloads of the log's messages."""
    found = []
    for record in CaptureReader(directory / "log").records():
        assert (record.direction, record.protocol, record.version) == (0, 2, 0)
        said = decoded(record)
        assert said is not None
        assert said["type"] == "CONSUMERESP"
        found.append((said["topic"], bytes.fromhex(said["payload"])))
    return found


def left(hub: Hub) -> int:
    """Messages that the group has not acknowledged."""
    return int(sum(behind for _, behind in backlog(hub.broker.store)))


async def at_most(hub: Hub, count: int) -> None:
    """Wait until the group has not more than that before it."""
    await until(lambda: left(hub) <= count)


@contextlib.asynccontextmanager
async def consuming(
    directory: Path, hub: Hub, *topics: str, **more: Any
) -> AsyncIterator[tuple[RemoteHubSource, Recorder, Disk, "asyncio.Task[None]"]]:
    """A hub's consumer that records in a log; it runs as the task."""
    async with recording(directory / "log") as (recorder, disk):
        settings = FmqConfig(*hub.addresses[0], topics, GROUP, "gateway", timeout=60, **more)
        source = RemoteHubSource(recorder, settings)
        async with task_of(source.run()) as task:
            await until(lambda: source.state == "consuming")
            yield source, recorder, disk, task


async def publish(hub: "Hub | tuple[str, int]", *messages: tuple[str, bytes], **more: Any) -> None:
    peer = await Peer.login(hub, **more)
    for topic, payload in messages:
        await peer.send_message(topic, payload, 1, tags=("x",))
    await peer.leave()


async def test_what_the_topics_carry_is_recorded_with_its_topic(hub: Hub, tmp_path: Path) -> None:
    some = [("plant/1", b"0"), ("w/a", b"1"), ("plant/1", b"2"), ("w/b", b"\xff" * 5000)]
    await publish(hub, *some[:2])
    async with consuming(tmp_path, hub, "plant/1", "w/+") as (source, recorder, *_):
        await publish(hub, *some[2:], ("not/asked", b"x"))
        await until(lambda: recorder.durable == 4 and left(hub) == 0)
        assert source.status()["records"] == {"qos0": 4, "qos1": 0, "qos2": 0}
        assert source.peer == f"fmq:127.0.0.1:{hub.addresses[0][1]}"
    assert sorted(recorded(tmp_path)) == sorted(some)


async def test_a_user_of_the_hub(tmp_path: Path) -> None:
    async with (
        hub_of(config(tmp_path, users={"ann": hashed(b"secret", ln=4)})) as hub,
        consuming(tmp_path, hub, "t", username="ann", password=b"secret") as (_, recorder, *_),
    ):
        await publish(hub, ("t", b"0"), user="ann", password="secret")
        await until(lambda: recorder.durable == 1)


async def test_nothing_is_acknowledged_before_it_is_on_disk(hub: Hub, tmp_path: Path) -> None:
    async with consuming(tmp_path, hub, "t") as (_, recorder, disk, _):
        disk.go.clear()
        await publish(hub, *TWENTY)
        await until(lambda: recorder.records == 20)
        assert left(hub) == 20
        disk.go.set()
        await until(lambda: left(hub) == 0)
    assert recorded(tmp_path) == TWENTY


async def test_what_comes_again_while_it_waits_for_the_disk_is_recorded_once(tmp_path: Path) -> None:
    settings = config(tmp_path, limits=Limits(tries=1000), clients=ClientLimits(redelivery=0.05))
    async with hub_of(settings) as hub, consuming(tmp_path, hub, "t") as (_, recorder, disk, _):
        disk.go.clear()
        await publish(hub, *TWENTY)
        (position,) = hub.broker.store.topics["t"].groups[GROUP]
        # After the second time without an acknowledgement, the first redelivery has arrived.
        await until(lambda: len(position.tries) == 20 and min(position.tries.values()) > 1)
        assert recorder.records == 20
        disk.go.set()
        await until(lambda: left(hub) == 0)
    assert sorted(recorded(tmp_path)) == sorted(TWENTY)


async def test_while_the_log_cannot_be_written_messages_are_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One failed try would put a message into the dead-letter topic."""
    monkeypatch.setattr(remote_hub_source, "_LOOK_S", 0.01)
    async with (
        hub_of(config(tmp_path, limits=Limits(tries=1))) as hub,
        consuming(tmp_path, hub, "t") as (source, recorder, disk, _),
    ):
        disk.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        await publish(hub, *TWENTY)
        await until(lambda: recorder.error is not None)
        groups = hub.broker.groups.by_name
        await until(lambda: not any(group.members for group in groups.values()))
        # It says so when the hub has answered.
        await until(lambda: source.state == "waiting")
        assert left(hub) == 20
        disk.error = None
        await until(lambda: recorder.durable == recorder.records)
        recorder.check_recovered()
        await until(lambda: left(hub) == 0)
        assert "$dead/t" not in hub.broker.store.topics
    assert set(recorded(tmp_path)) == set(TWENTY)


@pytest.mark.parametrize("held", [False, True], ids=["reading", "held"])
async def test_what_is_open_at_the_end_is_given_back(tmp_path: Path, held: bool) -> None:
    """One failed try would put a message into the dead-letter topic."""
    async with hub_of(config(tmp_path, limits=Limits(tries=1))) as hub:
        async with consuming(tmp_path, hub, "t") as (source, recorder, disk, task):
            disk.go.clear()
            await publish(hub, *TWENTY)
            await until(lambda: recorder.records == 20)
            if held:
                source.stop_reading()
                await publish(hub, ("t", b"20"))
            task.cancel()
            await asyncio.wait({task})
            assert left(hub) == 20 + held
            assert recorder.records == 20
        await until(lambda: not hub.broker.connections)
        assert left(hub) == 20 + held
        assert hub.broker.store.dead == 0


async def test_a_topic_that_is_unregistered_is_consumed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_hub_source, "_AGAIN_S", 0.01)

    async with hub_of(config(tmp_path)) as hub, consuming(tmp_path, hub, "t") as (source, recorder, *_):
        await publish(hub, ("t", b"0"))
        await until(lambda: left(hub) == 0 and recorder.durable == 1)
        hub.broker.registry.unregister("t")
        await until(lambda: source.last_error is not None and source.state == "consuming")
        await publish(hub, ("t", b"1"))
        await until(lambda: recorder.durable == 2)
    assert recorded(tmp_path) == [("t", b"0"), ("t", b"1")]


async def test_a_gateway_and_a_hub_that_end_and_are_killed(tmp_path: Path) -> None:
    """Everything that the hub has stored is recorded, and what the group is done with is on disk."""
    fate = random.Random(17)
    file = tmp_path / "gateway.toml"

    settings = config(tmp_path)
    count = 0
    async with hub_of(settings) as hub:
        port = hub.addresses[0][1]
        settings = replace(settings, listeners=(Listener(port=port),))
        file.write_text(
            f'capture = "{tmp_path}/log"\n[[fmq]]\nhost = "127.0.0.1"\nport = {port}\ntopics = ["t"]\nwindow = 20\n'
        )
    for life in range(5):
        async with hub_of(settings) as hub:
            with running("gateway", "--config", file, directory=tmp_path) as command:
                await asyncio.to_thread(command.wait_for, "consuming t for the group headwater-")
                numbers = range(count, count + 60)
                count += 60
                peer = await Peer.login(hub)
                sent = [peer.publish("t", b"%d" % n, 1) for n in numbers]
                for ident in sent:
                    await peer.answer(ident)
                await at_most(hub, fate.randrange(60))
                if life % 2:
                    assert await asyncio.to_thread(command.end) == 0
                else:
                    command.process.kill()
                    await asyncio.to_thread(command.wait)
            done = count - left(hub)
            assert {("t", b"%d" % n) for n in range(done)} <= set(recorded(tmp_path))
            await peer.leave()
    async with hub_of(settings) as hub:
        with running("gateway", "--config", file, directory=tmp_path) as command:
            await asyncio.to_thread(command.wait_for, "consuming t")
            await until(lambda: left(hub) == 0)
            assert await asyncio.to_thread(command.end) == 0
            assert "Traceback" not in command.errors
    found = Counter(recorded(tmp_path))
    assert set(found) == {("t", b"%d" % n) for n in range(count)}


async def test_a_hub_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    settings = config(tmp_path)
    async with hub_of(settings) as hub:
        port = hub.addresses[0][1]
        settings = replace(settings, listeners=(Listener(port=port),))
    file = tmp_path / "gateway.toml"
    file.write_text(
        f'capture = "{tmp_path}/log"\n[[fmq]]\nhost = "127.0.0.1"\nport = {port}\ntopics = ["t", "u/#"]\n'
    )
    with running("gateway", "--config", file, directory=tmp_path) as command:
        await asyncio.to_thread(command.wait_for, "Connection refused")
        async with hub_of(settings) as hub:
            await asyncio.to_thread(command.wait_for, "consuming t, u/#")
            await publish(hub, ("u/1", b"0"))
            await until(lambda: left(hub) == 0)
        await asyncio.to_thread(command.wait_for_count, "WARNING", 2)
        async with hub_of(settings) as hub:
            await publish(hub, ("t", b"1"))
            await until(lambda: left(hub) == 0)
        assert await asyncio.to_thread(command.end) == 0
    assert recorded(tmp_path) == [("u/1", b"0"), ("t", b"1")]
