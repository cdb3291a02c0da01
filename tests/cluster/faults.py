"""The faults of a cluster: each is injected under load, and ends with a cluster that works again.

`FAULTS` is the table. A fault that takes the leader away calls `begin_fault`, which measures the time until a message
is acknowledged on a new connection.
"""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterable

from headwater_host.hub.cluster import status
from headwater_host.hub.cluster.lease import RENEWALS
from headwater_host.hub.storage.writer import RETRY
from tests.cluster import launch
from tests.cluster.proxy import Direction, Proxy
from tests.cluster.world import LEASE, PATIENCE, Cluster, RoamingPeer, Unit
from tests.host.history_actors import LOST, World
from tests.host.hub_client import Peer
from tools.postgres import PostgreSql

Fault = Callable[[Cluster], Awaitable[None]]
#: The clocks are set by so many seconds.
_STEPS = (3600.0, -3600.0, 86_400.0 * 400, -86_400.0 * 400, 0.7, -0.7)
#: Seconds of a short disturbance.
_SHORT = 0.5
#: Microseconds that a slow disk takes for a sync, at most 100,000; and the process that writes a standby's log.
_SLOW_SYNC = 100_000
_RECEIVER = "SELECT pid FROM pg_stat_wal_receiver"
#: The backend that waits for the standby.
_WAITING = (
    "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name LIKE 'headwater%'"
)


async def kill(cluster: Cluster) -> None:
    """Kill the leader's process."""
    unit = cluster.leader
    cluster.begin_fault("leader killed")
    await unit.kill()
    if len(cluster.units) == 1:
        await unit.start()
    await cluster.recovered()
    if not unit.alive:
        cluster.later_start(unit)


async def pause(cluster: Cluster) -> None:
    """Stop the leader's process for longer than its lease. Afterwards it is half-open to all."""
    unit = cluster.leader
    cluster.begin_fault("leader paused")
    unit.pause()
    await cluster.recovered()
    unit.resume()


def cut_off(which: Iterable[str]) -> Fault:
    """Let nothing arrive between the leader and the database, in these directions."""

    def held(proxies: list[Proxy]) -> list[Direction]:
        return [getattr(proxy, name) for proxy in proxies for name in which]

    async def fault(cluster: Cluster) -> None:
        unit = cluster.leader
        client = await RoamingPeer.open(unit.proxy.address)
        await client.auth()
        cluster.begin_fault(f"leader cut off from the database ({' and '.join(which)})")
        for direction in held(unit.to_database):
            direction.hold()
        await cluster.recovered()
        await _must_refuse(cluster, unit, client)
        # What was held arrives now, late.
        for direction in held(unit.to_database):
            direction.release()

    return fault


async def _must_refuse(cluster: Cluster, unit: Unit, client: Peer) -> None:
    """A hub without its database, whose lease is over, answers nobody."""
    late = await RoamingPeer.open(unit.proxy.address)
    for peer, ask in ((client, client.ping), (late, late.auth)):
        try:
            answer = await ask()
            if answer is None or answer.code == 0:
                cluster.checker.wrong.append(f"two leaders: hub {unit.number} answers without its database")
        except LOST:
            pass
        finally:
            peer.abort()


async def machine_gone(cluster: Cluster) -> None:
    """Let nothing pass between the leader and anybody, then kill it: no connection ends before."""
    unit = cluster.leader
    cluster.begin_fault("leader's machine gone")
    for proxy in unit.proxies:
        proxy.isolate()
    await cluster.recovered()
    await unit.kill()
    for proxy in unit.proxies:
        proxy.cut()
        proxy.heal()
    cluster.later_start(unit)


async def hand_over(cluster: Cluster) -> None:
    """Have another hub lead, as an operator does. No message is refused."""
    if len(cluster.units) == 1:
        return
    refused = RoamingPeer.refused
    cluster.begin_fault("handover")
    await asyncio.to_thread(status.hand_over, cluster.primary.url(), PATIENCE)
    await cluster.recovered()
    if RoamingPeer.refused > refused:
        cluster.checker.wrong.append("refused: a message, in a handover")


async def refuse(cluster: Cluster) -> None:
    """Reset the leader's connections to the database, and new ones."""
    unit = cluster.leader
    cluster.begin_fault("leader's database connections reset")
    for proxy in unit.to_database:
        proxy.refuse()
    await cluster.recovered()
    for proxy in unit.to_database:
        proxy.heal()


