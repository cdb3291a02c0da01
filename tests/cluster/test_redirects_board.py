"""FMQ's keeper on MicroPython follows the leader that a hub names, and does so again after a lost connection."""

import asyncio
from pathlib import Path

import pytest

from tests.cluster.front import front
from tests.host.hub_client import config, hub_of
from tests.interop.test_fmq_keeper_board import board, ends, give, said

pytestmark = pytest.mark.needs_micropython


async def test_a_board_follows_the_named_leader(tmp_path: Path) -> None:
    async with hub_of(config(tmp_path)) as hub, front(f"127.0.0.1:{hub.addresses[0][1]}") as follower:
        b = board(follower.address[1])
        await asyncio.to_thread(b.start)
        try:
            at = await said(b, "online False")
            for connection in list(hub.broker.connections):
                connection.abort()
            await said(b, "online True", at)
            assert follower.logins == 2
            await give(hub, "jobs", b"0")
            await ends(hub, b, 1)
        finally:
            await asyncio.to_thread(b.close)
