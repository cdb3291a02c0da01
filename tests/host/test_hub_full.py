"""A hub whose disk is full: who waits for it, and who comes, hears why, and nothing is lost or doubled."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.fmq import spec
from headwater_host.hub import broker
from headwater_host.hub.service import Hub
from headwater_host.hub.storage import writer
from tests.host.command import running
from tests.host.hub_client import Got, Peer, until
from tests.host.hub_storage import writing
from tests.host.test_hub_commands import listening

WHY = "the hub cannot store anything: database or disk is full"


def pages(hub: Hub, limit: int) -> None:
    """The file cannot grow beyond this."""
    writing(hub.broker.store).execute(f"PRAGMA max_page_count = {limit}")


def reason(got: Got) -> tuple[str, int, str]:
    return got.name, got.code, (got.values[1:] or [""])[0]


async def last_word(peer: Peer) -> tuple[str, int, str]:
    """Why the hub ended a connection: its answer to AUTH."""
    *_, last = await peer.ended()
    return reason(last)


async def test_who_waits_and_who_comes_hears_why(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broker, "PATIENCE", 0.3)
    monkeypatch.setattr(writer, "RETRY", 0.02)
    reader = await Peer.login(hub)
    await reader.subscribe("t")
    publishers = [await Peer.login(hub, name, clean=False) for name in ("a", "b", "c")]
    for peer in publishers:
        await peer.send_message("t", b"before")
    pages(hub, 1)
    sent = [peer.publish("t", b"x" * 50_000, qos) for qos, peer in enumerate(publishers)]
    subscriber = publishers[0]
    subscriber.send(spec.SUBSCRIBE, (b"other",))
    await until(lambda: hub.broker.store.error)
    newcomer = await Peer.open(hub)
    newcomer.send(spec.AUTH, (b"new", None, None, 0, True, b"t", 0, False, b"a will"))
    for peer in (*publishers, newcomer):
        assert await last_word(peer) == ("ACK", 0x97, WHY)
    # From then on at once.
    peer = await Peer.open(hub)
    assert reason(await peer.auth("d")) == ("ACK", 0x97, WHY)
    await peer.ended()
    # Clients that wait for no write continue.
    await reader.ping()
    assert "logins are refused until the hub can store something again" in caplog.text
    pages(hub, 1_000_000)
    await until(lambda: hub.broker.store.error is None and not hub.broker.unable)
    for qos, ident in enumerate(sent):
        again = await Peer.login(hub, "abc"[qos], clean=False)
        if qos:
            await again.send_message("t", b"x" * 50_000, qos=qos, ident=ident, dup=True)
    assert hub.broker.store.duplicates == 2
    got = [(await reader.next()).payload for _ in range(6)]
    assert got == [b"before"] * 3 + [b"x" * 50_000] * 3
    await reader.ping()
    assert not reader.got


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """A file system of 2 MiB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs root, to mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_real_disk_that_is_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with small_disk(disk):
        filler = disk / "filler"
        with running("hub", "--storage", disk / "hub.db", "--port", 0, directory=tmp_path) as hub:

            async def scenario() -> None:
                address = listening(hub)
                peer = await Peer.login(address, "a", clean=False)
                await peer.send_message("t", b"first")
                with contextlib.suppress(OSError):
                    filler.write_bytes(bytes(4 << 20))
                sent = peer.publish("t", bytes(500_000), 1)
                name, code, text = await last_word(peer)
                assert (name, code) == ("ACK", 0x97)
                assert text.startswith("the hub cannot store anything: ")
                refused = await Peer.open(address)
                assert (await refused.auth("b")).code == 0x97
                filler.unlink()
                await until(lambda: "can be written again" in hub.errors)
                # It takes the hub a moment to let clients in.
                while (await (again := await Peer.open(address)).auth("a", clean=False)).code:
                    pass
                await again.send_message("t", bytes(500_000), ident=sent, dup=True)
                await again.leave()

            asyncio.run(scenario())
            assert "nothing is acknowledged: database or disk is full" in hub.errors
            assert "logins are refused" in hub.errors
            assert "Traceback" not in hub.errors
            assert hub.end() == 0
