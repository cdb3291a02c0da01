"""Several hubs on one PostgreSQL with a synchronous standby, and every connection between them through a proxy.

The clients are those of `tests.host.history_actors`. They reach the hubs through a proxy each; each hub reaches each
database server through a proxy of its own, and so does the standby its primary.
"""

import asyncio
import contextlib
import random
import signal
import socket
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from headwater.fmq import spec
from tests.cluster import launch
from tests.cluster.proxy import Network, Proxy
from tests.host.command import Running
from tests.host.history_actors import CONFIG, LOST, CutPeer, World
from tests.host.hub_client import Got, Peer
from tools.broker import BrokerError
from tools.postgres import DATABASE, USER, PostgreSql

#: Reasons that send a client to another hub: the server is not available, busy, shuts down, is another one, or cannot
#: store for now; or an earlier connection of the client, which it has given up, has arrived later.
ELSEWHERE = frozenset({0x88, 0x89, 0x8B, 0x8E, 0x97, 0x9C, 0x9D})
#: Seconds without a byte after which a client gives up a connection, as its keep-alive would.
SILENCE = 2.0
#: Seconds of the lease, unless a cluster has another one.
LEASE = 2.0
#: Seconds in which a cluster that has a leader left makes progress again.
PATIENCE = 60.0
#: Acknowledged messages after which a fault is over.
RECOVERED = 20


class RoamingPeer(CutPeer):
    """A client that goes to another hub when one refuses it, or says nothing."""

    patience = SILENCE
    #: Messages that hubs have refused so far.
    refused = 0

    async def _read(self) -> Got:
        got = await super()._read()
        if got.kind == spec.ACK and got.code in ELSEWHERE:
            RoamingPeer.refused += got.id[0] >> 4 == spec.PUBLISH
            raise ConnectionResetError
        return got

    async def receive(self) -> bytes:
        try:
            return await super().receive()
        except asyncio.TimeoutError:
            raise ConnectionResetError from None


