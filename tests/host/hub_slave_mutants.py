"""Replication with one defect, to see that the scenarios of this module find it.

    python -m tests.host.hub_slave_mutants

Each scenario must pass without a defect. They use real storages; connections are cut at random bytes.
"""

import argparse
import asyncio
import contextlib
import inspect
import random
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from itertools import chain, combinations
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from headwater_host.client.fmq import Client
from headwater_host.errors import ClientError
from headwater_host.hub import site
from headwater_host.hub.errors import StorageError
from headwater_host.hub.replication import follower, promotion, quorum, wire
from headwater_host.hub.replication import slaves as leaders
from headwater_host.hub.replication.lineage import Lineage, new_ident
from headwater_host.hub.storage import Store, follow, replay
from headwater_host.hub.storage import store as stores
from tests.host import test_hub_slaves
from tests.host.hub_sites import sites
from tests.host.hub_slave import Pipe, SlaveHub, leader_of
from tests.host.hub_storage import put
from tests.host.mutant_report import report
from tests.waiting import until

Scenario = Callable[[Path], Coroutine[Any, Any, None]]
#: Seconds in which a scenario that does not end has failed.
PATIENCE = 20.0

# -- scenarios ---------------------------------------------------------------------------------------------------------


async def cuts(folder: Path) -> None:
    """A slave equals its leader, and never holds half a transaction; its connections are cut at any byte."""
    with mock.patch.object(leaders, "SOME", 3):
        for seed in (3, 4, 5):
            await test_hub_slaves.run(folder / str(seed), seed, 1500, 1_000_000, PATIENCE)


async def absences(folder: Path) -> None:
    """A slave equals its leader after absences for which the leader does not keep the changes."""
    await test_hub_slaves.run(folder, 1, 4000, 500, PATIENCE)


async def confirmations(folder: Path, seed: int = 1) -> None:
    """What is committed is on the disks of two of three named slaves, which come and go, as does the leader."""
    chance = random.Random(seed)
    named, need, path = "bcd", 2, folder / "leader.db"
    hubs = {name: SlaveHub(folder / f"{name}.db", name) for name in (*named, "stranger")}
    for hub in hubs.values():
        _slow_down(hub)
    pipes: dict[str, Pipe] = {}
    wrong: list[str] = []

    def check(seq: int) -> None:
        have = [name for name in named if hubs[name].store.durable >= seq]
        if len(have) < need:
            wrong.append(f"change {seq} is committed, and on the disks of {have or 'no slaves'}")

    def open_leader() -> tuple[Store, leaders.Slaves]:
        store = Store.open(path)
        slaves = leader_of(store, path, *named, sync=need)
        store.after(partial(check, store.seq))
        return store, slaves

    store, slaves = open_leader()
    store.register("t")
    for n in range(150):
        for name, hub in hubs.items():
            if name in pipes and pipes[name].is_open:
                if chance.random() < 0.1:
                    pipes[name].cut()
            elif chance.random() < 0.3:
                pipes[name] = Pipe(slaves, hub.follower)
        put(store, "t", n)
        store.after(partial(check, store.seq))
        if chance.random() < 0.03:
            for pipe in pipes.values():
                pipe.cut()
            await slaves.close()
            await store.close()
            store, slaves = open_leader()
        await asyncio.sleep(chance.random() * 0.01)
        assert not wrong, wrong[0]
    for pipe in pipes.values():
        pipe.cut()
    pipes = {name: Pipe(slaves, hubs[name].follower) for name in named}
    await until(lambda: wrong or store.committed == store.seq, "everything is committed", PATIENCE)
    assert not wrong, wrong[0]
    for pipe in pipes.values():
        pipe.cut()
    for hub in hubs.values():
        await hub.store.close()
    await slaves.close()
    await store.close()


def _slow_down(hub: SlaveHub) -> None:
    write = hub.store._engine.write

    def slow(transaction: Any) -> None:
        time.sleep(0.005)
        write(transaction)

    hub.store._engine.write = slow  # type: ignore[method-assign]