async def follower_cut_off(cluster: Cluster) -> None:
    """Let nothing pass between a hub that does not lead and the database, in one direction or in both."""
    unit = _other(cluster)
    directions = _directions(cluster)
    for proxy in unit.to_database:
        _hold(proxy, directions)
    await cluster.progress()
    for proxy in unit.to_database:
        proxy.heal()


async def clients_cut_off(cluster: Cluster) -> None:
    """Let nothing pass between the clients and the leader, which keeps its lease, in one direction or in both."""
    unit = cluster.leader
    _hold(unit.proxy, _directions(cluster))
    await asyncio.sleep(_SHORT)
    unit.proxy.heal()
    await cluster.progress()


async def ambiguous(cluster: Cluster) -> None:
    """Lose the replies to what the leader commits, or the requests, then reset its connections."""
    unit = cluster.leader
    replies = cluster.chance.random() < 0.5
    for proxy in unit.to_database:
        (proxy.down if replies else proxy.up).swallow()
    # If only replies are lost, the transaction under way is committed.
    await asyncio.sleep(0.05)
    for proxy in unit.to_database:
        proxy.cut()
        proxy.heal()
    await cluster.progress()


async def slow_database(cluster: Cluster) -> None:
    """Delay all that the leader and its database say, and stop the database's processes now and then."""
    unit = cluster.leader
    for proxy in unit.to_database:
        proxy.up.delay = proxy.down.delay = 0.05
    for _ in range(3):
        cluster.primary.pause()
        await asyncio.sleep(0.2)
        cluster.primary.resume()
        await asyncio.sleep(0.1)
    for proxy in unit.to_database:
        proxy.heal()
    await cluster.progress()


async def slow_disk(cluster: Cluster) -> None:
    """Delay each sync of the primary's disk, and stop the process that writes the standby's log now and then."""
    primary, standby = cluster.servers
    await asyncio.to_thread(primary.configure, commit_delay=_SLOW_SYNC, commit_siblings=0)
    for _ in range(3):
        for pid in (await asyncio.to_thread(standby.sql, _RECEIVER)).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGSTOP)
                await asyncio.sleep(_SHORT)
                os.kill(int(pid), signal.SIGCONT)
        await cluster.progress()
    await asyncio.to_thread(primary.configure, commit_delay=0, commit_siblings=5)


async def set_clocks(cluster: Cluster) -> None:
    """Set the wall clock of a hub far forward or back. Leadership does not change."""
    await _set_clock(cluster, cluster.chance.choice(cluster.units), cluster.chance.choice(_STEPS))


async def set_clock_of_leader(cluster: Cluster) -> None:
    """Set the wall clock of the leader far forward. Leadership does not change."""
    await _set_clock(cluster, cluster.leader, _STEPS[0])


async def _set_clock(cluster: Cluster, unit: Unit, seconds: float) -> None:
    epoch = await cluster.epoch()
    launch.step(unit.clock, seconds)
    await asyncio.sleep(LEASE)
    await cluster.progress()
    if await cluster.epoch() != epoch:
        cluster.checker.wrong.append("two leaders: a clock that was set has begun another epoch")


async def standby_away(cluster: Cluster) -> None:
    """Cut the standby off, in one direction or in both. Nothing is acknowledged meanwhile."""
    proxy = cluster.replication[cluster.primary.port]
    for directions in (("up", "down"), ("up",), ("down",)):
        _hold(proxy, directions)
        since = len(cluster.events)
        # The renewal of the lease waits as well, and then blocks all writes.
        await asyncio.sleep(_SHORT)
        must_not_acknowledge(cluster, since, "while the standby is away")
        proxy.heal()
        await cluster.progress()


# -- failover of PostgreSQL --------------------------------------------------------------------------------------------


async def failover(cluster: Cluster) -> None:
    """Cut the standby off, kill the primary, and promote the standby."""
    proxy = cluster.replication[cluster.primary.port]
    proxy.down.hold()
    await asyncio.sleep(_SHORT)
    await asyncio.to_thread(cluster.primary.kill)
    proxy.cut()
    proxy.heal()
    await _promote(cluster)


