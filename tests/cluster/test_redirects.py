"""Clients follow the hub that leads: named by one that does not, gone, or named in a circle."""

import asyncio
import socket
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from headwater.fmq import spec
from headwater.mqtt import spec5
from headwater_host.client.fmq import Client, ConnectionOptions, Reconnect
from headwater_host.client.lifecycle import MOVED_AFTER
from headwater_host.errors import ConnectRefusedError, NotConnectedError
from headwater_host.hub.access import ANY, Rule
from headwater_host.hub.cluster import election
from headwater_host.hub.config import HubConfig
from tests.cluster.front import Front, front
from tests.host.hub_client import Peer, config, hub_of

SECONDS = 60.0


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 2 * SECONDS))


def named(where: tuple[str, int]) -> str:
    return f"{where[0]}:{where[1]}"


def free() -> tuple[str, int]:
    """An address at which nobody listens."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        host, port = s.getsockname()
        return host, port


def client(first: tuple[str, int], *more: tuple[str, int], **options: Any) -> Client:
    connection = ConnectionOptions(more_servers=list(more))
    return Client(*first, identifier="c", timeout=SECONDS, connection=connection, **options)


def test_a_client_follows_the_leader_that_a_follower_names(tmp_path: Path) -> None:
    async def main() -> None:
        async with hub_of(config(tmp_path)) as hub, front(named(hub.addresses[0])) as follower:
            async with client(follower.address) as c:
                assert c.server == named(hub.addresses[0])
                await c.publish("t", b"1", 1)
            assert follower.logins == 1

    run(main())


def test_a_follower_that_stopped_takes_no_connection() -> None:
    async def main() -> None:
        async with front("") as follower:
            follower.follower.defers = True
            follower.follower.stop()
            peer = await Peer.open(follower.address)
            with pytest.raises((EOFError, ConnectionError)):
                await peer.auth("late")

    run(main())


def test_a_client_uses_its_list_when_the_named_leader_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        async with hub_of(config(tmp_path)) as hub, front(named(free())) as follower:
            async with client(follower.address, hub.addresses[0]) as c:
                assert c.server == named(hub.addresses[0])
            # The next connection begins with the server that worked.
            async with c:
                assert follower.logins == 1

    run(main())


@pytest.mark.parametrize("leader", ["", "nonsense", "1.2.3.4:0", "a:b:1", "host:99999"])
def test_a_client_without_a_leader_to_follow_uses_its_list(tmp_path: Path, leader: str) -> None:
    async def main() -> None:
        async with (
            hub_of(config(tmp_path)) as hub,
            front(leader) as follower,
            client(follower.address, hub.addresses[0]) as c,
        ):
            assert c.server == named(hub.addresses[0])

    run(main())


def test_hubs_that_name_each_other_are_asked_once_in_a_round() -> None:
    async def main() -> None:
        async with front("") as one, front(one.name) as other:
            one.told.told = other.name
            with pytest.raises(ConnectRefusedError) as refused:
                await client(one.address).__aenter__()
            assert refused.value.return_code == spec5.SERVER_MOVED
            assert (one.logins, other.logins) == (1, 1)

    run(main())


def test_a_chain_of_names_ends() -> None:
    """A hub that names ever new addresses does not keep a client busy."""

    async def main() -> None:
        async with front("") as last:
            hubs: list[Front] = [last]
            managers = []
            for _ in range(9):
                manager = front(hubs[-1].name)
                managers.append(manager)
                hubs.append(await manager.__aenter__())
            with pytest.raises(NotConnectedError):
                await client(hubs[-1].address).__aenter__()
            assert 2 <= sum(hub.logins for hub in hubs) <= 6
            for manager in managers:
                await manager.__aexit__(None, None, None)

    run(main())


def test_a_client_moves_when_its_hub_stops_leading(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        async with (
            hub_of(config(tmp_path / "a")) as old,
            hub_of(config(tmp_path / "b")) as new,
            # Without following, the client would wait for a minute.
            client(old.addresses[0], reconnect=Reconnect(first=60.0)) as c,
        ):
            await c.publish("t", b"1", 1)
            await asyncio.sleep(MOVED_AFTER + 0.1)
            began = time.monotonic()
            for connection in list(old.broker.connections):
                connection.close(spec5.SERVER_MOVED, named(new.addresses[0]))
            await c.publish("t", b"2", 1)
            assert c.server == named(new.addresses[0])
            assert time.monotonic() - began < 30

    run(main())


# -- the follower ----------------------------------------------------------------------------------------------------


def test_a_follower_refuses_logins_with_the_leader_or_as_unavailable() -> None:
    async def main() -> None:
        async with front("10.0.0.7:7760") as follower:
            peer = await Peer.open(follower.address)
            answer = await peer.auth("c")
            assert answer.values == [spec5.SERVER_MOVED, "10.0.0.7:7760"]
            follower.told.told = ""
            peer = await Peer.open(follower.address)
            assert (await peer.auth("c")).code == spec5.SERVER_UNAVAILABLE

    run(main())


CANDIDATE = ("10.0.0.9", 7760)


async def ask(hub: tuple[str, int], **more: Any) -> election.Answer:
    return await election.elect(hub, CANDIDATE, election.version(3, 4), timeout=SECONDS, **more)


def test_a_follower_answers_elections_without_a_login() -> None:
    async def main() -> None:
        async with front("10.0.0.7:7760") as follower:
            for announce in (False, True):
                answer = await ask(follower.address, announce=announce)
                assert answer.leader == (("10.0.0.7", 7760), 7 << 48 | 5)
            follower.told.told = ""
            assert await ask(follower.address) == election.Answer(agrees=True)
            # Anything else needs a login, which there is not.
            peer = await Peer.open(follower.address)
            assert (await peer.ask(spec.REGISTER, (b"t",))).code == spec5.PROTOCOL_ERROR

    run(main())


def test_the_rules_of_access_hold_for_elections() -> None:
    async def main() -> None:
        rule = Rule(types=("ELECT",), deny=ANY)
        async with front("10.0.0.7:7760", HubConfig(rules=(rule,))) as follower:
            assert (await ask(follower.address)).code == spec5.NOT_AUTHORIZED

    run(main())


def test_a_single_hub_refuses_elections(tmp_path: Path) -> None:
    async def main() -> None:
        async with hub_of(config(tmp_path)) as hub:
            assert (await ask(hub.addresses[0])).code == spec5.PROTOCOL_ERROR

    run(main())


def test_an_election_tells_a_process_that_ended_from_one_that_is_silent() -> None:
    async def main() -> None:
        assert not (await ask(free())).listens
        with socket.create_server(("127.0.0.1", 0)) as silent:
            answer = await election.elect(silent.getsockname(), CANDIDATE, 1, timeout=0.2)
            assert answer == election.Answer(listens=True)

    run(main())


def test_versions_compare_by_epoch_first() -> None:
    assert election.version(3, (1 << 48) - 1) < election.version(4, 0) < 1 << 64
