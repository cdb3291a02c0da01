"""The hub's storage in PostgreSQL: whose database it is, and the server's faults, with a real server."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headwater_host.hub.errors import BehindError, FencedError, StorageError
from headwater_host.hub.storage import Limits, Store, cache, postgres, writer
from headwater_host.hub.storage import store as storage
from headwater_host.hub.storage.postgres import PostgresEngine
from headwater_host.hub.storage.sqlite import SqliteEngine
from headwater_host.hub.storage.store import open_engine
from tests.cluster.proxy import Network
from tests.host.command import headwater, running
from tests.host.hub_client import ClientLimits, Peer, config, hub_of, replace
from tests.host.hub_storage import (
    BOTH_ENGINES,
    Place,
    file_of,
    ident,
    put,
    queue_ids,
    rows_in,
    store_at,
    synced,
    taken,
)
from tests.host.test_hub_commands import _publish, listening
from tests.host.test_hub_consume import fill, payloads, responses
from tests.rows import each_row
from tests.waiting import until, wait_until
from tools.broker import HOST, free_port
from tools.postgres import DATABASE, USER, PostgreSql

Servers = Callable[..., PostgreSql]


def run(database: str, *statements: str) -> list[tuple[object, ...]]:
    """Run statements as another client does: the rows of the last one."""
    rows: list[tuple[object, ...]] = []
    with psycopg.connect(database, autocommit=True) as db:
        for statement in statements:
            done = db.execute(statement.encode())
            rows = done.fetchall() if done.description else []
    return rows


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed transaction is tried again soon."""
    monkeypatch.setattr(writer, "RETRY", 0.05)


# -- the database ------------------------------------------------------------------------------------------------------


def test_a_hub_with_postgresql(database: str, tmp_path: Path) -> None:
    for _ in range(2):
        with running("hub", "--storage", database, "--port", 0, directory=tmp_path) as hub:
            asyncio.run(_publish(listening(hub)))
            done = headwater("hub", "--storage", database, "--port", 0)
            assert done.returncode == 1
            assert b"is in use by another hub" in done.stderr
            assert hub.end() == 0
            assert "Traceback" not in hub.errors
    assert run(database, "SELECT count(*) FROM messages") == [(2,)]
    assert run(database, "SELECT epoch FROM leader") == [(2,)]


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(StorageError, match=r"the hub's storage postgresql://127\.0\.0\.1:\d+/x: ") as caught:
        Store.open(f"postgresql://me:secret@127.0.0.1:{free_port()}/x")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_program_without_psycopg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "headwater_host.hub.storage.postgres")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StorageError, match=r"needs psycopg: pip install 'headwater\[postgres\]'"):
        Store.open("postgresql://127.0.0.1/x")


