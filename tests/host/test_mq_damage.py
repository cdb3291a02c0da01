"""A file of queues in which a column holds what nobody wrote: what is said, what can still be got, and no traceback."""

import shutil
import sqlite3
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import MD
from headwater_host.mq.errors import MQMIError
from headwater_host.mq.uplink.uplink import Uplink
from headwater_mq.commands import stats as mq_stats
from headwater_mq.manager import QueueManager
from headwater_mq.queue import Queue
from tests.host.mq_log import cut, logging_to
from tests.host.mq_queue import ALL, GROUP, GROUP_ID, LAST, attempt, gmo2, md2, queue_manager, segments
from tests.host.mq_recorder import Recorder
from tests.host.mq_uplink import DATA, PLAIN, RECORDED, arrived, fill, opened, queues, steps
from tests.rows import each_row

#: What a column may hold, in SQL.
VALUES = {
    "text": "'x'",
    "blob": "x'00ff'",
    "null": "NULL",
    "real": "1.5",
    "infinite": "9e999",
    "negative": "-5",
    "large": "5000000000",
    "largest": "9223372036854775807",
}
#: Messages that are damaged in turn: one alone, a segment, the second of a group.
ONE, SEGMENT, SECOND = 2, 4, 7
WHOLE = [b"first", b"second", b"third", b"abcdefghi", b"g1", b"g2", b"g3", b"end"]
#: Columns of a message that decide who gets it at all: with others it is nobody's, or in a unit of work for good.
_OWNERS = ("id", "queue", "put_by", "taken_by", "aside")
_KEPT = (
    *("rank", "backouts", "expires", "group_id", "seq", "place", "flags"),
    *("msg_id", "correl_id", "length", "crc", "md", "body"),
)
_COMPLETE = CMQC.MQGMO_COMPLETE_MSG | CMQC.MQGMO_LOGICAL_ORDER | CMQC.MQGMO_ALL_MSGS_AVAILABLE


def columns(path: Path, table: str) -> list[str]:
    with sqlite3.connect(path) as db:
        return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]


