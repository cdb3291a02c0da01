"""The store in an SQLite file: the contract of the outbox, over restarts; whose it is; damage; a full disk."""

import random
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pipe import Ends, Link, Wire
from test_store import CASES

from headwater.connection import AT1, AT2, DONE, REL
from headwater.errors import E_STORE
from headwater.journal import JournalOutbox
from headwater.mqtt.server import ServerSession
from headwater_host.client.backlog import Waiting
from headwater_host.client.mqtt.session import HostClientSession
from headwater_host.client.session_config import SessionConfig
from headwater_host.client.store import SqliteOutbox
from headwater_host.errors import StoreError
from tests.host.command import environment
from tests.host.sql import execute

Entry = tuple[int, int, bytes]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[int, int], SqliteOutbox]]:
    made: list[SqliteOutbox] = []

    def one(size: int, slots: int) -> SqliteOutbox:
        path = tmp_path / f"{len(made)}.db"
        made.append(SqliteOutbox(path, "c", slots=slots, keeps_over="process", size=size, limit=size))
        return made[-1]

    yield one
    for box in made:
        box.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_contract(
    case: Callable[[Callable[[int, int], SqliteOutbox]], None], make: Callable[[int, int], SqliteOutbox]
) -> None:
    case(make)


def packet(packet_id: int, qos: int, mark: int) -> bytes:
    body = b"\x00\x01t" + packet_id.to_bytes(2, "big") + bytes([mark & 255]) * (2 + mark % 40)
    return bytes([0x30 | qos << 1, len(body)]) + body


def publish(box: SqliteOutbox, qos: int, mark: int) -> int:
    data = packet(box.next + 1, qos, mark)
    at = box.reserve(len(data))
    if at < 0:
        return -1
    box.buf[at : at + len(data)] = data
    return box.commit(len(data), qos)


def release(box: SqliteOutbox, i: int) -> None:
    assert box.set(i, REL) == 0
    at = box.at[i]
    box.buf[at : at + 4] = b"\x62\x02" + (i + 1).to_bytes(2, "big")
    box.size[i] = 4


def content(box: SqliteOutbox | JournalOutbox) -> list[Entry]:
    """(packet id, state, packet without DUP) of each entry that is not acknowledged, oldest first."""
    found = []
    for k in range(box.count):
        i = (box.head + k) % box.slots
        data = bytearray(box.buf[box.at[i] : box.at[i] + box.size[i]])
        if box.state[i] in (AT1, AT2):
            data[0] &= ~8
        if box.state[i] != DONE:
            found.append((i + 1, box.state[i], bytes(data)))
    return found


def refuses(says: str, path: Path, identifier: str, **more: Any) -> None:
    """A store is not opened, and the error says why."""
    with pytest.raises(StoreError, match=says):
        SqliteOutbox(path, identifier, **more)


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_was_synced_is_there_again(path: Path) -> None:
    numbers = random.Random("sqlite store")
    box = SqliteOutbox(path, "c", slots=9, keeps_over="process", size=64)
    restarts = 0
    for mark in range(1500):
        what = numbers.random()
        live = content(box)
        if what < 0.4:
            publish(box, numbers.choice((1, 2)), mark)
        elif what < 0.8 and live:
            i = numbers.choice((live[0], numbers.choice(live)))[0] - 1
            if box.state[i] == AT2:
                release(box, i)
            else:
                assert box.set(i, DONE) == 0
        elif what < 0.85:
            assert box.opened(numbers.randint(1, 5)) == 0
        elif what < 0.9:
            assert box.closed(numbers.randint(1, 5)) == 0
        elif what < 0.905:
            assert box.closed(0) == 0
        elif what < 0.91:
            box.clear()
        elif what < 0.915:
            assert box.settle() == 0
        elif what > 0.95:
            before = content(box), box._qos2_ids, box.fresh
            box.close()
            box = SqliteOutbox(path, "c", slots=9, keeps_over="process", size=64)
            assert (content(box), set(box.ids), box.fresh) == before
            for packet_id, state, _ in before[0]:
                assert state == REL or box.buf[box.at[packet_id - 1]] & 8, "maybe it was sent: DUP"
            restarts += 1
    assert restarts > 50
    box.close()