@each_row(
    "damage, says",
    [
        ("UPDATE hub_storage SET version = 9", "is of version 9; this program knows version 1"),
        ("DROP TABLE seen", r'is damaged \(relation "seen" does not exist'),
        ("DELETE FROM leader", "the table leader has 0 rows"),
        ("UPDATE seen SET ids = ''", "remembered ids are not what was written"),
        ("UPDATE counters SET value = '7'", "a row of counters is not what was written"),
        ("UPDATE counters SET value = 'x'", "a row of counters is not what was written"),
        ("UPDATE positions SET through = 7", "a row of positions is not what"),
        ("UPDATE topics SET name = NULL", "a row of topics is not what"),
        ("UPDATE retained SET payload = ''", "a retained message is not what was written"),
        ("UPDATE messages SET queue = 5", "do not fit together"),
    ],
)
async def test_a_database_that_is_not_what_was_written(database: str, damage: str, says: str) -> None:
    async with store_at(database) as store:
        store.register("t")
        store.attach("g", "t")
        put(store, "t", 1, b"x", retain=True)
        store.sessions.process("client")
    run(database, damage)
    with pytest.raises(StorageError, match=says) as caught:
        Store.open(database)
    assert "\n" not in str(caught.value)
    run(database, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")


def test_another_programs_database(database: str) -> None:
    run(database, "CREATE TABLE messages (id integer)")
    with pytest.raises(StorageError, match='is another program\'s database: relation "messages" already'):
        Store.open(database)
    assert run(database, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(1,)]


async def test_names_with_any_character(database: str) -> None:
    name = "a\0b\\0c\\é\u2028'"
    async with store_at(database) as store:
        store.register("t\\0")
        store.attach(name, "t\\0")
        store.sessions.save(name, {"user": name})
        store.sessions.process(name)
        put(store, "t\\0", 1, tags=(name,))
    async with store_at(database) as store:
        assert list(store.topics["t\\0"].groups) == [name]
        assert [one.message.tags for one in store.take(name, "t\\0", 0, 9)] == [(name,)]
        assert [one.about for one in store.sessions.all()] == [{"user": name}]
        assert store.sessions.clients == {name: 1}
        assert store.detach(name, "t\\0")
        store.sessions.end(name)
    async with store_at(database) as store:
        assert not store.topics["t\\0"].groups
        assert not store.sessions.all()


# -- the fence ---------------------------------------------------------------------------------------------------------


@each_row(
    "change",
    [
        "UPDATE leader SET epoch = epoch + 1, turn = 0",
        "UPDATE leader SET turn = turn + 1",
        "UPDATE leader SET turn = turn - 1",  # a server that lost transactions
        "UPDATE leader SET epoch = epoch + 1; SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name LIKE 'headwater hub % epoch % writer'",
    ],
)
@each_row("messages", [1, 200])
async def test_nothing_is_written_when_another_hub_leads(database: str, change: str, messages: int) -> None:
    run(database, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    store = Store.open(database)
    said: list[Exception | None] = []
    store.tell(said.append)
    store.register("t")
    await synced(store)
    run(database, *change.split("; "))
    for n in range(messages):
        put(store, "t", n)
    answered: list[int] = []
    store.after(lambda: answered.append(1))
    await until(lambda: any(isinstance(error, FencedError) for error in said))
    assert "another hub leads with the storage postgresql://" in str(said[-1])
    await asyncio.sleep(0.2)
    assert not answered
    assert not store.read("t", 0, 0, 10)
    assert rows_in(store, "messages") == 0
    with pytest.raises(StorageError, match="another hub leads"):
        await store.close()
    assert run(database, "SELECT count(*) FROM messages") == [(0,)]


# -- connections that are lost -----------------------------------------------------------------------------------------


async def test_a_server_that_is_killed_again_and_again(postgresql: Servers) -> None:
    server = postgresql()
    answered: list[int] = []
    async with store_at(server.url()) as store:
        store.register("t")
        store.attach("g", "t")
        await synced(store)
        n = 0
        for life in range(4):
            for _ in range(60):
                n += 1
                put(store, "t", n, b"%d" % n)
                store.after(lambda n=n: answered.append(n))  # type: ignore[misc]
                await asyncio.sleep(0.001)
            # In the middle: not all of them are answered.
            await asyncio.to_thread(server.kill)
            put(store, "t", n + 1000)
            await until(lambda: store.error)
            await asyncio.to_thread(server.start)
            await synced(store)
            assert store.error is None
            assert answered == list(range(1, n + 1)), life
        assert len(taken(store, limit=1000)) == n + 4
    async with store_at(server.url()) as store:
        names = [one.id for one in store.read("t", 0, 0, 1000)]
        assert len(names) == len(set(names)) == n + 4
        assert {ident(one) for one in answered} <= set(names)


@pytest.mark.parametrize("messages", [1, 200])
@pytest.mark.parametrize("way", ["down", "up"])
async def test_a_commit_whose_answer_is_lost_is_looked_up_and_not_repeated(
    postgresql: Servers, way: str, messages: int
) -> None:
    """Down: the server committed. Up: the COMMIT did not arrive, and the transaction is open in the server."""
    server = postgresql()
    with Network() as network:
        proxy = network.proxy((HOST, server.port))
        store = Store.open(server.url(port=proxy.port))
        store.register("t")
        await synced(store)
        turn = int(server.sql("SELECT turn FROM leader"))
        lost = asyncio.Event()
        loop = asyncio.get_running_loop()

        def lose() -> None:
            getattr(proxy, way).swallow()
            loop.call_soon_threadsafe(lost.set)

        proxy.up.when(b"COMMIT", lose)
        answered: list[int] = []
        for n in range(messages):
            put(store, "t", n)
        store.after(lambda: answered.append(1))
        await asyncio.wait_for(lost.wait(), 60)
        if way == "down":
            count = "SELECT count(*) FROM messages"
            await until(lambda: server.sql(count) == str(messages))
        else:
            # In COPY, or idle after it.
            state = (
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE application_name LIKE 'headwater hub % writer' AND xact_start IS NOT NULL"
            )
            await until(lambda: messages == 1 or server.sql(state) == "1")
        assert not answered
        proxy.cut()
        proxy.heal()
        await synced(store)
        assert answered == [1]
        assert queue_ids(store) == [ident(n) for n in range(messages)]
        # One transaction: another one would have moved the turn once more.
        assert server.sql("SELECT turn FROM leader") == str(turn + 1)
        assert server.sql("SELECT count(*), count(DISTINCT id) FROM messages") == f"{messages}|{messages}"
        await store.close()


async def test_a_write_that_waits_for_ever_can_be_ended(postgresql: Servers) -> None:
    server = postgresql()
    with Network() as network:
        proxy = network.proxy((HOST, server.port))
        store = Store.open(server.url(port=proxy.port))
        proxy.isolate()
        store.register("t")
        await until(lambda: store._writer._running)
        began = time.monotonic()
        store._engine.abort()
        with pytest.raises(StorageError, match="is not up to date"):
            await store.close()
        assert time.monotonic() - began < 60
        proxy.heal()
    # The transaction may have been on its way: it is there once, or not.
    assert server.sql("SELECT turn - (SELECT count(*) FROM topics) FROM leader") == "0"


async def test_a_server_that_does_not_answer(postgresql: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "LATE", 0.3)
    server = postgresql()
    async with store_at(server.url()) as store:
        store.register("t")
        await synced(store)
        server.pause()
        try:
            put(store, "t", 1)
            assert store.error is None
            await until(lambda: store.error)
            assert "a transaction is not written after" in str(store.error)
        finally:
            server.resume()
        await synced(store)
        assert store.error is None
        assert queue_ids(store) == [ident(1)]


@BOTH_ENGINES
async def test_a_hub_reads_what_was_written_before_it_leads(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not lead with less than there is: it would give numbers again."""
    monkeypatch.setattr(storage, "_CAUGHT_UP", 7)
    limits = Limits(changes=20)
    warm = Store(open_engine(place), limits)
    # Another connection into the same storage; a file is locked against other hubs only.
    other = SqliteEngine(file_of(warm)) if isinstance(place, Path) else open_engine(place)
    store = Store(other, limits)
    store.lead()
    store.register("t")
    store.attach("g", "t")
    seqs = [put(store, "t", n, b"%d" % n) for n in range(30)]
    store.sessions.process("client")
    await synced(store)
    seqs.append(put(store, "t", 30, b"x", retain=True))
    await synced(store)
    store.ack("g", "t", 0, taken(store)[0])
    await synced(store)
    if not isinstance(place, Path):
        await store.close()
    warm.lead()
    assert warm.seq == store.seq
    assert taken(warm) == seqs[1:]
    assert warm.sessions.clients == {"client": 1}
    assert list(warm.retained) == ["t"]
    assert not put(warm, "t", 30)
    assert put(warm, "t", 31) == store.seq + 1
    await synced(warm)
    await warm.close()
    async with store_at(place, limits) as again:
        assert taken(again) == [*seqs[1:], warm.seq]


#: Has COMMIT wait while another session has the table gate locked.
GATE = """CREATE TABLE gate ();
CREATE FUNCTION wait() RETURNS trigger AS 'BEGIN PERFORM 1 FROM gate; RETURN NULL; END' LANGUAGE plpgsql;
CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON messages DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION wait()"""

#: A hub to be killed while it waits for its COMMIT.
KILLED = """
import asyncio, sys
from headwater_host.hub.storage import Limits, Store, postgres

postgres.LOCK_S = 600.0

async def main():
    store = Store.open(sys.argv[1], Limits(changes=10))
    store.register("t")
    for n in range(int(sys.argv[2])):
        store.publish("t", b"%d" % n, 1, b"", time_ns=1)
        store.trim(0)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("messages", [5, 50])
def test_a_killed_hubs_session_commits_after_the_next_hub_has_read(
    database: str, monkeypatch: pytest.MonkeyPatch, messages: int
) -> None:
    """With 50 messages it also removes changes that the next hub has not read."""
    monkeypatch.setattr(postgres, "LOCK_S", 600.0)
    monkeypatch.setattr(postgres, "LEAD_S", 600.0)

    async def make() -> None:
        await Store.open(database).close()

    asyncio.run(make())
    run(database, GATE)
    waits = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = %s"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with psycopg.connect(database) as lock, psycopg.connect(database, autocommit=True) as look:
        lock.execute("LOCK TABLE gate")
        killed = subprocess.Popen([sys.executable, "-c", KILLED, database, str(messages)], env=environment)
        try:
            wait_until(lambda: look.execute(waits, ("relation",)).fetchall())
        finally:
            killed.kill()
            killed.wait()
        with ThreadPoolExecutor(1) as thread:
            opening = thread.submit(Store.open, database)
            wait_until(lambda: look.execute(waits, ("advisory",)).fetchall() or opening.done())
            lock.commit()
            store = opening.result(200)

    async def use() -> None:
        assert len(queue_ids(store)) == messages
        seq = store.seq
        assert put(store, "t", 99) == seq + 1
        await store.close()

    asyncio.run(use())


#: As on a standby that lacks the last transaction, and is promoted.
LOSE = """DO $$ DECLARE n bigint := (SELECT max(seq) FROM turns); BEGIN
    DELETE FROM turns WHERE seq = n; SELECT max(seq) INTO n FROM turns;
    DELETE FROM messages WHERE seq > n; DELETE FROM changes WHERE seq > n; DELETE FROM seen WHERE seq > n;
    UPDATE leader SET turn = turn - 1; END $$"""


@pytest.mark.parametrize("others", [0, 1, 2, 5])
async def test_a_follower_that_has_read_what_a_failover_loses(database: str, others: int) -> None:
    """The new history may be shorter than what the follower has read, as long, or longer."""
    warm = Store(PostgresEngine(database), Limits())
    async with store_at(database) as store:
        store.register("t")
        await synced(store)
        put(store, "t", 1)
        await synced(store)
        assert not warm.catch_up(1)
        # Up to what is there now, however soon more comes.
        assert warm.catch_up(10)
    run(database, LOSE)
    async with store_at(database) as store:
        for n in range(others):
            put(store, "t", 10 + n)
            await synced(store)
    with pytest.raises(BehindError, match="has lost change 2, which this hub has read"):
        warm.catch_up(10)
    with pytest.raises(BehindError):
        warm.lead()
    await warm.close()
    async with store_at(database) as store:
        assert queue_ids(store) == [ident(10 + n) for n in range(others)]


async def test_a_follower_that_was_away_too_long(database: str) -> None:
    warm = Store(PostgresEngine(database), Limits())
    async with store_at(database, Limits(changes=5)) as store:
        store.register("t")
        for n in range(20):
            put(store, "t", n)
            await synced(store)
        store.trim(store.age.now())
        await synced(store)
    with pytest.raises(BehindError, match=r"changes up to \d+ are not kept any more"):
        warm.catch_up(10)
    await warm.close()


# -- a standby ---------------------------------------------------------------------------------------------------------

WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


async def test_a_cancelled_wait_for_the_standby_is_not_a_commit(postgresql: Servers) -> None:
    server = postgresql()
    standby = server.standby("one")
    try:
        server.require("one")
        async with store_at(server.url()) as store:
            said: list[Exception | None] = []
            store.tell(said.append)
            store.register("t")
            await synced(store)
            await asyncio.to_thread(standby.kill)
            answered: list[int] = []
            put(store, "t", 1)
            store.after(lambda: answered.append(1))
            for cancel in ("pg_cancel_backend", "pg_terminate_backend"):
                await until(lambda: server.sql(WAITS) == "1")
                server.sql(f"SELECT {cancel}(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
                await until(lambda: server.sql(WAITS) == "1")
                # It is in the primary alone, where everybody sees it.
                assert server.sql("SELECT count(*) FROM messages") == "1"
            assert "committed with a warning: canceling wait for synchronous replication" in str(said[0])
            assert store.error is not None
            assert not answered
            assert not store.read("t", 0, 0, 9)
            await asyncio.to_thread(standby.start)
            await synced(store)
            assert answered == [1]
            assert queue_ids(store) == [ident(1)]
            await until(lambda: standby.sql("SELECT count(*) FROM messages") == "1")
    finally:
        standby.remove()


async def test_what_a_restarted_primary_has_alone_is_not_committed(
    postgresql: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "LEAD_S", 0.5)
    server = postgresql()
    standby = server.standby("one")
    try:
        server.require("one")
        store = Store.open(server.url())
        store.register("t")
        await synced(store)
        await asyncio.to_thread(standby.kill)
        answered: list[int] = []
        put(store, "t", 1)
        store.after(lambda: answered.append(1))
        await until(lambda: server.sql(WAITS) == "1")
        await asyncio.to_thread(server.kill)
        await until(lambda: store.error)
        await asyncio.to_thread(server.start)
        await until(lambda: server.sql(WAITS) == "1")
        # Found there, though the standby does not have it.
        assert server.sql("SELECT count(*) FROM messages") == "1"
        assert not answered
        # A hub that starts now does not get to lead.
        store._engine.abort()
        with pytest.raises(StorageError):
            await store.close()
        # A backend that waits for a standby does not notice that its client is gone.
        server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        await until(lambda: server.sql(WAITS) == "0")
        with pytest.raises(StorageError, match="committed with a warning: canceling wait"):
            Store.open(server.url())
        assert not answered
        await asyncio.to_thread(standby.start)
        monkeypatch.undo()
        async with store_at(server.url()) as again:
            assert queue_ids(again) == [ident(1)]
            assert standby.sql("SELECT count(*) FROM messages") == "1"
    finally:
        standby.remove()


async def test_what_a_failover_has_lost_is_not_mirrored(postgresql: Servers) -> None:
    server = postgresql()
    standby = server.standby("one")
    try:
        server.require("one")
        url = f"postgresql://{USER}@{HOST}:{server.port},{HOST}:{standby.port}/{DATABASE}"
        store = Store.open(url)
        store.register("t")
        await synced(store)
        mirror = Store(PostgresEngine(url), Limits())
        await asyncio.to_thread(standby.kill)
        answered: list[int] = []
        put(store, "t", 1)
        store.after(lambda: answered.append(1))
        await until(lambda: server.sql(WAITS) == "1")
        server.sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        # The primary shows what its standby does not have.
        await until(lambda: mirrored(mirror) or mirror.seq == store.seq)
        assert not answered
        await asyncio.to_thread(server.kill)
        store._engine.abort()
        with pytest.raises(StorageError):
            await store.close()
        await asyncio.to_thread(standby.start)
        await asyncio.to_thread(standby.promote)

        def is_behind() -> bool:
            try:
                return mirrored(mirror)
            except BehindError:
                return True

        await until(is_behind)
        with pytest.raises(BehindError, match="has lost change 2, which this hub has read"):
            mirror.lead()
        mirror._engine.close()
        async with store_at(url) as again:
            assert queue_ids(again) == []
    finally:
        standby.remove()


def mirrored(mirror: Store) -> bool:
    """Apply what was written since; False, as this is not the end, and while the database does not answer."""
    try:
        mirror.catch_up(100)
    except BehindError:
        raise
    except StorageError:
        pass
    return False


async def test_a_server_that_waits_for_no_standby(postgresql: Servers) -> None:
    server = postgresql()
    engine = PostgresEngine(server.url(), standby=True)
    store = Store(engine, Limits())
    with pytest.raises(StorageError, match="has no synchronous standby: synchronous_standby_names is empty"):
        store.lead()
    standby = server.standby("one")
    try:
        server.require("one")
        store.lead()
        store.register("t")
        await synced(store)
        # As a promoted standby, or Patroni without strict mode.
        server.require()
        answered: list[int] = []
        put(store, "t", 1)
        store.after(lambda: answered.append(1))
        await until(lambda: store.error)
        assert "has no synchronous standby" in str(store.error)
        await asyncio.sleep(0.3)
        assert not answered
        server.require("one")
        await synced(store)
        assert answered == [1]
        await store.close()
        assert server.sql("SELECT count(*) FROM messages") == "1"
    finally:
        standby.remove()


async def test_a_standby_that_is_promoted(postgresql: Servers) -> None:
    server = postgresql()
    standby = server.standby("one")
    try:
        server.require("one")
        url = f"postgresql://{USER}@{HOST}:{server.port},{HOST}:{standby.port}/{DATABASE}"
        answered: list[int] = []
        async with store_at(url) as store:
            store.register("t")
            await synced(store)
            for n in range(40):
                put(store, "t", n)
                store.after(lambda n=n: answered.append(n))  # type: ignore[misc]
                await asyncio.sleep(0.001)
            await asyncio.to_thread(server.kill)
            put(store, "t", 40)
            await until(lambda: store.error)
            assert 40 not in answered
            await asyncio.to_thread(standby.promote)
            await synced(store)
            assert answered == list(range(40))
            assert store.error is None
            assert store._engine.name.endswith(f"{HOST}:{server.port},{HOST}:{standby.port}/{DATABASE}")
        assert standby.sql("SELECT count(*), count(DISTINCT id) FROM messages") == "41|41"
    finally:
        standby.remove()


# -- reads -------------------------------------------------------------------------------------------------------------


@pytest.mark.settings(Limits(cache=0))
async def test_large_messages_are_read_a_few_at_a_time(store: Store) -> None:
    """With SQLite; what the event loop waits for is bounded with each engine."""
    store.register("t")
    store.attach("g", "t")
    seqs = [put(store, "t", n, bytes(300_000)) for n in range(20)]
    await synced(store)
    found: list[list[int]] = []
    while some := taken(store):
        found.append(some)
    assert [seq for some in found for seq in some] == seqs
    assert max(map(len, found)) == cache.READ // 300_000
    # A message that is larger than that is read alone.
    large = put(store, "t", 90, bytes(cache.READ + 1))
    small = put(store, "t", 91, bytes(10))
    await synced(store)
    assert [taken(store), taken(store)] == [[large], [small]]


async def test_the_event_loop_waits_for_reads_for_a_bounded_time(postgresql: Servers) -> None:
    server = postgresql()
    async with store_at(server.url(), Limits(cache=0)) as store:
        store.register("t")
        store.attach("g", "t")
        seqs = [put(store, "t", n) for n in range(20)]
        await synced(store)
        assert taken(store, limit=5) == seqs[:5]
        server.pause()
        try:
            began = time.monotonic()
            for _ in range(100):
                with pytest.raises(StorageError, match=r"the database d(id|oes) not answer"):
                    store.take("g", "t", 0, 5)
            # One wait, however many ask.
            assert time.monotonic() - began < 20 * postgres.READ_S
        finally:
            server.resume()
        found: list[int] = []
        while len(found) < 15:
            try:
                found += taken(store, limit=5)
            except StorageError:
                await asyncio.sleep(0.01)
        # In order, each once, without a failed delivery.
        assert found == seqs[5:]
        assert not store.damaged
        for seq in seqs:
            assert store.ack("g", "t", 0, seq)
        await synced(store)
        assert not store.topics["t"].count


async def test_a_consumer_goes_on_when_the_database_answers_again(
    postgresql: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[Exception] = []
    take = Store.take

    def counted(store: Store, *args: Any) -> Any:
        try:
            return take(store, *args)
        except StorageError as error:
            failed.append(error)
            raise

    monkeypatch.setattr(Store, "take", counted)
    server = postgresql()
    settings = config(tmp_path, Limits(cache=0), ClientLimits(window=5))
    async with hub_of(replace(settings, storage=server.url())) as hub:
        one = await Peer.login(hub)
        await fill(one, "t", 30)
        one.consume(await one.subscribe("t", group="g"))
        first = await responses(one, 5, ack=False)
        server.pause()
        try:
            for got in first:
                one.ack(got.id)
            await until(lambda: len(failed) > 2)
            # The others are served.
            await one.ping()
        finally:
            server.resume()
        assert payloads(first + await responses(one, 25)) == list(range(30))