def damaged(path: Path, *statements: str) -> bool:
    """Change the file as no program of ours does; False when SQLite refuses."""
    db = sqlite3.connect(path, isolation_level=None)
    try:
        for statement in statements:
            db.execute(statement)
    except sqlite3.Error:
        return False
    finally:
        db.close()
    return True


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with messages of each kind."""
    folder = tmp_path_factory.mktemp("written")
    with queue_manager(folder, "Q") as manager, Queue(manager, "Q", ALL) as queue:
        for data in (b"first", b"second", b"third"):
            queue.put(data, MD(CorrelId=b"c" * 24, Expiry=600_000))
        for md, data in segments(b"abcdefghi", 5, GroupId=b"s" * 24):
            queue.put(data, md)
        for seq in (1, 2, 3):
            flags = GROUP | (LAST if seq == 3 else 0)
            queue.put(b"g%d" % seq, md2(GroupId=GROUP_ID, MsgSeqNumber=seq, MsgFlags=flags))
        queue.put(b"end")
    return folder / "queues.db"


@pytest.fixture
def copied(written: Path, tmp_path: Path) -> Any:
    def copy(name: str = "copy.db") -> Path:
        path = tmp_path / name
        for one in tmp_path.glob(f"{name}*"):
            one.unlink()
        return Path(shutil.copy(written, path))

    return copy


def reasons(error: Any, *expected: int) -> bool:
    """Whether it is an error, which must be one of these."""
    assert not isinstance(error, MQMIError) or error.reason in expected, error
    return isinstance(error, MQMIError)


def got(manager: QueueManager, options: int) -> list[bytes]:
    """All that can be got, joined."""
    found: list[bytes] = []
    while True:
        queue = Queue(manager, "Q", ALL)
        while not reasons(one := attempt(queue.get, None, md2(), gmo2(options)), CMQC.MQRC_NO_MSG_AVAILABLE):
            found.append(one)
        # What is next in a group may be damaged: who opens the queue again gets what is behind it.
        if not reasons(attempt(queue.close), CMQC.MQRC_INCOMPLETE_GROUP):
            return found


def browse(manager: QueueManager) -> None:
    """To the end, or to what is said to be damaged."""
    ends = CMQC.MQRC_NO_MSG_AVAILABLE, CMQC.MQRC_OBJECT_DAMAGED
    options = gmo2(CMQC.MQGMO_BROWSE_NEXT)
    with Queue(manager, "Q", ALL) as queue:
        assert any(reasons(attempt(queue.get, None, md2(), options), *ends) for _ in range(10))


@each_row("value, row", product(VALUES, [ONE, SEGMENT, SECOND]))
def test_a_column_of_a_message(copied: Any, written: Path, value: str, row: int) -> None:
    """Whatever it is, the others come, whole and in order, and the message itself as it was put or not at all."""
    for column in columns(written, "messages"):
        path = copied()
        if not damaged(path, f"UPDATE messages SET {column} = {VALUES[value]} WHERE id = {row}"):
            continue
        with QueueManager("QM1", path, create=False, keeps_over="process") as manager:
            browse(manager)
            assert manager.statistics("Q")[0].bytes >= 0
            with manager.file.reading() as db:
                mq_stats.lines("Q", mq_stats.of_queue(db, 1))
            found = got(manager, _COMPLETE)
            list(manager.set_aside("Q"))
            manager.give_back("Q")
        hurt = {ONE: WHOLE[1:2], SEGMENT: WHOLE[3:4], SECOND: WHOLE[4:7]}[row]
        expected = [data for data in WHOLE if data not in hurt]
        assert [data for data in found if data in expected] == expected or column in _OWNERS, (column, found)
        # A damaged group is given message by message to who does not ask for all of it; so is a segment's rest.
        assert set(found) - set(WHOLE) <= {b"fghi"}, (column, found)


def test_a_message_that_names_another_group_is_set_aside(copied: Any) -> None:
    path = copied()
    damaged(path, f"UPDATE messages SET seq = 1 WHERE id = {SECOND}")
    with QueueManager("QM1", path, create=False) as manager:
        assert b"g2" not in got(manager, 0)
        assert [reason for reason, _, _ in manager.set_aside("Q")] == [CMQC.MQRC_OBJECT_DAMAGED]


def test_an_expiry_of_a_damaged_file_is_never_longer_than_it_was_put_with(copied: Any) -> None:
    path = copied()
    with QueueManager("QM1", path, create=False) as manager:
        manager.define("EXPIRING")
        manager.put1("EXPIRING", b"x", MD(Expiry=600))
    damaged(path, "UPDATE messages SET expires = 1 << 50 WHERE expires")
    with QueueManager("QM1", path, create=False) as manager, Queue(manager, "EXPIRING", ALL) as queue:
        md = MD()
        assert queue.get(None, md) == b"x"
        assert md.Expiry == 600


@each_row("value", ["NULL", "''", "7", "'7'", "x'00'", "'[1, 2, 3]'"])
def test_an_age_time_that_is_none(copied: Any, value: str) -> None:
    path = copied()
    damaged(path, f"UPDATE about SET value = {value} WHERE name = 'age'")
    with pytest.raises(MQMIError, match="is damaged") as caught:
        QueueManager("QM1", path, create=False)
    assert caught.value.reason == CMQC.MQRC_Q_MGR_NOT_AVAILABLE


@each_row("value", VALUES)
def test_the_depth_of_a_queue(copied: Any, value: str) -> None:
    path = copied()
    damaged(path, f"UPDATE queues SET depth = {VALUES[value]}")
    with QueueManager("QM1", path, create=False) as manager:
        depth = manager.statistics("Q")[0].depth
        assert depth == 9 or value.startswith("large")
        if depth == 9:
            manager.put1("Q", b"more")
            assert manager.statistics("Q")[0].depth == 10


@each_row(
    "said",
    [
        "[]",
        "1",
        "null",
        '"a"',
        "x",
        '{"MaxQDepth":"x"}',
        '{"MaxMsgLength":-1}',
        '{"QType":null}',
        None,
        b"{}",
        1.5,
    ],
)
def test_the_attributes_of_a_queue(copied: Any, said: object) -> None:
    path = copied()
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO queues (name, attributes) VALUES ('OTHER', ?)", (said,))
    with QueueManager("QM1", path, create=False) as manager:
        for call in (
            lambda: Queue(manager, "OTHER", ALL),
            manager.queues,
            lambda: manager.put1("OTHER", b"x"),
        ):
            with pytest.raises(MQMIError, match=r"2101\): the attributes of OTHER are damaged"):
                call()
        assert got(manager, _COMPLETE) == WHOLE


@each_row("said", ["[]", "null", "x", '{"QMgrName":5}', '{"MaxMsgLength":"x"}', None, b"{}"])
def test_the_attributes_of_the_queue_manager(copied: Any, said: object) -> None:
    path = copied()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE about SET value = ? WHERE name = 'attributes'", (said,))
    with pytest.raises(MQMIError, match=r"2059\): .* the attributes of the queue manager are damaged"):
        QueueManager("QM1", path, create=False)


@each_row("value, name", product(["text", "blob", "null", "infinite"], ["born", "ids"]))
def test_what_new_ids_are_made_of(copied: Any, name: str, value: str) -> None:
    """Nothing can be put; what is there can be got."""
    path = copied()
    damaged(path, f"UPDATE about SET value = {VALUES[value]} WHERE name = '{name}'")
    with QueueManager("QM1", path, create=False) as manager:
        with pytest.raises(MQMIError, match=r"2059\): .* is damaged"):
            manager.put1("Q", b"x")
        assert got(manager, _COMPLETE) == WHOLE


@each_row(
    "there, damage", [(b"BEGIN UPDATE queues", b"BEGIN UPDATE queue\xdb"), (b'{"QType"', b'{"QTyp\xdb"')]
)
def test_text_that_is_no_utf_8(copied: Any, there: bytes, damage: bytes) -> None:
    path = copied()
    data = path.read_bytes()
    assert there in data
    path.write_bytes(data.replace(there, damage))
    damaged_text = pytest.raises(MQMIError, match=r"2059\): .* is damaged")
    with QueueManager("QM1", path, create=False) as manager, damaged_text:
        manager.put1("Q", b"x")


def test_an_index_that_says_other_than_the_table(copied: Any) -> None:
    """As after a crash of the disk: a change came to the one, and not to the other."""
    path = copied()
    with sqlite3.connect(path) as db:
        row = db.execute("SELECT * FROM sqlite_schema WHERE name = 'by_group'").fetchone()
    damaged(path, "PRAGMA writable_schema = ON", "DELETE FROM sqlite_schema WHERE name = 'by_group'")
    damaged(path, f"UPDATE messages SET seq = 9 WHERE id = {SEGMENT}")
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA writable_schema = ON")
    db.execute("INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)", row)
    db.close()
    with QueueManager("QM1", path, create=False) as manager:
        assert got(manager, CMQC.MQGMO_COMPLETE_MSG) == [data for data in WHOLE if data != b"abcdefghi"]
        assert CMQC.MQRC_OBJECT_DAMAGED in [reason for reason, _, _ in manager.set_aside("Q")]


# ---- a gateway's file ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def halfway(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gateway that was ended between the segments of two messages."""
    folder = tmp_path_factory.mktemp("halfway")
    with logging_to(folder) as log:
        one, other = cut(bytes(3000), 500), cut(bytes(2000), 500, group=b"o" * 24)
        log.block(b"before", *one[:3], *other[:2])
        follower = log.follow()
        follower.step()
        follower.close()
        log.block(*one[3:], *other[2:], b"behind")
    return folder