async def cancelled_wait(cluster: Cluster) -> None:
    """Cancel the leader's wait for the standby, which then has not got the transaction, and promote the standby.

    PostgreSQL reports success with a warning.
    """
    proxy = cluster.replication[cluster.primary.port]
    proxy.down.hold()
    for _ in range(20):
        waiting = await asyncio.to_thread(cluster.primary.sql, _WAITING)
        for pid in waiting.split():
            await asyncio.to_thread(cluster.primary.sql, f"SELECT pg_cancel_backend({pid})")
        await asyncio.sleep(0.05)
    await asyncio.to_thread(cluster.primary.kill)
    proxy.cut()
    proxy.heal()
    await _promote(cluster)


async def restart_alone(cluster: Cluster) -> None:
    """Restart the primary while the standby is away, then lose it, and promote the standby.

    After its restart the primary shows transactions that the standby has not got.
    """
    proxy = cluster.replication[cluster.primary.port]
    proxy.down.hold()
    since = len(cluster.events)
    # Something is written meanwhile.
    await asyncio.sleep(_SHORT)
    await asyncio.to_thread(cluster.primary.kill)
    proxy.refuse()
    await asyncio.to_thread(cluster.primary.start)
    # Hubs connect and find them.
    await asyncio.sleep(2 * LEASE)
    must_not_acknowledge(cluster, since, "after a restart, while the standby is away")
    await asyncio.to_thread(cluster.primary.kill)
    await _promote(cluster)
    proxy.heal()


def must_not_acknowledge(world: World, since: int, when: str) -> None:
    """No message that was first sent after so many events has been acknowledged."""
    sent = {event[1:] for event in world.events[since:] if event[0] == "sent"}
    acked = sent.intersection(event[1:] for event in world.events[since:] if event[0] == "acked")
    if acked.difference(event[1:] for event in world.events[:since] if event[0] == "sent"):
        world.checker.wrong.append(f"lost: acknowledged {when}")


async def _promote(cluster: Cluster) -> None:
    """Let the standby be the primary, with the old one as its new standby."""
    old, new = cluster.servers
    since = len(cluster.events)
    await asyncio.to_thread(new.promote)
    cluster.servers.reverse()
    # Until the new primary is configured to wait for a standby, no hub may lead on it.
    port = cluster.replication[new.port].port
    await asyncio.to_thread(old.follow, new, name_of(old), port)
    must_not_acknowledge(cluster, since, "without a standby, after a failover")
    await asyncio.to_thread(new.require, name_of(old))
    # From now on PostgreSQL commits.
    cluster.begin_fault("PostgreSQL's failover, after its own time", anywhere=True)
    await cluster.recovered()


def name_of(server: PostgreSql) -> str:
    """Return a server's name among standbys."""
    return f"server_{server.port}"


def _directions(cluster: Cluster) -> tuple[str, ...]:
    return cluster.chance.choice((("up",), ("down",), ("up", "down")))


def _hold(proxy: Proxy, directions: Iterable[str]) -> None:
    for name in directions:
        getattr(proxy, name).hold()


def _other(cluster: Cluster) -> Unit:
    return cluster.chance.choice([unit for unit in cluster.units if unit is not cluster.leader])


# -- faults at one point of the protocol -------------------------------------------------------------------------------

#: What PostgreSQL replies when a COMMIT is executed.
_COMMITTED = b"C\0\0\0\x0bCOMMIT\0"
#: A message of which the request to store it is lost.
_LOST = b"a message of which the first request does not arrive"


async def lose_reply(cluster: Cluster) -> None:
    """Reset the leader's connections when a COMMIT is executed, before its reply arrives."""
    await _cut_when(cluster, lambda proxy: proxy.down, _COMMITTED)
    await cluster.progress()


async def lose_request(cluster: Cluster) -> None:
    """Reset the leader's connections when it writes, before the transaction arrives."""
    client = await cluster.login("")
    try:
        cut = asyncio.ensure_future(_cut_when(cluster, lambda proxy: proxy.up, _LOST))
        await asyncio.sleep(0)
        client.publish("probe", _LOST, 1)
        await cut
        await cluster.progress()
    finally:
        client.abort()


