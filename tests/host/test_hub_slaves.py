"""A slave follows its leader over connections that are cut at any byte, and equals it afterwards."""

import asyncio
import random
import time
from pathlib import Path
from typing import BinaryIO

import psycopg
import pytest

from headwater_host.hub.errors import StorageError
from headwater_host.hub.replication import slaves as slaves_module
from headwater_host.hub.replication import wire
from headwater_host.hub.replication.leading import begin, lead
from headwater_host.hub.replication.lineage import KEPT, Lineage, new_ident
from headwater_host.hub.replication.quorum import Quorum
from headwater_host.hub.replication.slaves import Ending, Slaves
from headwater_host.hub.storage import Change, Limits, Message, Store
from headwater_host.hub.storage import backup as backups
from headwater_host.hub.storage.backup import backup, install
from headwater_host.hub.storage.follow import Some
from headwater_host.hub.storage.store import open_engine
from tests.host.hub_changes import Changes
from tests.host.hub_slave import Pipe, SlaveHub, leader_of
from tests.host.hub_storage import BOTH_ENGINES, Place, ident, put, store_at, synced, taken
from tests.host.sql import execute
from tests.waiting import PATIENCE_S, until

#: Changes in ``./run test``; the long run is ``python -m tests.host.hub_slave_run``.
CHANGES = 20_000


def exported(store: Store) -> str:
    return "\n".join(store.export())


async def equal(store: Store, slave: SlaveHub) -> None:
    """The slave has everything on disk, and its state is the leader's."""
    await synced(store)
    await until(lambda: slave.store.durable == store.seq)
    assert exported(slave.store) == exported(store)


def check_whole(store: Store, slave: SlaveHub) -> None:
    """What the slave has on disk ends where a transaction of the leader ends, and it can write more."""
    assert slave.store.error is None, slave.store.error
    seq = slave.store.durable
    if seq > store.followed:
        assert store._engine.turn_after(seq) == seq, f"half a transaction: the slave ends with change {seq}"


async def run(
    folder: Path,
    seed: int,
    changes: int,
    kept: int = 500,
    patience: float = PATIENCE_S,
    place: Place | None = None,
) -> dict[str, float]:
    """Make changes while a slave follows over connections that are cut; return what happened.

    ``kept``: the changes that the leader keeps. After a long absence the slave needs a snapshot. ``place``: the
    leader's storage, otherwise a file.
    """
    chance = random.Random(seed)
    folder.mkdir(exist_ok=True)
    path = place or folder / "leader.db"
    limits = Limits(changes=kept, ids=5_000, topic_messages=2_000, tries=3, full="drop")
    leader = Store.open(path, limits)
    slaves = leader_of(leader, path, "b")
    slave = SlaveHub(folder / "slave.db", limits=limits)
    maker = Changes(leader, chance, payload=200)
    cuts, began = 0, time.monotonic()
    while leader.seq < changes:
        absent = chance.random() < 0.03
        pipe = None
        if not absent:
            down = chance.choice((1_000, 100_000, 10_000_000))
            pipe = Pipe(slaves, slave.follower, chance.randrange(1, down), chance.randrange(1, 20_000))
        for _ in range(chance.randrange(1, 40)):
            for _ in range(50 if absent else 20):
                maker.step()
            maker.take()
            await synced(leader)
            await asyncio.sleep(0)
        if pipe is not None:
            assert not pipe.refused, pipe.refused
            check_whole(leader, slave)
            pipe.cut()
            cuts += 1
            while any(one.copying for one in slaves.slaves.values()):
                await asyncio.sleep(0.001)
        await slave.settle()
        if chance.random() < 0.05:
            await slave.reopen()
    deadline = time.monotonic() + patience
    while slave.store.durable < leader.seq:
        pipe = Pipe(slaves, slave.follower)
        while pipe.is_open and not slave.is_due and slave.store.durable < leader.seq:
            check_whole(leader, slave)
            assert time.monotonic() < deadline, f"the slave stays at {slave.store.durable} of {leader.seq}"
            await asyncio.sleep(0.001)
        assert not pipe.refused, pipe.refused
        pipe.cut()
        await slave.settle()
    await equal(leader, slave)
    await slaves.close()
    await slave.store.close()
    await leader.close()
    return {
        "changes": leader.seq,
        "cuts": cuts,
        "snapshots": slave.installed,
        "seconds": round(time.monotonic() - began, 1),
    }