@each_row("value, table", product(VALUES, ["assembly_group", "assembly_message", "assembly_piece"]))
def test_what_is_not_put_together_yet(halfway: Path, tmp_path: Path, table: str, value: str) -> None:
    """What is damaged is given up, or does no harm; a message is never put with bytes missing, and others go on."""
    for column in columns(halfway / "mq.db", table):
        folder = tmp_path / column
        shutil.copytree(halfway, folder)
        first = f"(SELECT number FROM {table} ORDER BY number LIMIT 1)"
        if not damaged(
            folder / "mq.db", f"UPDATE {table} SET {column} = {VALUES[value]} WHERE number = {first}"
        ):
            continue
        with logging_to(folder) as log:
            follower = log.follow()
            follower.step()
            found = [data for _, data in log.got()]
            assert [data for data in found if len(data) != 3000] == [b"before", bytes(2000), b"behind"] or (
                found == [b"before", b"behind"]
            ), (column, found)
            follower.close()


def test_damage_of_what_is_not_put_together_is_said(halfway: Path, tmp_path: Path) -> None:
    shutil.copytree(halfway, tmp_path / "there")
    damaged(tmp_path / "there" / "mq.db", "DELETE FROM assembly_piece WHERE at = 500 AND number = 1")
    with logging_to(tmp_path / "there") as log:
        follower = log.follow()
        follower.step()
        assert "what it has of 1 GroupIds that are not reassembled yet is given up" in str(
            follower.last_error
        )
        assert follower.counts["damage"] == 1
        assert [len(data) for _, data in log.got()] == [6, 2000, 6]


