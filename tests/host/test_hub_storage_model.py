"""The hub's storage against a plain model of what it is to do, with closing and opening at any time."""

import asyncio
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_host.hub.storage import DEAD, Limits, Store
from tests.host.hub_storage import NOW, ident, put, synced

TRIES = 2
GROUPS = ("g", "h")


@dataclass
class Model:
    """What was published and what became of it, for each group by message."""

    published: dict[int, int] = field(default_factory=dict)  # message: its queue
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


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 30), st.integers(0, 3)),
        st.tuples(st.just("attach"), st.sampled_from(GROUPS), st.just(0)),
        st.tuples(st.just("detach"), st.sampled_from(GROUPS), st.just(0)),
        st.tuples(st.just("grow"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("take"), st.sampled_from(GROUPS), st.integers(0, 3)),
        st.tuples(st.just("ack"), st.sampled_from(GROUPS), st.integers(0, 9)),
        st.tuples(st.just("back"), st.sampled_from(GROUPS), st.integers(0, 9)),
        st.tuples(st.just("sync"), st.just(0), st.just(0)),
        st.tuples(st.just("reopen"), st.just(0), st.just(0)),
    ),
    max_size=50,
)


async def play(path: Path, plan: list[tuple[str, int | str, int]]) -> None:
    limits = Limits(tries=TRIES, cache=300)
    store, model, seqs = Store.open(path, limits), Model(), dict[int, int]()
    store.register("t")
    for what, one, two in plan:
        if what == "publish" and isinstance(one, int):
            seq = put(store, "t", one, b"%d" % one, process=0)
            assert bool(seq) == (one not in model.published), "stored once"
            if seq:
                model.published[one], seqs[one] = 0, seq
                for open_ in model.attached.values():
                    open_.add(one)
        elif what == "grow" and isinstance(one, int):
            model.queues = max(model.queues, one)
            store.register("t", model.queues)
        elif what == "attach" and isinstance(one, str):
            if store.attach(one, "t"):
                here = {
                    int(m.payload)
                    for m in store._read(store.topics["t"], store.topics["t"].queues[0].after(0, 99))
                }
                model.attached[one] = here
                model.open[one] = []
        elif what == "detach" and isinstance(one, str):
            assert store.detach(one, "t") == (one in model.attached)
            model.attached.pop(one, None)
            model.tries = Counter({key: count for key, count in model.tries.items() if key[0] != one})
        elif what == "take" and one in model.attached:
            assert isinstance(one, str)
            for delivery in store.take(one, "t", 0, two):
                n = int(delivery.message.payload)
                assert n in model.attached[one], "not acknowledged yet"
                assert n not in model.open[one], "handed out once"
                assert delivery.tries == model.tries[one, n]
                model.open[one].append(n)
        elif what in ("ack", "back") and one in model.attached and model.open[str(one)]:
            group = str(one)
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
        assert store.bytes == sum(topic.bytes for topic in store.topics.values())
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


@settings(deadline=None, max_examples=60)
@given(steps)
def test_whatever_happens_each_group_gets_each_message_until_it_acknowledges_it(
    plan: list[tuple[str, int | str, int]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder) / "hub.db", plan))
