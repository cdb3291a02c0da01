"""Check the history of hubs that replicate by SLAVEOF, under faults and promotions by hand.

    python -m tests.cluster.sites --operations 20000 --faults 30 --seed 7

Four hubs, each with a storage of its own; two slaves confirm each transaction. Each hub reaches each other hub through
a proxy of its own, and so do the clients. Prints counts and what is wrong; the exit status is 1 if anything is.
"""

import argparse
import asyncio
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tests.cluster import launch
from tests.cluster.faults import must_not_acknowledge
from tests.cluster.launch import step
from tests.cluster.proxy import Network, Proxy
from tests.cluster.world import PATIENCE, RECOVERED, Hubs, inject, quiet_port, tell
from tests.host import hub_history
from tests.host.command import Running, headwater
from tests.host.history_actors import CONFIG
from tests.host.mutant_report import report_mutants

NAMES = "abcd"
#: Seconds of a disturbance.
_SHORT = 0.5
#: The clocks are set by so many seconds.
_STEPS = (3600.0, -3600.0, 86_400.0 * 400, -86_400.0 * 400)
#: Changes that are kept for slaves: one that is away for longer gets a snapshot.
_KEPT = 1000
#: In the log of a leader that knows that it is deposed.
_DEPOSED = "steps down"


class Site:
    """One hub: its process, its storage, the proxy in front of it, and those to the other hubs."""

    def __init__(self, world: "Sites", name: str):
        self.name = name
        self._world = world
        self.directory = world.directory / name
        self.directory.mkdir()
        self.port = quiet_port()
        self.proxy: Proxy = world.network.proxy(("127.0.0.1", self.port))
        #: By name, the proxies to the other hubs.
        self.links: dict[str, Proxy] = {}
        self.clock = self.directory / "clock"
        launch.make(self.clock)
        self.running: Running | None = None

    @property
    def config(self) -> Path:
        return self.directory / "hub.toml"

    @property
    def storage(self) -> Path:
        return self.directory / "hub.db"

    @property
    def alive(self) -> bool:
        return self.running is not None and self.running.process.poll() is None

    @property
    def log(self) -> str:
        return self.running.errors if self.running is not None else ""

    def configure(self) -> None:
        """Write its configuration. All proxies exist."""
        addresses = {name: link.port for name, link in self.links.items()} | {self.name: self.proxy.port}
        text = f'{CONFIG}[storage]\npath = "{self.storage}"\n'
        text = text.replace("[limits]\n", f"[limits]\nchanges = {_KEPT}\n")
        text += f'[replication]\nname = "{self.name}"\nleader = "{NAMES[0]}"\n'
        for name in NAMES:
            text += f'[[hub]]\nname = "{name}"\naddress = "127.0.0.1:{addresses[name]}"\n'
        self.config.write_text(text)

    async def start(self) -> None:
        """Start it and wait until it listens."""
        arguments = ["hub", "--config", "hub.toml", "--port", str(self.port)]
        command = [sys.executable, launch.__file__, str(self.clock), *self._world.mutant]
        self.running = Running(arguments, self.directory, command, cwd=self.directory)
        await asyncio.to_thread(self.running.wait_for, "listening on")

    async def kill(self) -> None:
        """Kill it (SIGKILL)."""
        if self.running is not None and self.alive:
            self.running.process.kill()
            await asyncio.to_thread(self.running.wait)
            assert "Traceback" not in self.log, self.log

    async def end(self) -> None:
        """End it in good order."""
        assert self.running is not None
        code = await asyncio.to_thread(self.running.end)
        assert code == 0, self.log
        assert "Traceback" not in self.log, self.log