@each_row("column", ["file", "at", "records", "sequence"])
def test_how_far_a_log_was_read(halfway: Path, tmp_path: Path, column: str) -> None:
    shutil.copytree(halfway, tmp_path / "there")
    damaged(tmp_path / "there" / "mq.db", f"UPDATE follow SET {column} = x'00'")
    with logging_to(tmp_path / "there") as log, pytest.raises(MQMIError, match="the position in the log"):
        log.follow()


# ---- an uplink's file ------------------------------------------------------------------------------------------------


@pytest.mark.needs_ibmmq
@pytest.mark.needs_cc
@each_row("value", VALUES)
def test_a_column_of_a_message_that_is_sent(tmp_path: Path, value: str) -> None:
    """It goes as it was put, or not at all; the others go."""
    for column in _KEPT:
        path = tmp_path / f"{column}.db"
        outbox = opened(path)
        fill(outbox)
        outbox.close()
        if not damaged(path, f"UPDATE messages SET {column} = {VALUES[value]} WHERE id = 2"):
            continue
        outbox = opened(path)
        recorder = Recorder(queues())
        steps(outbox, PLAIN, recorder, 8)
        outbox.close()
        assert recorder.misuse == []
        assert [data for data in arrived(recorder) if data != DATA[1]] == DATA[:1] + DATA[2:], column


@pytest.mark.needs_ibmmq
@pytest.mark.needs_cc
@each_row("damage", ["identity = 'x'", "identity = x'00'", "number = 'x'", "number = 1.5", "number = -7"])
def test_what_is_known_of_the_record_queue(tmp_path: Path, damage: str) -> None:
    """Nothing is sent, and it says why; a new record is a way out."""
    outbox = opened(tmp_path / "mq.db")
    fill(outbox)
    outbox.state()
    outbox.close()
    damaged(tmp_path / "mq.db", f"UPDATE uplink SET {damage}")
    outbox = opened(tmp_path / "mq.db")
    recorder = Recorder(queues())
    uplink = Uplink(RECORDED, outbox)
    with recorder:
        assert uplink.step() > 0
        assert arrived(recorder) == []
        assert "the state of the record queue is damaged" in str(uplink.last_error)
        outbox.begin_again()
        for _ in range(5):
            uplink.step()
        uplink._drop()
    outbox.close()
    assert arrived(recorder) == DATA