def test_what_was_not_committed_never_was(path: Path) -> None:
    """A process that ends without a word: as if the power had gone between two commits."""
    code = f"""
import os
from headwater_host.client.store import SqliteOutbox
box = SqliteOutbox({str(path)!r}, "c")
for n in range(3):
    at = box.reserve(10)
    box.buf[at : at + 10] = b"\\x32\\x08\\x00\\x01t\\x00" + bytes([n + 1]) + b"abc"
    assert box.commit(10, 1) == n
    if n == 1:
        assert box.sync() == 0 and not box.unsynced
assert box.unsynced
os._exit(9)
"""
    assert run(code).returncode == 9
    with SqliteOutbox(path, "c") as box:
        assert [packet_id for packet_id, _, _ in content(box)] == [1, 2]
        assert box.fresh


def test_a_second_process_is_refused_and_says_why(path: Path) -> None:
    code = f'from headwater_host.client.store import SqliteOutbox; SqliteOutbox({str(path)!r}, "c")'
    box = SqliteOutbox(path, "c")
    assert publish(box, 1, 1) == 0
    for synced in (False, True):
        if synced:
            assert box.sync() == 0
        done = run(code)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].endswith(
            f"StoreError: the store {path} is in use: it belongs to one client at a time"
        )
        refuses("in use", path, "c")
    box.close()
    assert run(code).returncode == 0


