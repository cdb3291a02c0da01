"""Check the history of several hubs on one PostgreSQL, under faults.

    python -m tests.cluster.run --operations 100000 --kills 100 --failovers 20 --seed 7

Three hubs, a PostgreSQL with a synchronous standby, and proxies between all of them. Prints counts, the times without
a leader, and what is wrong; the exit status is 1 if anything is.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from headwater_host.hub.storage import Store
from tests.cluster import faults, observer
from tests.cluster.mutants import CONTROL, MUTANTS
from tests.cluster.proxy import Network
from tests.cluster.world import LEASE, PATIENCE, Cluster, inject, quiet_port, summary, tell
from tests.host import hub_history
from tests.host.mutant_report import report_mutants
from tools.postgres import PostgreSql

_SETTINGS: dict[str, object] = {}
#: Times that a mutant's faults are injected, and operations for each.
ROUNDS, OPERATIONS = 4, 300


class ObservedCluster(Cluster):
    """A cluster whose database records the epochs that write."""

    #: True to look at what is recorded after each fault.
    examines = False

    async def examine(self) -> None:
        if self.examines:
            await self._examine()

    async def _examine(self) -> None:
        rows = await asyncio.to_thread(observer.observed, self.primary)
        self.checker.wrong += observer.two_leaders(rows)

    async def start(self) -> None:
        await super().start()
        (await self.login("observer")).abort()
        await asyncio.to_thread(observer.install, self.primary)

    async def end(self) -> None:
        await super().end()
        await self._examine()


async def store_messages(url: str, count: int) -> None:
    """Store so many messages of 100 bytes, in ten topics."""
    store = Store.open(url)
    try:
        for n in range(10):
            store.register(f"stored/{n}")
        for n in range(count):
            store.publish(f"stored/{n % 10}", b"stored %d" % n, 1, bytes(100), time_ns=store.age.now())
            if n % 5000 == 0:
                done = asyncio.Event()
                store.after(done.set)
                await done.wait()
    finally:
        await store.close()


def run(
    operations: int,
    seed: int,
    names: Sequence[str],
    *,
    standby: bool = True,
    hubs: int = 3,
    mutant: str = "",
    lease: float = LEASE,
    patience: float = 120.0,
    until_wrong: bool = False,
    stored: int = 0,
    keep: Path | None = None,
    tell: Callable[[str], object] = lambda text: None,
) -> Cluster:
    """Return a history of about so many operations, with these faults spread over it, in a cluster that has ``stored``
    messages already."""

    async def main(directory: Path, network: Network, servers: list[PostgreSql]) -> Cluster:
        cluster = ObservedCluster(
            directory, network, servers, seed, mutant, hubs, lease, min(patience, PATIENCE)
        )
        cluster.examines = until_wrong
        cluster.tell = tell
        cluster.calm = stored > 0
        if stored:
            await store_messages(servers[0].url(), stored)
        if standby:
            primary, second = servers
            through = cluster.replication[primary.port].port
            await asyncio.to_thread(second.follow, primary, faults.name_of(second), through)
            await asyncio.to_thread(primary.require, faults.name_of(second))
        await hub_history.play(
            cluster, lambda: inject(cluster, faults.ALL, names, operations), patience, until_wrong=until_wrong
        )
        return cluster

    with ExitStack() as stack:
        directory = keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = [PostgreSql(port=quiet_port(), settings=_SETTINGS) for _ in range(1 + standby)]
        for server in servers:
            stack.callback(server.remove)
        servers[0].start()
        network = stack.enter_context(Network())
        return asyncio.run(main(directory, network, servers))


def find(name: str, seed: int) -> str:
    """Return what the checker finds of a mutant, "" if nothing. Without a name: of hubs as they are."""
    mutant, rounds = (MUTANTS[name], ROUNDS) if name else (CONTROL, 1)
    names = list(mutant.faults) * rounds
    try:
        found = run(
            OPERATIONS * len(names),
            seed,
            names,
            standby=mutant.standby,
            mutant=name,
            lease=mutant.lease,
            patience=20 + mutant.lease,
            until_wrong=True,
        )
    except AssertionError as error:
        # No hub acknowledges anything any more, or one has failed.
        return str(error).partition("\n")[0]
    return "; ".join(found.checker.wrong[:1])


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=100, help="how often the leader's process is killed")
    parser.add_argument("--failovers", type=int, default=20, help="how often PostgreSQL's primary is lost")
    parser.add_argument("--others", type=int, default=5, help="how often each other fault is injected")
    parser.add_argument("--only", action="append", help="inject only this fault; repeatable")
    parser.add_argument("--stored", type=int, default=0, help="messages that are stored before")
    parser.add_argument("--hubs", type=int, default=3)
    parser.add_argument("--no-standby", action="store_true", help="PostgreSQL without a standby")
    parser.add_argument("--mutant", choices=list(MUTANTS), default="", help="a defect of the hubs")
    parser.add_argument(
        "--mutants", action="store_true", help="check that each mutant, or the one of --mutant, is found"
    )
    parser.add_argument("--events", type=Path, help="a file for all events, as lines of JSON")
    parser.add_argument("--keep", type=Path, help="an empty directory for the hubs' logs")
    args = parser.parse_args()
    if args.mutants:
        return report_mutants(
            [args.mutant] if args.mutant else ["", *MUTANTS], lambda name: find(name, args.seed)
        )
    standby = not args.no_standby
    names = faults.deck(random.Random(args.seed), args.kills, args.failovers if standby else 0, args.others)
    if args.only:
        names = [name for name in names if name in args.only]
    began = time.monotonic()
    cluster = run(
        args.operations,
        args.seed,
        names,
        standby=standby,
        hubs=args.hubs,
        mutant=args.mutant,
        until_wrong=bool(args.mutant),
        stored=args.stored,
        keep=args.keep,
        tell=tell,
    )
    if args.events:
        args.events.write_text("".join(json.dumps(event) + "\n" for event in cluster.events))
    count = cluster.checker.count
    print(f"{cluster.operations} operations, {count['fault']} of {len(names)} faults, ", end="")
    print(f"{time.monotonic() - began:.0f} s:")
    print("".join(f"  {kind} {number}\n" for kind, number in sorted(count.items())), end="")
    print(f"  delivered again, as allowed: {dict(cluster.checker.again)}")
    print("\n".join(f"  {line}" for line in summary(cluster.gaps)))
    print(
        "\n".join(cluster.checker.wrong[:20])
        or "nothing lost, doubled, reordered or undone; one leader at a time"
    )
    return 1 if cluster.checker.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