def quiet_port() -> int:
    """Return a free port that no outgoing connection is given, so that a server can restart on it."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class _Probe(RoamingPeer):
    """A client without patience."""

    patience = 0.5


class Unit:
    """One hub: its process, its place, the proxy in front of it, and those to the database servers."""

    def __init__(self, cluster: "Cluster", number: int):
        self.number = number
        self._cluster = cluster
        self.directory = cluster.directory / f"hub{number}"
        self.directory.mkdir()
        self.port, self.metrics = quiet_port(), quiet_port()
        self.proxy: Proxy = cluster.network.proxy(("127.0.0.1", self.port))
        self.to_database = [cluster.network.proxy(("127.0.0.1", one.port)) for one in cluster.servers]
        #: The file that sets and stops its clocks.
        self.clock = self.directory / "clock"
        launch.make(self.clock)
        self.running: Running | None = None
        self.paused = False

    @property
    def url(self) -> str:
        """The database's servers, through this hub's proxies."""
        places = ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.to_database)
        return f"postgresql://{USER}@{places}/{DATABASE}?target_session_attrs=read-write&connect_timeout=2"

    @property
    def proxies(self) -> list[Proxy]:
        """Everything that leads to it or away from it."""
        return [self.proxy, *self.to_database]

    @property
    def alive(self) -> bool:
        return self.running is not None and self.running.process.poll() is None

    async def is_ready(self) -> bool:
        """Return whether it leads, or is ready to lead."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            return b" 200 " in await asyncio.wait_for(self._health(), SILENCE)
        return False

    async def _health(self) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.metrics)
        try:
            writer.write(b"GET /health HTTP/1.0\r\n\r\n")
            return await reader.readline()
        finally:
            writer.close()

    async def start(self) -> None:
        """Start it and wait until it listens."""
        cluster = self._cluster
        self.proxy.listen()
        (self.directory / "hub.toml").write_text(cluster.settings(self))
        arguments = ["hub", "--config", "hub.toml", "--port", str(self.port)]
        command = [sys.executable, launch.__file__, str(self.clock), *cluster.mutant]
        self.running = Running(arguments, self.directory, command, cwd=self.directory)
        await asyncio.to_thread(self.running.wait_for, "listening on")

    async def kill(self) -> None:
        """Kill it (SIGKILL)."""
        if self.running is not None and self.alive:
            self.running.process.kill()
            await asyncio.to_thread(self.running.wait)
            # As without the proxy, nothing listens at its address.
            self.proxy.deafen()
            assert "Traceback" not in self.running.errors, self.running.errors

    def pause(self) -> None:
        """Stop its process, as a machine does that swaps or migrates."""
        self._send(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        self._send(signal.SIGCONT)
        self.paused = False

    def _send(self, which: signal.Signals) -> None:
        if self.running is not None and self.alive:
            self.running.process.send_signal(which)

    async def end(self) -> None:
        """End it in good order."""
        if self.running is not None:
            code = await asyncio.to_thread(self.running.end)
            assert code == 0, self.running.errors
            assert "Traceback" not in self.running.errors, self.running.errors


class Hubs(World):
    """Several hubs, each behind a proxy, and what happens to them."""

    peer: "type[CutPeer]" = RoamingPeer

    def __init__(self, directory: Path, network: Network, seed: int, mutant: str = ""):
        super().__init__(directory, seed, sys.maxsize)
        self.directory = directory
        self.network = network
        #: The defect of the hubs, as arguments of their command.
        self.mutant = ["--mutant", mutant] if mutant else []
        #: Called with each line of the progress.
        self.tell: Callable[[str], object] = lambda text: None

    def lost_hub(self) -> None:
        """From now on, the end of a connection may not be the answer of the hub that it was made to; another hub may
        lead, without what the former one had only in memory."""
        self.life += 1

    async def prepare(self) -> None:
        """Wait until a fault may be injected."""

    async def examine(self) -> None:
        """Look at the hubs after a fault."""


class Cluster(Hubs):
    """Three hubs on one database. `gaps`: by fault, the seconds without a leader that each took."""

    def __init__(
        self,
        directory: Path,
        network: Network,
        servers: Sequence[PostgreSql],
        seed: int,
        mutant: str = "",
        hubs: int = 3,
        lease: float = LEASE,
        patience: float = PATIENCE,
    ):
        super().__init__(directory, network, seed, mutant)
        self.lease = lease
        self.patience = patience
        # Clients wait for a leader that keeps its lease.
        self.peer = type("Client", (RoamingPeer,), {"patience": max(SILENCE, lease)})
        #: The primary first, then its standby, if there is one.
        self.servers = list(servers)
        #: How each server reaches the other.
        self.replication = {one.port: network.proxy(("127.0.0.1", one.port)) for one in servers}
        self.units = [Unit(self, number) for number in range(hubs)]
        self.gaps: dict[str, list[float]] = defaultdict(list)
        #: True to inject a fault only while all hubs are ready: one that starts takes the processor from the others.
        self.calm = False
        self._leader = -1
        self._since: tuple[str, float] | None = None
        self._background: set[asyncio.Task[None]] = set()

    def settings(self, unit: Unit) -> str:
        """A hub's configuration."""
        text = f'{CONFIG}[storage]\npath = "{unit.url}"\n[metrics]\nport = {unit.metrics}\n'
        if len(self.units) > 1:
            standby = "required" if len(self.servers) > 1 else "none"
            text += f'[cluster]\nadvertise = "127.0.0.1:{unit.proxy.port}"\nlease = {self.lease}\n'
            text += f'standby = "{standby}"\n'
        return text

    # -- clients -----------------------------------------------------------------------------------------------------

    async def address(self, missed: int) -> tuple[str, int]:
        """The hub that led last; after a refusal one after the other."""
        if missed:
            await asyncio.sleep(0.02)
        return self.units[(max(self._leader, 0) + missed) % len(self.units)].proxy.address

    def reached_hub(self, address: tuple[str, int]) -> None:
        number = next(unit.number for unit in self.units if unit.proxy.address == address)
        if number != self._leader:
            self._leader = number
            self.lost_hub()

    # -- faults ------------------------------------------------------------------------------------------------------

    @property
    def primary(self) -> PostgreSql:
        """The database server that is written to."""
        return self.servers[0]

    async def epoch(self) -> int:
        """The epoch of the database's leader."""
        return int(await asyncio.to_thread(self.primary.sql, "SELECT epoch FROM leader"))

    @property
    def leader(self) -> Unit:
        """The hub that accepted a client last."""
        return self.units[max(self._leader, 0)]

    async def prepare(self) -> None:
        """Wait until another hub than the leader is ready to lead; ``calm``: until all are."""
        enough = all if self.calm else any
        others = [unit for unit in self.units if unit is not self.leader]
        deadline = time.monotonic() + PATIENCE
        while others and not enough([await unit.is_ready() for unit in others]):
            if time.monotonic() > deadline:
                raise AssertionError(f"no candidate within {PATIENCE} s:\n{self.logs()}")
            await asyncio.sleep(0.05)

    def begin_fault(self, name: str, *, anywhere: bool = False) -> None:
        """Measure the time until a hub acknowledges a message: another one than the leader, or ``anywhere``."""
        self.lost_hub()
        self._since = name, time.monotonic()
        others = [unit for unit in self.units if unit is not self.leader]
        self._spawn(self._probe(*self._since, self.units if anywhere or not others else others))

    async def _probe(self, name: str, began: float, units: "list[Unit]") -> None:
        tasks = [asyncio.create_task(self._ask(unit)) for unit in units]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if self._since == (name, began):
            seconds = time.monotonic() - began
            self.gaps[name].append(seconds)
            self.tell(f"{name}: {seconds:.2f} s")
            self._since = None
        for task in tasks:
            task.cancel()

    async def _ask(self, unit: Unit) -> None:
        """Try to publish at a hub until it acknowledges."""
        while self._since is not None:
            peer: Peer | None = None
            try:
                peer = await _Probe.open(unit.proxy.address)
                if (await peer.auth()).code == 0:
                    await peer.send_message("probe", b"")
                    return
            except LOST:
                pass
            finally:
                if peer is not None:
                    peer.abort()
            await asyncio.sleep(0.02)

    async def progress(self) -> None:
        """Wait until messages are acknowledged after a fault that need not take the leader away."""
        self._since = None
        await self.recovered()

    async def recovered(self) -> None:
        """Wait until messages are acknowledged again, by another hub if the fault is measured."""
        wanted = self.checker.count["acked"] + RECOVERED
        deadline = time.monotonic() + self.patience
        while self.checker.count["acked"] < wanted or self._since is not None:
            if self.published or self.checker.wrong:
                self._since = None
                return
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"no leader within {self.patience:g} s after {self._since}:\n{self.logs()}"
                )
            await asyncio.sleep(0.005)

    def logs(self) -> str:
        """The last lines of each hub's log."""
        return "\n".join(
            f"hub {unit.number}: " + "\n  ".join(unit.running.errors.splitlines()[-12:])
            for unit in self.units
            if unit.running is not None
        )

    def later_start(self, unit: Unit) -> None:
        """Start a killed hub while others lead."""
        self._spawn(unit.start())

    def _spawn(self, work: "Coroutine[Any, Any, None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def heal(self) -> None:
        """End all faults, and wait until every hub runs."""
        for proxy in self.network.proxies:
            proxy.heal()
        for server in self.servers:
            server.resume()
        for unit in self.units:
            if unit.paused:
                unit.resume()
        if self._background:
            await asyncio.gather(*self._background)

    # -- start and end -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the hubs."""
        await asyncio.gather(*(unit.start() for unit in self.units))

    async def end(self) -> None:
        await self.heal()
        for unit in self.units:
            await unit.end()

    def abandon(self) -> None:
        for unit in self.units:
            if unit.running is not None and unit.alive:
                unit.running.process.kill()
                unit.running.process.wait()


def summary(gaps: "dict[str, list[float]]") -> Iterator[str]:
    """Lines of the times without a leader."""
    for fault, seconds in sorted(gaps.items()):
        median, most = statistics.median(seconds), max(seconds)
        yield f"{fault}: {len(seconds)} times without a leader, median {median:.2f} s, maximum {most:.2f} s"


_World = TypeVar("_World", bound=Hubs)


async def inject(
    world: _World,
    faults: Mapping[str, Callable[[_World], Awaitable[None]]],
    names: Sequence[str],
    operations: int,
) -> None:
    """Inject one fault after the other, spread over so many operations; then let the publishers end."""
    between = max(1, operations // (len(names) + 1))
    for name in names:
        wanted = world.operations + world.chance.randrange(1, 2 * between)
        while world.operations < wanted:
            await asyncio.sleep(0.002)
        world.see("fault", name)
        try:
            await world.prepare()
            world.tell(name)
            world.lost_hub()
            await faults[name](world)
            world.lost_hub()
            await world.examine()
        except BrokerError as error:
            raise AssertionError(f"{name}: {error}") from error
    while world.operations < operations:
        await asyncio.sleep(0.002)
    world.messages = 0


def tell(text: str) -> None:
    """Print progress with the time, as in the hubs' logs."""
    print(f"{datetime.now(timezone.utc):%H:%M:%S.%f} {text}", file=sys.stderr, flush=True)