def test_files_that_are_not_ours(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database at all\n" * 300)
    refuses(r"notes\.txt is no store of messages", text, "c")
    assert text.read_text() == "not a database at all\n" * 300
    other = tmp_path / "other.db"
    execute(other, "CREATE TABLE outbox (x)")
    before = other.read_bytes()
    refuses("but no store of messages", other, "c")
    assert other.read_bytes() == before
    refuses("cannot be opened", tmp_path / "no" / "such" / "folder.db", "c")
    with pytest.raises(ValueError, match="keeps_over"):
        SqliteOutbox(tmp_path / "new.db", "c", keeps_over="always")  # type: ignore[arg-type]


def test_a_store_of_another_client_or_of_a_later_version(path: Path) -> None:
    with SqliteOutbox(path, "one") as box:
        publish(box, 2, 1)
    refuses("belongs to the client 'one', not to 'two'", path, "two")
    execute(path, "PRAGMA user_version = 2")
    refuses("version 2; this program knows version 1", path, "one")


@pytest.mark.parametrize("of, other", [("3.1.1", "5.0"), ("5.0", "3.1.1"), ("5.0", "3.1")])
def test_a_store_with_packets_of_another_version(path: Path, of: str, other: str) -> None:
    with SqliteOutbox(path, "c", protocol=of) as box:
        publish(box, 2, 1)
        before = content(box)
    refuses(
        rf"holds 1 messages as packets of MQTT {of}: .* use it with MQTT {other}", path, "c", protocol=other
    )
    with SqliteOutbox(path, "c", protocol=of) as box:
        assert content(box) == before
        box.set(0, DONE)
    # Empty, it is whose it is opened for, whether or not anything else changes.
    with SqliteOutbox(path, "c", protocol=other) as box:
        box.opened(7)
    with pytest.raises(ValueError, match="protocol is one of"):
        SqliteOutbox(path, "c", protocol="4")
    with SqliteOutbox(path, "c", protocol=of):
        pass
    with SqliteOutbox(path, "c", protocol=other) as box:
        publish(box, 1, 1)
    refuses(f"packets of MQTT {other}", path, "c", protocol=of)


def test_the_packets_of_the_two_old_versions_are_the_same(path: Path) -> None:
    with SqliteOutbox(path, "c", protocol="3.1") as box:
        publish(box, 1, 1)
    with SqliteOutbox(path, "c", protocol="3.1.1") as box:
        assert box.count == 1


def test_a_store_from_before_there_were_versions_in_it(path: Path) -> None:
    with SqliteOutbox(path, "c") as box:
        publish(box, 1, 1)
    about = dict(execute(path, "SELECT name, value FROM about"))
    old = [(name, about[name]) for name in ("identifier", "slots", "fresh")]
    execute(
        path,
        "DELETE FROM about WHERE name = 'protocol'",
        "DROP TABLE backlog",
        "UPDATE about SET value = ? WHERE name = 'crc'",
        values=(zlib.crc32(repr(old).encode()),),
    )
    with SqliteOutbox(path, "c", protocol="5.0") as box:
        assert box.count == 1
        assert box.backlog.put(b"t", b"", 0, False, None)
    refuses(r"holds 2 messages as packets of MQTT 5\.0", path, "c")


def test_opening_a_store_takes_time_in_proportion(path: Path) -> None:
    """Each slot is looked at so many times, however many there are."""
    with SqliteOutbox(path, "c", slots=4000, keeps_over="process") as box:
        for _ in range(3000):
            publish(box, 1, 1)
    looked = 0

    def count(frame: object, event: str, what: object) -> None:
        nonlocal looked
        looked += event == "c_call" and what is sum

    sys.setprofile(count)
    try:
        box = SqliteOutbox(path, "c", slots=4000, size=64, limit=64)
    finally:
        sys.setprofile(None)
    with box:
        assert box.count == 3000
        # Once for each time that the memory doubles.
        assert looked <= 20


def test_the_number_of_slots_stays_while_there_are_messages(path: Path) -> None:
    with SqliteOutbox(path, "c", slots=5) as box:
        for mark in range(5):
            assert publish(box, 1, mark) == mark
        before = content(box)
    with SqliteOutbox(path, "c", slots=9) as box:
        assert box.slots == 5
        assert content(box) == before
        for i in range(5):
            box.set(i, DONE)
    for count in range(2):
        with SqliteOutbox(path, "c", slots=9) as box:
            assert box.slots == 9
            assert box.count == count
            publish(box, 1, 1)


WAITING = [
    Waiting(1, b"a/b", b"first", 1, True, None),
    Waiting(2, b"c", b"second", 0, False, {"content_type": "x"}),
]


def damaged_store(path: Path) -> list[Entry]:
    with SqliteOutbox(path, "c", slots=8) as box:
        box.settle()
        for mark in range(1, 6):
            publish(box, 1 + mark % 2, mark)
        for packet_id in (7, 300):
            box.opened(packet_id)
        release(box, 0)
        box.set(1, DONE)
        for message in WAITING:
            box.backlog.put(*message[1:])
        return content(box)


@pytest.mark.timeout(300)
def test_damage_anywhere_is_reported_or_does_no_harm(path: Path) -> None:
    """A byte is changed: the store opens with what it had, or StoreError says that it is damaged."""
    good = damaged_store(path)
    image = path.read_bytes()
    used = [k for k in range(len(image)) if image[k] or k < 120]
    reported = 0
    for k in used:
        bad = bytearray(image)
        bad[k] ^= 0x11
        path.write_bytes(bytes(bad))
        for name in ("store.db-wal", "store.db-shm", "store.db-journal"):
            path.with_name(name).unlink(missing_ok=True)
        try:
            box = SqliteOutbox(path, "c", slots=8, keeps_over="process")
        except StoreError as error:
            reported += str(path) in str(error)
            continue
        found = content(box), sorted(box.ids), box.fresh, box.slots, list(box.backlog.queue)
        box.close()
        assert found == (good, [7, 300], False, 8, WAITING), (k, "delivered falsely, or lost without a word")
    assert reported > len(used) // 4


def test_a_disk_that_is_full(path: Path) -> None:
    """E_STORE; the memory goes on, and when there is room again, all of it is in the file."""
    box = SqliteOutbox(path, "c", slots=200)
    (pages,) = box.commits.db.execute("PRAGMA page_count").fetchone()
    box.commits.db.execute(f"PRAGMA max_page_count = {pages + 2}")
    status = 0
    count = 0
    while status == 0:
        i = publish(box, 2, 39)
        status = box.sync() if i >= 0 else i
        count += i >= 0
    assert status == E_STORE
    assert box.error is not None
    assert "full" in str(box.error)
    kept = box.count
    assert publish(box, 1, 2) == E_STORE
    assert box.count == kept
    box.commits.db.execute("PRAGMA query_only = 1")
    assert box.opened(5) == E_STORE
    assert box._qos2_ids == set()
    assert box.settle() == E_STORE
    assert box.fresh
    assert box.set(0, REL) == E_STORE
    assert box.state[0] == AT2
    assert box.closed(0) == E_STORE
    assert box.unsynced
    with pytest.raises(StoreError, match="not up to date"):
        box.close()
    with SqliteOutbox(path, "c", slots=200) as again:
        assert [entry[0] for entry in content(again)] == list(range(1, again.count + 1))
        assert again.count == kept
        again.commits.db.execute(f"PRAGMA max_page_count = {pages + 2}")
        while publish(again, 2, 39) >= 0 and again.sync() == 0:
            pass
        again.commits.db.execute("PRAGMA max_page_count = 100000")
        assert again.opened(5) == 0
        assert again.sync() == 0
        for i in range(3):
            again.set(i, DONE)
        before = content(again)
    with SqliteOutbox(path, "c", slots=200) as box:
        assert content(box) == before
        assert list(box.ids) == [5]


@pytest.mark.parametrize("server_forgets", [False, True])
def test_a_process_that_ends_at_every_byte(tmp_path: Path, server_forgets: bool) -> None:
    """The connection goes at byte k, and with it everything that was not committed before something was sent."""
    for direction in (0, 1):
        k = -1
        whole = 0
        while k <= whole:
            path = tmp_path / f"{direction}.{k}.db"
            server = ServerSession(128, 128, 1024, slots=8)
            got: list[bytes] = []
            handed: list[bytes] = []
            taken: list[bytes] = []
            for life in range(2):
                wire = Wire(chunk=4, cut=-1 if life else k)
                link = Link(wire) if direction == 0 else Link(down=wire)
                box = SqliteOutbox(path, "c", slots=7, keeps_over="process", size=64)
                session = HostClientSession(SessionConfig(client_id=b"c", clean_start=False, outbox=box))
                ends = Ends(session, server, [link])
                ends.reconnect = False
                session.on_delivered = server.on_delivered = None
                server.on_message = lambda p, got=got: got.append(p.payload_bytes())
                session.on_message = lambda p, taken=taken: taken.append(p.payload_bytes())
                for n in range(3):
                    handed.append(b"%d.%d" % (life, n))
                    assert session.publish(b"t", handed[-1], 2) > 0
                assert box.sync() == 0
                ends.open()
                for turn in range(100):
                    moved = ends.step()
                    if turn == 3 and life == 0:
                        server.publish(b"t", b"down", 2)
                    # As a connection does, before what this turn brought is sent.
                    assert moved >= 0
                    assert box.sync() == 0
                    if link.broken() or (moved == 0 and turn > 5):
                        break
                if k < 0 and life == 0:
                    whole = len((link.up if direction == 0 else link.down).log)
                ends.lose()
                if life == 0 and k >= 0:
                    box.commits.db.execute("BEGIN") if not box.commits.db.in_transaction else None
                    box.commits.db.execute("ROLLBACK")
                    box.commits.db.close()
                    if server_forgets:
                        server = ServerSession(128, 128, 1024, slots=8)
                else:
                    assert box.count == 0
                    assert not any(session.open_ids)
                    box.close()
            if server_forgets:
                assert list(dict.fromkeys(got)) == handed, k
            else:
                assert got == handed, (direction, k)
                assert taken == [b"down"] or (not taken and k >= 0), (direction, k, taken)
            k += 7 if server_forgets else 2
        assert whole > 40