class Sites(Hubs):
    """The hubs and what happens to them. Clients talk to the hub that the operator made the leader."""

    def __init__(self, directory: Path, network: Network, seed: int, mutant: str = ""):
        super().__init__(directory, network, seed, mutant)
        self.sites = {name: Site(self, name) for name in NAMES}
        for site in self.sites.values():
            site.links = {
                name: network.proxy(("127.0.0.1", other.port))
                for name, other in self.sites.items()
                if other is not site
            }
            site.configure()
        self.leader = self.sites[NAMES[0]]

    @property
    def slaves(self) -> list[Site]:
        return [site for site in self.sites.values() if site is not self.leader]

    # -- clients -----------------------------------------------------------------------------------------------------

    async def address(self, missed: int) -> tuple[str, int]:
        """The hub that leads as far as the operator knows."""
        if missed:
            await asyncio.sleep(0.05)
        return self.leader.proxy.address

    # -- the operator ------------------------------------------------------------------------------------------------

    async def command(self, *words: object) -> "subprocess.CompletedProcess[bytes]":
        """Run a command of headwater hub."""
        return await asyncio.to_thread(headwater, "hub", *words)

    async def promote(self, *sites: Site) -> None:
        """Promote a slave with the configuration of each of these hubs at the same time. At most one leads then, and
        another attempt has one lead."""
        deadline = time.monotonic() + PATIENCE
        while True:
            several = [self.command("promote", "--config", site.config) for site in sites]
            found: list[tuple[int, str]] = []
            said = b""
            for done in await asyncio.gather(*several):
                said += done.stdout + done.stderr
                for name, epoch in re.findall(
                    r"^(\w) leads epoch (\d+)$", done.stdout.decode(), re.MULTILINE
                ):
                    found.append((int(epoch), name))
            if len({epoch for epoch, _ in found}) < len(found):
                self.checker.wrong.append(f"two leaders of one epoch: {said!r}")
            if found:
                self.lost_hub()
                *deposed, (_, name) = sorted(found)
                self.leader = self.sites[name]
                self.tell(f"{name} leads")
                for _, name in deposed:
                    # The later promotion found no leader within the time that it waits for another one.
                    await self.sites[name].end()
                    await self.rejoin(self.sites[name])
                return
            assert time.monotonic() < deadline, said
            sites = sites[:1]

    async def rejoin(self, site: Site) -> None:
        """Make a stopped leader a slave, and start it."""
        done = await self.command("rejoin", "--config", site.config, self.leader.name)
        assert done.returncode == 0, done.stderr
        await site.start()

    async def recovered(self) -> None:
        """Wait until messages are acknowledged again."""
        wanted = self.checker.count["acked"] + RECOVERED
        deadline = time.monotonic() + PATIENCE
        while self.checker.count["acked"] < wanted and not self.published and not self.checker.wrong:
            if time.monotonic() > deadline:
                raise AssertionError(f"nothing is acknowledged within {PATIENCE} s:\n{self.logs()}")
            await asyncio.sleep(0.005)

    async def refuses(self, site: Site, why: bytes) -> None:
        """A promotion with this configuration is refused."""
        done = await self.command("promote", "--config", site.config)
        if done.returncode != 1 or why not in done.stderr:
            said = done.stdout + done.stderr
            self.checker.wrong.append(f"two leaders: a promotion is not refused with {why!r}: {said!r}")

    def logs(self) -> str:
        """The last lines of each hub's log."""
        return "\n".join(
            f"hub {site.name}: " + "\n  ".join(site.log.splitlines()[-12:]) for site in self.sites.values()
        )

    # -- start and end -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the hubs."""
        await asyncio.gather(*(site.start() for site in self.sites.values()))

    async def end(self) -> None:
        """End the hubs, once the slaves have everything, and compare what they have."""
        deadline = time.monotonic() + PATIENCE
        while len({await self._position(site) for site in self.sites.values()}) > 1:
            assert time.monotonic() < deadline, f"the hubs do not become equal:\n{self.logs()}"
            await asyncio.sleep(0.1)
        for site in [*self.slaves, self.leader]:
            await site.end()
        texts = [(await self.command("export", site.storage)).stdout for site in self.sites.values()]
        if len(set(texts)) > 1:
            self.checker.wrong.append("undone: the hubs' storages are not equal at the end")

    async def _position(self, site: Site) -> bytes:
        done = await self.command("status", site.config)
        return b"".join(re.findall(rb"^(?:lineage|seq): .*$", done.stdout, re.MULTILINE))

    def abandon(self) -> None:
        for site in self.sites.values():
            if site.running is not None and site.alive:
                site.running.process.kill()
                site.running.process.wait()


