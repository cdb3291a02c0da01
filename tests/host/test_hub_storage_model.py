"""The hub's storage against a plain model of what it is to do, with closing and opening at any time."""

import asyncio
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater_host.hub.storage import DEAD, Limits, Store
from tests.host.hub_storage import NOW, Place, ident, put, synced

TRIES = 2
GROUPS = ("g", "h")


@dataclass
class Model:
    """What was published and what became of it, for each group by message."""

    attached: dict[str, set[int]] = field(
        default_factory=dict
    )  # group: messages that it has not acknowledged
    open: dict[str, list[int]] = field(default_factory=dict)
    tries: Counter[tuple[str, int]] = field(default_factory=Counter)
    dead: list[int] = field(default_factory=list)
    queues: int = 1

    def kept(self) -> set[int]:
        """What must still be there: what some group has not acknowledged."""
        return set().union(*self.attached.values())


#: What may be done, and how often.
_OFTEN = {
    "publish": 5,
    "take": 5,
    "ack": 6,
    "sync": 3,
    "back": 2,
    "reopen": 1,
    "grow": 1,
    "attach": 1,
    "detach": 1,
}
_KINDS = [kind for kind, often in _OFTEN.items() for _ in range(often)]
_step = st.tuples(st.sampled_from(_KINDS), st.integers(0, 30), st.integers(0, 9))
steps = st.lists(_step, min_size=20, max_size=60)


async def play(path: Place, plan: list[tuple[str, int, int]]) -> None:
    limits = Limits(tries=TRIES, cache=300)
    store, model, seqs = Store.open(path, limits), Model(), dict[int, int]()
    store.register("t")
    for what, one, two in [("attach", 0, 0), ("attach", 1, 0), *plan]:
        group = GROUPS[one % 2]
        if what == "publish":
            seq = put(store, "t", one, b"%d" % one, process=0)
            assert bool(seq) == (one not in seqs), "stored once"
            if seq:
                seqs[one] = seq
                for waiting in model.attached.values():
                    waiting.add(one)
        elif what == "grow":
            model.queues = max(model.queues, one % 3 + 1)
            store.register("t", model.queues)
        elif what == "attach" and store.attach(group, "t"):
            topic = store.topics["t"]
            here = store._cache.read(topic.name, topic.queues[0].after(0, 99))
            model.attached[group] = {int(message.payload) for message in here}
            model.open[group] = []
        elif what == "detach":
            assert store.detach(group, "t") == (group in model.attached)
            model.attached.pop(group, None)
            model.tries = Counter({key: count for key, count in model.tries.items() if key[0] != group})
        elif what == "take" and group in model.attached:
            for delivery in store.take(group, "t", 0, two):
                n = int(delivery.message.payload)
                assert n in model.attached[group], "not acknowledged yet"
                assert n not in model.open[group], "handed out once"
                assert delivery.tries == model.tries[group, n]
                model.open[group].append(n)
        elif what in ("ack", "back") and group in model.attached and model.open[group]:
            n = model.open[group].pop(two % len(model.open[group]))
            if what == "ack":
                assert store.ack(group, "t", 0, seqs[n])
                model.attached[group].remove(n)
                continue
            model.tries[group, n] += 1
            buried = store.give_back(group, "t", 0, [seqs[n]], time_ns=NOW)
            assert buried == ([seqs[n]] if model.tries[group, n] == TRIES else [])
            if buried:
                model.attached[group].remove(n)
                model.dead.append(n)
        elif what == "sync":
            await synced(store)
        elif what == "reopen":
            await store.close()
            store = Store.open(path, limits)
            model.open = {group: [] for group in model.attached}
        assert store.topics["t"].count == sum(len(queue) for queue in store.topics["t"].queues)
        assert all(seqs[n] in store.topics["t"].queues[0] for n in model.kept())
        assert store.topics.bytes == sum(topic.bytes for topic in store.topics.values())
    await store.close()
    # In the end everybody gets all that is theirs, in order.
    store = Store.open(path, limits)
    assert set(store.topics["t"].groups) == set(model.attached)
    assert {int(m.payload) for m in store.read("t", 0, 0, 99)} >= model.kept()
    dead = store.read(DEAD + "t", 0, 0, 99) if model.dead else []
    assert [int(m.payload) for m in dead] == model.dead
    assert [m.id for m in dead] == [ident(n, 0) for n in model.dead]
    for group, rest in model.attached.items():
        got = [int(one.message.payload) for one in store.take(group, "t", 0, 99)]
        assert got == sorted(rest, key=seqs.__getitem__)
        for n in got:
            store.ack(group, "t", 0, seqs[n])
    await synced(store)
    if model.attached:
        assert not store.topics["t"].count
    await store.close()


@settings(deadline=None, max_examples=50)
@given(steps)
def test_whatever_happens_each_group_gets_each_message_until_it_acknowledges_it(
    plan: list[tuple[str, int, int]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder) / "hub.db", plan))


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=steps)
def test_the_same_with_postgresql(database: str, plan: list[tuple[str, int, int]]) -> None:
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("DROP SCHEMA public CASCADE")
        db.execute("CREATE SCHEMA public")
    asyncio.run(play(database, plan))