async def old_leader(folder: Path) -> None:
    """A leader that cannot be reached by a promotion acknowledges nothing once its slaves are fenced."""
    async with sites(folder, "abc", sync=1) as hubs:
        await hubs.start()
        await hubs.connected("a", "b", "c")
        async with Client("127.0.0.1", hubs.ports["a"], timeout=PATIENCE) as client:
            await client.publish("t", b"one", qos=1)
            ident = new_ident()
            for name in "bc":
                await hubs.call(name, command="fence", epoch=2, ident=ident)
            with contextlib.suppress(ClientError):
                await client.publish("t", b"two", qos=1)
                raise AssertionError("a leader acknowledges what its slaves were fenced for")
        await hubs.call("b", command="promote", epoch=2, ident=ident)
        await hubs.connected("b", "c")
        await until(lambda: hubs["a"].deposed == 2, "the old leader steps down")


async def promotions(folder: Path) -> None:
    """Whatever slaves have and answer: a promotion takes one that has everything committed, and fences enough."""
    for count in (1, 2, 3, 4):
        names = "bcde"[:count]
        for sync in range(1, count + 1):
            for having, answering in _pairs(names, sync):
                found = {name: _status(name in having) for name in answering}
                try:
                    promotion.plan(found, count + 1, sync)
                except StorageError:
                    continue
                at = f"sync = {sync}, {having} of {names} have it, {answering} answer"
                assert promotion.most_advanced(found) in having, f"lost: {at}"
                assert count - len(answering) < sync, f"two leaders: {at}"


def _pairs(names: str, sync: int) -> Iterator[tuple[str, str]]:
    some = [
        "".join(one) for one in chain.from_iterable(combinations(names, n) for n in range(len(names) + 1))
    ]
    return ((having, answering) for having in some if len(having) >= sync for answering in some if answering)


def _status(has_it: bool) -> dict[str, Any]:
    """A slave that has what is committed; or one that has more of a former epoch."""
    seq, lineage = (10, '[[2,"x",0],[3,"y",5]]') if has_it else (99, '[[2,"x",0]]')
    return {"role": "slave", "epoch": 3 if has_it else 2, "fence": 0, "seq": seq, "lineage": lineage}


# -- defects -----------------------------------------------------------------------------------------------------------


def _skipping(before: Any) -> Any:
    def apply(self: Any, found: wire.Changes) -> None:
        kept = [change for change in found.changes if change.seq % 50 or change.seq == found.turn]
        before(self, found._replace(changes=kept))

    return apply


def _asking_again(before: Any) -> Any:
    """Ask for the last changes again after each cut."""

    def begin(self: Any, send: Callable[[bytes], None]) -> None:
        def say(data: bytes) -> None:
            found = wire.unpack(data)
            if isinstance(found, dict) and "follow" in found:
                found["follow"]["seq"] = max(found["follow"]["seq"] - 3, 0)
                data = wire.control(**found)
            send(data)

        before(self, say)

    return begin


def _unchecked(before: Any) -> Any:
    def apply(self: Any, change: Any) -> None:
        self._writer.seq = min(self._writer.seq, change.seq - 1)
        before(self, change)

    return apply


def _keeping_partial(before: Any) -> Any:
    def lost(self: Any) -> None:
        kept = list(self._partial)
        before(self)
        self._partial = kept

    return lost


def _piecewise(before: Any) -> Any:
    return lambda self, found: before(self, found._replace(turn=0))


def _without_end(before: Any) -> Any:
    def turns_after(self: Any, after: int, limit: int, size: int = stores.FOLLOWED) -> Any:
        return follow.changes(self._engine, self._name, self._leave_out, after, limit, size)

    return turns_after


def _hasty(before: Any) -> Any:
    def apply(self: Any, found: wire.Changes) -> None:
        before(self, found)
        if self._send is not None:
            self._send(wire.control(synced=self._store.seq, epoch=self.epoch))

    return apply


def _at_once(before: Any) -> Any:
    return lambda self, last, done: done()


def _one_for_all(before: Any) -> Any:
    return property(lambda self: max(self._synced.values()))


def _anybody(before: Any) -> Any:
    def acknowledge(self: Any, name: str, seq: int) -> None:
        self._synced.setdefault(name, 0)
        before(self, name, seq)

    return acknowledge


def _any_epoch(before: Any) -> Any:
    return lambda self, line, epoch, seq: before(self, line, self.lineage.epoch, seq)


def _shown(before: Any) -> Any:
    def durable(self: Any, last: int, done: Callable[[], None]) -> None:
        before(self, last, lambda: None)
        done()

    return durable