async def test_a_slave_equals_its_leader_after_cuts_at_any_byte(tmp_path: Path) -> None:
    found = await run(tmp_path, 1, CHANGES)
    assert found["cuts"] > 20, found
    assert found["snapshots"] >= 1, found


@pytest.mark.needs_postgresql
async def test_a_slave_equals_a_leader_on_postgresql(tmp_path: Path, database: str) -> None:
    found = await run(tmp_path, 2, CHANGES // 4, place=database)
    assert found["cuts"] > 5, found
    assert found["snapshots"] >= 1, found


# -- registering -------------------------------------------------------------------------------------------------------


class Line:
    """A connection of a slave that a test speaks for."""

    writable = True

    def __init__(self, slaves: Slaves, **follow: object):
        self.got: list[object] = []
        self.refused = ""
        self._slaves = slaves
        asked = {"version": wire.VERSION, "name": "b", "lineage": "", "seq": 0, "synced": 0, "fence": 0}
        self.say(follow=asked | follow)

    def payload(self, data: bytes) -> None:
        self.got.append(wire.unpack(data))

    def refuse(self, text: str) -> None:
        self.refused = text
        self._slaves.lost(self)

    def say(self, **values: object) -> None:
        self._slaves.received(self, wire.control(**values))


async def test_slaves_that_do_not_continue_this_history_are_refused(tmp_path: Path) -> None:
    async with store_at(tmp_path / "leader.db") as store:
        first = leader_of(store, tmp_path / "leader.db", "b").lineage
        store.register("t")
        second = begin(store, first, 2, new_ident())
        store.register("u")
        await synced(store)
        fork = second[1].after
        deposed: list[int] = []
        slaves = leader_of(store, tmp_path / "leader.db", "b", deposed=deposed.append)
        await synced(store)
        other = Lineage().followed_by(1, "other", 0)
        newer = second.followed_by(3, "newer", store.seq)
        elsewhere = first.followed_by(2, "elsewhere", fork - 1)
        for follow, text in (
            ({"version": 2}, "the stream is of version 2"),
            ({"lineage": other.text(), "seq": 1}, "holds another hub's state"),
            ({"seq": 1}, "holds another hub's state"),
            (
                {"lineage": first.text(), "seq": fork + 1},
                f"changes {fork + 1} to {fork + 1}, which this leader",
            ),
            (
                {"lineage": elsewhere.text(), "seq": fork + 3},
                f"changes {fork} to {fork + 3}, which this leader",
            ),
            ({"lineage": second.text(), "seq": store.seq + 1}, "which this leader does not have"),
            ({"lineage": slaves.lineage.text(), "seq": store.seq + 1}, "promote the slave"),
            ({"lineage": newer.text(), "seq": store.seq + 1}, "epoch 3 has begun"),
            ({"lineage": slaves.lineage.text(), "seq": store.seq, "fence": 4}, "epoch 4 has begun"),
        ):
            assert text in Line(slaves, **follow).refused
        assert deposed == [3, 4]
        for seq, history in (
            (0, ""),
            (1, first.text()),
            (fork, first.text()),
            (store.seq, slaves.lineage.text()),
        ):
            line = Line(slaves, lineage=history, seq=seq)
            assert not line.refused
            assert line.got[0]["lead"]["epoch"] == 2  # type: ignore[index]
        await slaves.close()


async def test_a_slave_is_counted_once_in_its_epoch_and_for_what_it_was_sent(tmp_path: Path) -> None:
    async with store_at(tmp_path / "leader.db") as store:
        slaves = leader_of(store, tmp_path / "leader.db", "b", "c", sync=2)
        assert store.committed < store.register("t") + store.seq
        await until(lambda: store.durable == store.seq)
        assert store.committed < store.durable
        b, again = Line(slaves), Line(slaves)
        assert "another connection" in b.refused
        stranger = Line(slaves, name="stranger")
        await until(lambda: all(len(line.got) > 1 for line in (again, stranger)))
        for line in (again, stranger):
            line.say(synced=store.seq, epoch=1)
        assert store.committed < store.durable
        early = Line(slaves, name="c")
        early.say(synced=store.seq + 1, epoch=1)
        assert "which it was not sent" in early.refused
        late = Line(slaves, name="c")
        await until(lambda: len(late.got) > 1)
        late.say(synced=store.seq, epoch=0)
        assert "of epoch 0" in late.refused
        assert store.committed < store.durable
        right = Line(slaves, name="c")
        await until(lambda: len(right.got) > 1)
        right.say(synced=store.seq, epoch=1)
        assert store.committed == store.durable
        await slaves.close()


async def test_a_slave_is_sent_only_what_is_durable(tmp_path: Path) -> None:
    """PostgreSQL shows a transaction whose wait for the standby was cancelled."""
    async with store_at(tmp_path / "leader.db") as store:
        slaves = leader_of(store, tmp_path / "leader.db", "b")
        await synced(store)
        first = store.durable
        store.register("t")
        put(store, "t", 1)
        await synced(store)
        store._writer.durable = first
        line = Line(slaves)

        def changes() -> list[wire.Changes]:
            return [one for one in line.got if isinstance(one, wire.Changes)]

        await until(changes)
        for _ in range(100):
            await asyncio.sleep(0)
        assert [(one.turn, one.changes[-1].seq) for one in changes()] == [(first, first)]
        store._writer.durable = store.seq
        slaves.wake()
        await until(lambda: len(changes()) > 1)
        assert changes()[1].changes[0].seq == first + 1
        assert changes()[-1].turn == store.seq
        await slaves.close()


async def test_changes_that_cannot_be_read_now_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slaves_module, "AGAIN", 0.01)
    async with store_at(tmp_path / "leader.db") as store:
        slaves = leader_of(store, tmp_path / "leader.db", "b")
        store.register("t")
        put(store, "t", 1)
        await synced(store)
        read = store.turns_after
        failed: list[int] = []

        def fails(after: int, limit: int, size: int) -> Some:
            if len(failed) < 3:
                failed.append(after)
                raise StorageError("the database did not answer")
            return read(after, limit, size)

        monkeypatch.setattr(store, "turns_after", fails)
        slave = SlaveHub(tmp_path / "slave.db")
        pipe = Pipe(slaves, slave.follower)
        await equal(store, slave)
        assert (len(failed), pipe.refused, slaves.snapshots) == (3, "", 0)
        pipe.cut()
        await slave.store.close()
        await slaves.close()


