"""Storage files that earlier commits wrote, kept as SQL text in ``data``.

Version 4 is version 3 after its upgrade. Version 3 is from commit b41ee8a, version 2 from the last commit that wrote
it. Both were made by one program: two topics with groups, messages at each QoS, acknowledgements out of order, a
message that came back, one that went to the dead letters, a retained message, a deleted topic, a kept session with two
subscriptions, a handshake and a will.
"""

import zlib
from pathlib import Path

import pytest

from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage import Store, Subscription, backlog
from tests.host.hub_storage import put, queue_ids, rows_in, store_at, synced, taken
from tests.host.sql import execute, restored
from tests.rows import each_row
from tests.waiting import until

DATA = Path(__file__).parent / "data"


def made(folder: Path, version: int) -> Path:
    """The file of a version."""
    return restored(folder / "hub.db", DATA / f"hub-storage-{version}.sql")


def names(process: int, *numbers: int) -> list[bytes]:
    return [b"%d.%d" % (process, n) for n in numbers]


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_a_file_is_read_whole(tmp_path: Path, version: int) -> None:
    path = made(tmp_path, version)

    async def check(store: Store) -> None:
        assert {name: len(topic.queues) for name, topic in store.topics.items()} == {
            "boards/1": 2,
            "jobs": 1,
            "state": 1,
            "$dead/jobs": 1,
        }
        assert queue_ids(store, "boards/1", 0) == names(0, 0, 2, 4, 6, 8, 10)
        assert queue_ids(store, "boards/1", 1) == names(1, 1, 3, 5, 7, 9, 11)
        (first,) = store.read("boards/1", 0, 0, 1)
        assert (first.payload, first.tags, first.qos) == (b"payload 0", ("warm", "x"), 0)
        assert queue_ids(store, "jobs") == names(1, 21, 22, 23)
        assert queue_ids(store, "$dead/jobs") == names(1, 20)
        assert store.retained["state"].payload == b"retained"
        assert dict(backlog(store)) == {("boards/1", "g"): 9, ("boards/1", "h"): 10, ("jobs", "g"): 3}
        session = store.sessions.get("kept")
        assert session is not None
        assert session.about == {"user": "ann"}
        assert session.subscriptions == {
            1: Subscription(1, "boards/+", ("warm",), "celsius > 20", ""),
            2: Subscription(2, "jobs", (), "", "g"),
        }
        assert list(session.released) == [b"1.1"]
        assert store.sessions.clients.keys() == {"named", "kept"}
        assert store.sessions.wills[2]["topic"] == "state"
        # An id that it remembers is not stored again, wherever its message is now.
        for ident in (b"0.0", b"1.20", b"1.30"):
            assert not store.publish("jobs", ident, 1, b"again", time_ns=store.age.now())
        await until(lambda: rows_in(store, "leaving") == 0)

    async with store_at(path) as store:
        await check(store)
    assert execute(path, "PRAGMA user_version") == [(4,)]
    # And again, as this version has written it.
    async with store_at(path) as store:
        await check(store)
    async with store_at(path) as store:
        # What came back is first, with its try; what was acknowledged out of order is not handed out.
        taken = store.take("g", "boards/1", 0, 9)
        assert [(one.message.id, one.tries) for one in taken] == [(b"0.4", 1), (b"0.8", 0), (b"0.10", 0)]
        assert [one.message.id for one in store.take("h", "boards/1", 1, 9)] == names(1, 5, 7, 9, 11)


async def test_a_file_of_version_2_goes_on_in_version_3(tmp_path: Path) -> None:
    path = made(tmp_path, 2)
    place = """["g",1,0,7,[10],{"8":2,"12":3}]"""
    more_tries = "UPDATE positions SET tries = '{\"8\":2,\"12\":3}', crc = ? WHERE taken = '[10]'"
    execute(path, more_tries, values=[zlib.crc32(place.encode())])
    async with store_at(path) as store:
        with pytest.raises(StorageError, match=f"changes up to {store.seq - 1} are not kept"):
            store.changes(0, 1)
        assert [change.values for change in store.changes(store.seq - 1, 9)] == [("followed", store.seq - 1)]
        found = store.take("g", "boards/1", 0, 9)
        assert [one.tries for one in found] == [2, 3, 0]
        first, second, third = [one.message.seq for one in found]
        assert put(store, "jobs", 90) == store.seq > third
        store.ack("g", "boards/1", 0, second)
        await synced(store)
    async with store_at(path) as store:
        assert taken(store, "g", "boards/1") == [first, third]
        store.ack("g", "boards/1", 0, first)
        store.ack("g", "boards/1", 0, third)
        for group, topic, queue in (("g", "boards/1", 1), ("g", "jobs", 0)):
            for seq in taken(store, group, topic, queue):
                assert store.ack(group, topic, queue, seq)
        for queue in range(2):
            for seq in taken(store, "h", "boards/1", queue):
                assert store.ack("h", "boards/1", queue, seq)
        await synced(store)
        assert set(dict(backlog(store)).values()) == {0}
        assert not store.topics["boards/1"].count
        assert rows_in(store, "opened") == 0


@each_row("what", ["taken = '['", "taken = NULL", "floor = 7", "tries = '[]'"])
def test_a_damaged_file_of_version_2_is_not_touched(tmp_path: Path, what: str) -> None:
    path = made(tmp_path, 2)
    execute(path, f"UPDATE positions SET {what}")
    before = path.read_bytes()
    with pytest.raises(StorageError, match="a row of positions is not what was written"):
        Store.open(path)
    assert path.read_bytes() == before