async def _cut_when(cluster: Cluster, which: Callable[[Proxy], Direction], text: bytes) -> None:
    """Reset the leader's connections before a piece with this text is delivered."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    proxies = cluster.leader.to_database

    def cut() -> None:
        for proxy in proxies:
            proxy.cut()
        loop.call_soon_threadsafe(done.set)

    for proxy in proxies:
        which(proxy).when(text, cut)
    await _wait_for(done.is_set, cluster, "the leader writes nothing")
    for proxy in proxies:
        proxy.heal()


async def _wait_for(true: Callable[[], bool], cluster: Cluster, otherwise: str) -> None:
    deadline = time.monotonic() + cluster.patience
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"{otherwise}:\n{cluster.logs()}")
        await asyncio.sleep(0.005)


async def kill_unanswered(cluster: Cluster) -> None:
    """Kill the leader when it has stored messages whose acknowledgements did not arrive."""
    unit = cluster.leader
    unit.proxy.down.hold()
    await asyncio.sleep(0.1)
    await kill(cluster)
    unit.proxy.heal()


def stop_clock(*, slowly: bool) -> Fault:
    """Stop the leader's monotonic clock, so that it trusts its lease for ever, and another hub takes the lease over.

    ``slowly``: the former leader connects to the database again before the new epoch begins.
    """

    async def fault(cluster: Cluster) -> None:
        unit, epoch = cluster.leader, await cluster.epoch()
        proxies = [proxy for other in cluster.units if other is not unit for proxy in other.to_database]

        def slow_down() -> None:
            for proxy in proxies:
                proxy.up.delay = cluster.lease / RENEWALS + 0.2

        if slowly:
            for proxy in proxies:
                # A takeover begins with this. The next request is late.
                proxy.up.when(b"pg_terminate_backend", slow_down)
        launch.stop(unit.clock)
        cluster.begin_fault("leader's clock stopped")
        deadline = time.monotonic() + cluster.patience
        while await cluster.epoch() == epoch:
            assert time.monotonic() < deadline, f"the lease is not taken over:\n{cluster.logs()}"
        for proxy in proxies:
            proxy.heal()
        # Meanwhile it tries to write.
        await asyncio.sleep(2 * RETRY)
        await cluster.examine()
        await cluster.recovered()
        launch.stop(unit.clock, stopped=False)
        await cluster.progress()

    return fault


async def calm(cluster: Cluster) -> None:
    """Do nothing for two leases. Leadership does not change."""
    epoch = await cluster.epoch()
    await asyncio.sleep(2 * cluster.lease)
    if await cluster.epoch() != epoch:
        cluster.checker.wrong.append("two leaders: another epoch has begun without a fault")


#: The faults of one PostgreSQL.
FAULTS: dict[str, Fault] = {
    "kill": kill,
    "pause": pause,
    "cut off": cut_off(["up", "down"]),
    "cut off, requests": cut_off(["up"]),
    "cut off, replies": cut_off(["down"]),
    "machine gone": machine_gone,
    "handover": hand_over,
    "refuse": refuse,
    "follower cut off": follower_cut_off,
    "clients cut off": clients_cut_off,
    "ambiguous": ambiguous,
    "slow database": slow_database,
    "clocks": set_clocks,
}
#: Faults at one point of the protocol.
PRECISE: dict[str, Fault] = {
    "reply lost": lose_reply,
    "request lost": lose_request,
    "kill, unanswered": kill_unanswered,
    "clock stopped": stop_clock(slowly=False),
    "clock stopped, slow takeover": stop_clock(slowly=True),
    "leader's clock set": set_clock_of_leader,
    "calm": calm,
}
#: Those that need a standby.
WITH_STANDBY: dict[str, Fault] = {
    "slow disk": slow_disk,
    "standby away": standby_away,
    "failover": failover,
    "cancelled wait": cancelled_wait,
    "restart alone": restart_alone,
}
#: All of them.
ALL = FAULTS | PRECISE | WITH_STANDBY


def deck(chance: random.Random, kills: int, failovers: int, others: int) -> list[str]:
    """Return a shuffled list of faults: so many kills, failovers (in their kinds) and each other fault so often."""
    kinds = ["failover", "cancelled wait", "restart alone"]
    names = ["kill"] * kills + [kinds[n % len(kinds)] for n in range(failovers)]
    names += [name for name in FAULTS if name != "kill"] * others
    names += ["standby away", "slow disk"] * (others if failovers else 0)
    chance.shuffle(names)
    return names