@BOTH_ENGINES
@pytest.mark.parametrize("damage", ["payload = '1'", "topic = 77", "tags = '['"])
async def test_a_damaged_message_does_not_stop_a_slave(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    async with store_at(place) as store:
        slaves = leader_of(store, place, "b")
        mirror = Store(open_engine(place), Limits()) if isinstance(place, str) else None
        store.register("t")
        store.attach("g", "t")
        seqs = [put(store, "t", n, b"0") for n in range(9)]
        retained = put(store, "t", 9, b"0", retain=True)
        await synced(store)
        run_sql(place, f"UPDATE messages SET {damage} WHERE seq = {seqs[4]}")
        slave = SlaveHub(tmp_path / "slave.db")
        pipe = Pipe(slaves, slave.follower)
        await until(lambda: slave.store.durable == store.seq)
        there = [*seqs[:4], *seqs[5:], retained]
        assert [one.seq for one in slave.store.read("t", 0, 0, 99)] == there
        assert ident(4) in slave.store._seen.ids
        assert store.damaged == 1
        says = f"message {seqs[4]} of the hub's storage {store._engine.name} is not what was written"
        assert says in caplog.text
        assert ident(4).hex() in caplog.text
        if mirror is not None:
            assert mirror.catch_up(1000)
            assert [one.seq for one in mirror.read("t", 0, 0, 99)] == there
            await mirror.close()
        # When the leader's consumers have had the others, both hold the same again.
        store._cache.drop(range(store.seq))
        for seq in taken(store):
            store.ack("g", "t", 0, seq)
        await equal(store, slave)
        assert (pipe.refused, slaves.snapshots) == ("", 0)
        pipe.cut()
        await slave.store.close()
        await slaves.close()


async def test_a_damaged_change_is_an_error(tmp_path: Path) -> None:
    async with store_at(tmp_path / "hub.db") as store:
        store.register("t")
        await synced(store)
        run_sql(tmp_path / "hub.db", "UPDATE changes SET body = '['")
        with pytest.raises(StorageError, match="change 1 of the hub's storage is not what was written"):
            store.changes(0, 10)


def run_sql(place: Place, statement: str) -> None:
    if isinstance(place, Path):
        execute(place, statement)
    else:
        with psycopg.connect(place, autocommit=True) as db:
            db.execute(statement.encode())


async def test_a_hub_that_ends_does_not_wait_for_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the end, this one would take four minutes."""
    monkeypatch.setattr(backups, "_PAGES", 1)
    path = tmp_path / "leader.db"
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def snapshot(ending: Ending) -> BinaryIO:
        def proceed() -> None:
            loop.call_soon_threadsafe(begun.set)
            time.sleep(0.1)
            ending.proceed()

        backup(str(path), str(tmp_path / "copy.db"), proceed)
        return (tmp_path / "copy.db").open("rb")

    async with store_at(path, Limits(changes=5)) as store:
        slaves = lead(store, ("b",), 0, snapshot)
        await behind(store, bytes(10_000_000))
        slave = SlaveHub(tmp_path / "slave.db")
        pipe = Pipe(slaves, slave.follower)
        await begun.wait()
        # The hub writes on meanwhile.
        put(store, "t", 100)
        await synced(store)
        pipe.cut()
        await slaves.close()
        await asyncio.wait_for(loop.shutdown_default_executor(), PATIENCE_S)
        assert not (tmp_path / "copy.db").exists()
        await slave.store.close()


async def test_a_hub_that_ends_does_not_wait_for_a_snapshot_of_a_database(
    database: str, tmp_path: Path
) -> None:
    async with store_at(database, Limits(changes=5)) as store:
        slaves = leader_of(store, database, "b")
        await behind(store, b"")
        slave = SlaveHub(tmp_path / "slave.db")
        with psycopg.connect(database) as lock, psycopg.connect(database, autocommit=True) as look:
            lock.execute("LOCK TABLE messages")
            pipe = Pipe(slaves, slave.follower)
            waits = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'relation'"
            await until(lambda: look.execute(waits).fetchall())
            pipe.cut()
            await slaves.close()
            loop = asyncio.get_running_loop()
            await asyncio.wait_for(loop.shutdown_default_executor(), PATIENCE_S)
        await slave.store.close()


async def behind(store: Store, payload: bytes) -> None:
    """Write more changes than the leader keeps for its slaves."""
    store.register("t")
    put(store, "t", 99, payload)
    for n in range(20):
        put(store, "t", n)
        await synced(store)
    store.trim(store.age.now())
    await synced(store)


async def test_a_slave_notices_that_its_leader_was_taken_back(tmp_path: Path) -> None:
    """The leader's storage is restored from a backup, and has written other changes since."""
    path, copy = tmp_path / "leader.db", tmp_path / "copy.db"
    async with store_at(path) as store:
        slaves = leader_of(store, path, "b")
        store.register("t")
        await synced(store)
        backup(str(path), str(copy))
        put(store, "t", 1, b"lost")
        await synced(store)
        slave = SlaveHub(tmp_path / "slave.db")
        pipe = Pipe(slaves, slave.follower)
        await until(lambda: slave.store.durable == store.seq)
        pipe.cut()
        await slaves.close()
    install(str(copy), str(path))
    async with store_at(path) as store:
        slaves = leader_of(store, path, "b")
        for n in range(20):
            put(store, "t", n, b"other")
        await synced(store)
        assert store.seq > slave.store.seq
        pipe = Pipe(slaves, slave.follower)
        await until(lambda: pipe.refused)
        assert "which this leader does not have" in pipe.refused
        await slave.store.close()
        await slaves.close()


def test_old_starts_are_forgotten_and_their_slaves_refused() -> None:
    history = old = Lineage().followed_by(1, "first", 0)
    for n in range(1, 3 * KEPT):
        history = history.followed_by(1, str(n), 10 * n)
    assert len(history) == KEPT
    assert old.fork(Lineage(), 0) == 0
    assert history.fork(old, 5) is None
    assert history.fork(Lineage(history[:7]), 10**6) == history[7].after
    # A slave that diverged after a start is noticed, whatever was forgotten.
    diverged = Lineage(history[:7]).followed_by(1, "other", history[6].after + 3)
    assert history.fork(diverged, 10**6) == history[6].after + 3


def test_a_quorum_commits_in_order_what_enough_slaves_have() -> None:
    done: list[int] = []
    quorum = Quorum(("a", "b", "c"), 2)
    for last in (5, 7, 9):
        quorum.confirm(last, lambda last=last: done.append(last))  # type: ignore[misc]
    quorum.acknowledge("a", 9)
    quorum.acknowledge("x", 9)
    assert not done
    quorum.acknowledge("b", 8)
    assert done == [7]  # which commits what is before it
    quorum.acknowledge("c", 9)
    assert done == [7, 9]
    quorum.confirm(9, lambda: done.append(0))
    assert done == [7, 9, 0]
    Quorum((), 0).confirm(1, lambda: done.append(1))
    assert done[-1] == 1
    with pytest.raises(ValueError, match="sync = 3, but there are 2 slaves"):
        Quorum(("a", "b"), 3)


async def test_the_cost_of_a_transaction_does_not_depend_on_how_many_wait() -> None:
    def seconds(waiting: int) -> float:
        quorum = Quorum(("a", "b", "c"), 2)
        for last in range(waiting):
            quorum.confirm(last, lambda: None)
        began = time.perf_counter()
        for last in range(waiting, waiting + 2_000):
            quorum.confirm(last, lambda: None)
            quorum.acknowledge("a", last - waiting)
            quorum.acknowledge("b", last - waiting)
        return time.perf_counter() - began

    assert min(seconds(100_000) for _ in range(5)) < 5 * min(seconds(10) for _ in range(5))


async def test_a_slave_that_promised_a_promotion_does_not_follow_an_earlier_epoch(tmp_path: Path) -> None:
    async with store_at(tmp_path / "leader.db") as store:
        slaves = leader_of(store, tmp_path / "leader.db", "b")
        slave = SlaveHub(tmp_path / "slave.db")
        slave.store.count_locally("fence", Lineage().followed_by(1, "mine", 0).text())
        await synced(slave.store)
        with pytest.raises(StorageError, match="a promotion to epoch 1 fences it"):
            slave.follower._led(1, slaves.lineage.text(), 0, 0)
        await slave.reopen()
        with pytest.raises(StorageError, match="a promotion to epoch 1 fences it"):
            slave.follower._led(1, slaves.lineage.text(), 0, 0)
        slave.follower._led(2, slaves.lineage.followed_by(2, "next", 0).text(), 0, 0)
        slave.store.count_locally("fence", Lineage().followed_by(2, "mine", 0).text())
        promoted = slaves.lineage.followed_by(2, "mine", 0)
        with pytest.raises(StorageError, match="a promotion to epoch 2 fences it"):
            slave.follower._led(2, slaves.lineage.followed_by(2, "another", 0).text(), 0, 0)
        # The hub that was promoted has started again since.
        slave.follower._led(2, promoted.followed_by(2, "again", 0).text(), 0, 0)
        slave.store.count_locally("fence", Lineage().followed_by(3, "mine", 0).text())
        with pytest.raises(StorageError, match="a promotion to epoch 3 fences it"):
            slave.follower._led(2, slaves.lineage.followed_by(2, "next", 0).text(), 0, 0)
        await slave.store.close()
        await slaves.close()


# -- the stream --------------------------------------------------------------------------------------------------------

_MESSAGE = Message(9, b"id", "t/é", 3, ("a", "ü"), b"payload" * 9, 2, True, -5)
_CHANGES = [
    Change(7, "seen", (b"\0id", 1 << 60)),
    Change(8, "retained", (_MESSAGE._replace(seq=8, tags=(), payload=b""),)),
    Change(9, "message", (_MESSAGE,)),
    Change(10, "session", ("x", {"user": None, "é": [1, "2"]})),
]


def test_changes_survive_the_stream_and_damage_does_not() -> None:
    data = wire.pack(5, 11, _CHANGES)
    assert wire.unpack(data) == wire.Changes(5, 11, _CHANGES)
    assert wire.unpack(wire.piece(b"abc")) == b"abc"
    assert wire.unpack(wire.control(committed=3)) == {"committed": 3}
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 4
        for bad in (bytes(damaged), data[:at]):
            with pytest.raises(StorageError, match="is malformed"):
                wire.unpack(bad)


async def test_a_transaction_of_the_leader_is_whole_in_the_slave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store_at(tmp_path / "leader.db") as store:
        slaves = leader_of(store, tmp_path / "leader.db", "b")
        slave = SlaveHub(tmp_path / "slave.db")
        ends = [store.durable]
        for n in range(20):
            for k in range(n + 1):
                store.register(f"t{n}/{k}")
            await synced(store)
            ends.append(store.seq)
        monkeypatch.setattr(slaves_module, "SOME", 3)
        pipe = Pipe(slaves, slave.follower)
        while slave.store.durable < store.seq:
            await asyncio.sleep(0)
            # The numbers that the slave reserves are a transaction of their own.
            assert slave.store.seq in (*ends, ends[-1] + 1)
            assert slave.store.durable in (*ends, ends[-1] + 1)
        pipe.cut()
        await slave.store.close()
        await slaves.close()


async def test_pieces_end_where_a_transaction_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slaves_module, "SOME", 3)
    async with store_at(tmp_path / "leader.db") as store:
        slaves = leader_of(store, tmp_path / "leader.db", "b")
        await synced(store)
        for n in range(20):
            store.register(f"t{n}")
            store.register(f"u{n}")
            await synced(store)
        line = Line(slaves)
        await until(lambda: slaves.slaves["b"].position == store.durable)
        pieces = [found for found in line.got if isinstance(found, wire.Changes)]
        assert len(pieces) >= 20
        assert all(found.changes[-1].seq == found.turn for found in pieces)
        await slaves.close()