# -- faults ------------------------------------------------------------------------------------------------------------


async def kill_leader(world: Sites) -> None:
    """Kill the leader, promote a slave, and make the old leader a slave."""
    old = world.leader
    await old.kill()
    await world.promote(world.chance.choice(world.slaves))
    await world.recovered()
    await world.rejoin(old)


async def promote_twice(world: Sites) -> None:
    """Kill the leader, and promote on two hubs at the same time."""
    old = world.leader
    await old.kill()
    await world.promote(*world.chance.sample(world.slaves, 2))
    await world.recovered()
    await world.rejoin(old)


async def promote_on_both_sides(world: Sites) -> None:
    """Kill the leader, split the slaves, and promote on both sides: one slave alone must not lead."""
    old = world.leader
    alone, *others = world.chance.sample(world.slaves, 3)
    for other in others:
        for proxy in (alone.links[other.name], other.links[alone.name]):
            proxy.isolate()
    await old.kill()
    await asyncio.gather(world.refuses(alone, b"must be fenced"), world.promote(others[0]))
    # One slave of the new leader is left, and two have to confirm.
    for other in others:
        for proxy in (alone.links[other.name], other.links[alone.name]):
            proxy.heal()
            proxy.cut()
    await world.recovered()
    await world.rejoin(old)


async def split(world: Sites) -> None:
    """Cut the leader off from all other hubs, not from its clients. Nothing is acknowledged until another hub leads."""
    old, slaves = world.leader, world.slaves
    links = [site.links[old.name] for site in slaves] + list(old.links.values())
    for link in links:
        link.isolate()
    since = len(world.events)
    await world.refuses(old, b"leads epoch")
    must_not_acknowledge(world, since, "while the slaves are away")
    await world.promote(world.chance.choice(slaves))
    await world.recovered()
    for link in links:
        link.heal()
        link.cut()
    await _replace(world, old)


async def _replace(world: Sites, old: Site) -> None:
    """Make a leader a slave when the new leader, or a slave, has told it."""
    assert old.running is not None
    await asyncio.to_thread(old.running.wait_for, _DEPOSED)
    await old.end()
    await world.rejoin(old)


async def operator_cut_off(world: Sites) -> None:
    """Promote at a slave that alone cannot reach the leader. The other slaves confirm nothing to the old one then."""
    old, slave = world.leader, world.chance.choice(world.slaves)
    links = [slave.links[old.name], old.links[slave.name]]
    for link in links:
        link.isolate()
    await world.promote(slave)
    await world.recovered()
    for link in links:
        link.heal()
        link.cut()
    await _replace(world, old)


async def two_slaves_away(world: Sites) -> None:
    """Cut two of three slaves off. Nothing is acknowledged meanwhile."""
    links = [slave.links[world.leader.name] for slave in world.chance.sample(world.slaves, 2)]
    for link in links:
        link.isolate()
    since = len(world.events)
    await asyncio.sleep(6 * _SHORT)
    must_not_acknowledge(world, since, "with one slave")
    for link in links:
        link.heal()
        link.cut()
    await world.recovered()


async def kill_slave(world: Sites) -> None:
    """Kill a slave, which returns when others have gone on."""
    slave = world.chance.choice(world.slaves)
    await slave.kill()
    await world.recovered()
    await slave.start()
    await world.recovered()


