"""Who may read files that hold messages: their owner, and, if that is set, the group of their directory."""

import asyncio
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater_host import private
from headwater_host.capture import CaptureReader
from headwater_host.capture.asyncio_writer import AsyncCapture
from headwater_host.client.store import SqliteOutbox
from headwater_host.gateway import config as gateway_config
from headwater_host.gateway.recording import Recorder
from headwater_host.gateway.service import Gateway
from headwater_host.hub import config as hub_config
from headwater_mq.forward import Forward, LocalQueue
from headwater_mq.manager import QueueManager
from tests.host.capture_logs import record, write_log
from tests.host.hub_client import Peer, config, hub_of, replace, until
from tools.capture_log import LogWriter

#: Of a group and a user that are nobody's.
GROUP, USER = 64_321, 64_322


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    """As most have it."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> set[int]:
    """Of the files there are, locks apart."""
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}
    assert found
    return set(found.values())


def a_hub(folder: Path, group_readable: bool) -> None:
    async def run() -> None:
        async with hub_of(replace(config(folder), group_readable=group_readable)) as hub:
            await (await Peer.login(hub)).send_message("t", b"secret", retain=True)
            assert {path.name for path in folder.iterdir()} == {
                *("hub.db", "hub.db-wal", "hub.db-shm", "hub.db-lock")
            }
            check(folder, group_readable, "-lock")

    asyncio.run(run())


def a_log(folder: Path, group_readable: bool) -> None:
    with LogWriter(folder, group_readable=group_readable) as writer:
        writer.append(*record(0))
        writer.flush()
        check(folder, group_readable)
    # What a writer cut off, without being sure what it was.
    (segment,) = folder.glob("*.hwc")
    segment.write_bytes(segment.read_bytes() + b"\xff" * 100)
    (folder / "manifest.jsonl").unlink()
    LogWriter(folder, group_readable=group_readable).close()
    assert list(folder.glob("*.cut"))


def a_recorder(folder: Path, group_readable: bool) -> None:
    async def run() -> None:
        async with AsyncCapture(folder, group_readable=group_readable) as capture:
            Recorder(capture, 1 << 20, lambda error: None).new_connection()

    asyncio.run(run())
    assert (folder / "connections").exists()


def a_queue(folder: Path, group_readable: bool) -> None:
    with QueueManager("Q", folder / "queues.db", group_readable=group_readable) as manager:
        manager.define("Q")
        manager.put1("Q", b"secret")
        check(folder, group_readable, "-user1")


def a_forward(folder: Path, group_readable: bool) -> None:
    queue = LocalQueue("Q", "DEAD", 10, 1000, 1 << 20)
    Forward(folder / "queues.db", queue, group_readable=group_readable).close()


def a_gateway(folder: Path, group_readable: bool) -> None:
    """Its statistics, and what its file says is passed on."""
    inner = folder / "it"
    inner.mkdir()
    text = f"capture = '{inner}/log'\nstats = '{inner}/stats.json'\n[hub]\nstorage = '{inner}/hub.db'\nport = 7999\n"
    text += f"[mq]\nfile = '{inner}/mq.db'\ntopics = ['#']\n"
    file = folder / "gateway.toml"
    file.write_text(("group_readable = true\n" if group_readable else "") + text)

    async def run() -> None:
        loaded = gateway_config.load(file)
        assert loaded.hub is not None
        hub = replace(loaded.hub, listeners=(hub_config.Listener(port=0),))
        gateway = Gateway(replace(loaded, hub=hub, stats_seconds=0.01))
        task = asyncio.create_task(gateway.run())
        await until((inner / "stats.json").exists)
        gateway.stop()
        assert await task == 0

    asyncio.run(run())
    file.unlink()
    names = {path.name for path in inner.rglob("*")}
    assert {"stats.json", "hub.db", "mq.db", "writer.lock"} <= names
    for lock in inner.glob("*-*"):
        lock.unlink()


def check(folder: Path, group_readable: bool, *locks: str) -> None:
    """Locks, which hold nothing, may be the owner's alone."""
    for path in folder.iterdir():
        if not path.name.endswith(locks or ("\0",)):
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o640 if group_readable else 0o600), (path, oct(mode))


@pytest.mark.parametrize("group_readable", [False, True])
@pytest.mark.parametrize("make", [a_hub, a_log, a_recorder, a_queue, a_forward, a_gateway])
def test_new_files(make: Callable[[Path, bool], None], group_readable: bool, tmp_path: Path) -> None:
    make(tmp_path, group_readable)
    for lock in tmp_path.glob("*-lock"):
        lock.unlink()
    assert modes(tmp_path) == {0o640 if group_readable else 0o600}


def test_stores_of_clients(tmp_path: Path) -> None:
    with SqliteOutbox(tmp_path / "mqtt.db", "me"), SqliteOutbox(tmp_path / "fmq.db", "me", protocol="fmq"):
        assert modes(tmp_path) == {0o600}


def test_a_file_that_is_there_loses_what_others_may(tmp_path: Path) -> None:
    """And keeps what its group may: several users may share a queue."""
    for before, after, group_readable in ((0o644, 0o640, False), (0o666, 0o660, False), (0o604, 0o640, True)):
        path = tmp_path / f"{before:o}.db"
        QueueManager("Q", path).disconnect()
        path.chmod(before)
        with QueueManager("Q", path, group_readable=group_readable):
            for one in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
                assert stat.S_IMODE(one.stat().st_mode) == after, one
    write_log(tmp_path / "log", [2, 3], [1])
    for path in (tmp_path / "log").iterdir():
        path.chmod(0o644)
    LogWriter(tmp_path / "log").close()
    assert modes(tmp_path / "log") == {0o640}


def test_what_is_no_file_is_left_to_sqlite(tmp_path: Path) -> None:
    private.prepare(":memory:")
    private.prepare("")
    private.prepare(tmp_path / "nowhere" / "x.db")
    private.prepare(tmp_path)
    assert not Path(":memory:").exists()


def as_user(user: int, group: int, work: Callable[[], Any]) -> int:
    """Do it in a process of this user: 0, or 1 for PermissionError."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            os.setgroups([])
            os.setgid(group)
            os.setuid(user)
            work()
            code = 0
        except PermissionError:
            code = 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
@pytest.mark.parametrize("group_readable", [False, True])
def test_spark_under_another_user_reads_through_the_group(group_readable: bool) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        os.chown(folder, 0, GROUP)
        folder.chmod(0o755)
        with LogWriter(folder, group_readable=group_readable) as writer:
            writer.append(*record(0))
        if group_readable:
            assert {path.stat().st_gid for path in folder.iterdir()} == {GROUP}

        def read() -> None:
            (block,) = CaptureReader(folder).blocks()
            assert block.header.records == 1

        assert as_user(USER, GROUP, read) == (0 if group_readable else 1)
        assert as_user(USER, USER, read) == 1
    finally:
        shutil.rmtree(folder)