async def test_a_transaction_larger_than_the_window_reaches_a_slave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slaves_module, "SOME", 3)
    monkeypatch.setattr(slaves_module, "WINDOW", 1)
    async with store_at(tmp_path / "leader.db") as store:
        slaves = leader_of(store, tmp_path / "leader.db", "b")
        slave = SlaveHub(tmp_path / "slave.db")
        for n in range(10):
            for k in range(n):
                store.register(f"t{n}/{k}")
            await synced(store)
        pipe = Pipe(slaves, slave.follower)
        await equal(store, slave)
        pipe.cut()
        await slave.store.close()
        await slaves.close()


async def test_a_slave_shows_what_the_leader_has_committed(tmp_path: Path) -> None:
    async with store_at(tmp_path / "leader.db") as store:
        slaves = leader_of(store, tmp_path / "leader.db", "b", "c", sync=2)
        slave = SlaveHub(tmp_path / "slave.db")
        shown: list[Message] = []
        slave.store.on_commit = shown.extend
        store.register("t")
        seq = put(store, "t", 1)
        pipe = Pipe(slaves, slave.follower)
        other = Line(slaves, name="c")
        await until(lambda: slave.store.durable == store.seq)
        await until(lambda: slaves.quorum.synced["b"] == store.seq)
        assert not shown
        # The transaction also has the numbers that the slave reserves.
        await until(lambda: slaves.slaves["c"].position == store.durable == store.seq)
        other.say(synced=store.durable, epoch=1)
        await until(lambda: [message.seq for message in shown] == [seq])
        pipe.cut()
        await slave.store.close()
        await slaves.close()


async def test_a_slave_confirms_only_what_is_on_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store_at(tmp_path / "leader.db") as store:
        slaves = leader_of(store, tmp_path / "leader.db", "b", sync=1)
        slave = SlaveHub(tmp_path / "slave.db")
        pipe = Pipe(slaves, slave.follower)
        await until(lambda: slave.store.durable == store.seq == store.committed)
        fails: list[object] = []

        def write(transaction: object) -> None:
            fails.append(transaction)
            raise StorageError("the disk is full")

        monkeypatch.setattr(slave.store._engine, "write", write)
        store.register("t")
        await until(lambda: fails)
        assert slave.store.seq == store.seq
        # A connection after the change arrived says nothing else.
        pipe.cut()
        pipe = Pipe(slaves, slave.follower)
        for _ in range(100):
            await asyncio.sleep(0)
        assert store.committed < store.durable == store.seq
        monkeypatch.undo()
        await until(lambda: store.committed == store.seq)
        pipe.cut()
        await slave.store.close()
        await slaves.close()