async def slave_away(world: Sites) -> None:
    """Cut a slave off in one direction or in both, now and then for so long that it needs a snapshot."""
    slave = world.chance.choice(world.slaves)
    link = slave.links[world.leader.name]
    for name in world.chance.choice((("up",), ("down",), ("up", "down"))):
        getattr(link, name).hold()
    for _ in range(world.chance.choice((1, 10))):
        await world.recovered()
    link.heal()
    link.cut()


async def cut_links(world: Sites) -> None:
    """Reset the connections of all slaves, again and again."""
    for _ in range(10):
        for slave in world.slaves:
            slave.links[world.leader.name].cut()
        await asyncio.sleep(world.chance.random() / 5)
    await world.recovered()


async def set_clocks(world: Sites) -> None:
    """Set the wall clock of a hub far forward or back."""
    step(world.chance.choice(list(world.sites.values())).clock, world.chance.choice(_STEPS))
    await world.recovered()


FAULTS: dict[str, Callable[[Sites], Awaitable[None]]] = {
    "kill leader": kill_leader,
    "promote twice": promote_twice,
    "promote on both sides": promote_on_both_sides,
    "split": split,
    "operator cut off": operator_cut_off,
    "two slaves away": two_slaves_away,
    "kill slave": kill_slave,
    "slave away": slave_away,
    "cut links": cut_links,
    "clocks": set_clocks,
}


#: Defects of `tests.host.hub_slave_mutants`, and the faults under which this checker finds each.
MUTANTS: dict[str, list[str]] = {
    "skips a change": ["kill leader"],
    "answers before its slaves": ["split"],
    "counts one slave for all": ["two slaves away"],
    "is promoted without a fence": ["operator cut off"],
    "forgets its promise": ["operator cut off"],
}


def run(
    operations: int,
    seed: int,
    names: Sequence[str],
    *,
    mutant: str = "",
    patience: float = 120.0,
    until_wrong: bool = False,
    tell: Callable[[str], object] = lambda text: None,
) -> Sites:
    """Return a history of about so many operations, with these faults spread over it."""

    async def main(directory: Path, network: Network) -> Sites:
        world = Sites(directory, network, seed, mutant)
        world.tell = tell
        await hub_history.play(
            world, lambda: inject(world, FAULTS, names, operations), patience, until_wrong=until_wrong
        )
        return world

    with tempfile.TemporaryDirectory() as directory, Network() as network:
        return asyncio.run(main(Path(directory), network))


def find(name: str, seed: int) -> str:
    """Return what the checker finds of a mutant, "" if nothing. Without a name: of hubs as they are."""
    names = MUTANTS.get(name) or sorted({fault for some in MUTANTS.values() for fault in some})
    try:
        world = run(300 * (1 + len(names)), seed, names, mutant=name, patience=20.0, until_wrong=True)
    except AssertionError as error:
        # Nothing is acknowledged any more, or a hub has failed.
        return str(error).partition("\n")[0]
    return "; ".join(world.checker.wrong[:1])


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--operations", type=int, default=20_000)
    parser.add_argument("--faults", type=int, default=24, help="how many faults are injected")
    parser.add_argument("--only", action="append", choices=list(FAULTS), help="only this fault; repeatable")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--mutants", action="store_true", help="check that each mutant is found, and nothing else"
    )
    args = parser.parse_args()
    if args.mutants:
        return report_mutants(["", *MUTANTS], lambda name: find(name, args.seed))
    kinds = args.only or list(FAULTS)
    names = [kinds[n % len(kinds)] for n in range(args.faults)]
    random.Random(args.seed).shuffle(names)
    began = time.monotonic()
    world = run(args.operations, args.seed, names, tell=tell)
    print(f"{world.operations} operations, {len(names)} faults, {time.monotonic() - began:.0f} s:")
    print("".join(f"  {kind} {number}\n" for kind, number in sorted(world.checker.count.items())), end="")
    print(f"  delivered again, as allowed: {dict(world.checker.again)}")
    print("\n".join(world.checker.wrong[:20]) or "nothing lost, doubled, reordered or undone; hubs are equal")
    return 1 if world.checker.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