def _promising(before: Any) -> Any:
    """Promise, and go on as before."""

    def fence(self: Any, epoch: int, ident: str) -> None:
        self.store.count_locally("fence", Lineage().followed_by(epoch, ident, 0).text())

    return fence


def _forgetting(before: Any) -> Any:
    return lambda store: Lineage()


def _one_less(before: Any) -> Any:
    return lambda found, hubs, sync, **more: before(found, hubs, sync + 1, **more)


def _longest(before: Any) -> Any:
    return lambda found: max(sorted(found), key=lambda name: found[name]["seq"])


def _everything(before: Any) -> Any:
    return lambda self, slave, seq: seq


class Mutant(NamedTuple):
    """One defect: what ``make`` makes of a function replaces it. ``scenario`` finds that."""

    scenario: Scenario
    #: Owner and name of each function, and what makes its replacement.
    changes: tuple[tuple[Any, str, Callable[[Any], Any]], ...]

    def made(self) -> Iterator[tuple[Any, str, Any]]:
        """Yield owner, name and replacement of each function."""
        for owner, name, make in self.changes:
            yield owner, name, make(inspect.getattr_static(owner, name))

    def install(self) -> None:
        """Make the defect in this process."""
        for owner, name, made in list(self.made()):
            setattr(owner, name, made)


def _mutant(scenario: Scenario, *change: Any) -> Mutant:
    return Mutant(scenario, tuple(zip(change[::3], change[1::3], change[2::3], strict=True)))


FOLLOWER = follower.Follower
MUTANTS: dict[str, Mutant] = {
    "skips a change": _mutant(cuts, FOLLOWER, "_apply", _skipping),
    "applies changes twice": _mutant(
        cuts, FOLLOWER, "begin", _asking_again, replay.Replay, "apply", _unchecked
    ),
    "keeps half a transaction after a cut": _mutant(cuts, FOLLOWER, "lost", _keeping_partial),
    "writes half a transaction": _mutant(cuts, FOLLOWER, "_apply", _piecewise),
    "sends changes after a gap": _mutant(absences, Store, "turns_after", _without_end),
    "confirms what is not on its disk": _mutant(confirmations, FOLLOWER, "_apply", _hasty),
    "answers before its slaves": _mutant(confirmations, quorum.Quorum, "confirm", _at_once),
    "counts one slave for all": _mutant(confirmations, quorum.Quorum, "reached", _one_for_all),
    "counts slaves without a name": _mutant(confirmations, quorum.Quorum, "acknowledge", _anybody),
    "counts a confirmation of a former epoch": _mutant(
        test_hub_slaves.test_a_slave_is_counted_once_in_its_epoch_and_for_what_it_was_sent,
        leaders.Slaves,
        "_acknowledged",
        _any_epoch,
    ),
    "shows what the leader has not committed": _mutant(
        test_hub_slaves.test_a_slave_shows_what_the_leader_has_committed, FOLLOWER, "_durable", _shown
    ),
    "takes any history for its own": _mutant(
        test_hub_slaves.test_slaves_that_do_not_continue_this_history_are_refused,
        Lineage,
        "fork",
        _everything,
    ),
    "is promoted without a fence": _mutant(old_leader, site.Site, "_fence", _promising),
    "forgets its promise": _mutant(old_leader, follower, "fenced", _forgetting),
    "fences one slave too few": _mutant(promotions, promotion, "plan", _one_less),
    "promotes the longest history": _mutant(promotions, promotion, "most_advanced", _longest),
}
#: All scenarios, to be passed without a defect.
SCENARIOS = list(dict.fromkeys(mutant.scenario for mutant in MUTANTS.values()))


def find(name: str) -> str:
    """Return what is found of a mutant, "" if nothing."""
    mutant = MUTANTS[name]
    with contextlib.ExitStack() as stack:
        for change in list(mutant.made()):
            stack.enter_context(mock.patch.object(*change))
        return run(mutant.scenario)


def run(scenario: Scenario) -> str:
    """Return what fails in a scenario, "" if nothing."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            asyncio.run(scenario(Path(folder)))
        except (AssertionError, StorageError) as error:
            return str(error).partition("\n")[0] or "an assertion fails"
    return ""


def main() -> int:
    """The command."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    work = [("no defect, " + one.__name__, partial(run, one), False) for one in SCENARIOS]
    work += [(name, partial(find, name), True) for name in MUTANTS]
    return report(work)


if __name__ == "__main__":
    sys.exit(main())
