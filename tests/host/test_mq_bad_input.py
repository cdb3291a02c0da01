"""What the local queue manager refuses: options, structures, attributes, files, damaged rows, a full disk, any data."""

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import MD
from headwater_host.mq.errors import MQMIError
from headwater_mq.manager import QueueManager
from headwater_mq.options import GMO, OD, PMO
from headwater_mq.queue import Queue
from tests.host.mq_queue import ALL, GROUP, GROUP_ID, attempt, gmo2, md2, queue_manager, reason_of, segments
from tests.rows import each_row

SYNC = CMQC.MQGMO_SYNCPOINT


@each_row(
    "reason, arguments",
    [
        (CMQC.MQRC_MD_ERROR, {"md": {"StrucId": "XX"}}),
        (CMQC.MQRC_MD_ERROR, {"md": {"Version": 3}}),
        (CMQC.MQRC_MSG_TYPE_ERROR, {"md": {"MsgType": 0}}),
        (CMQC.MQRC_EXPIRY_ERROR, {"md": {"Expiry": 0}}),
        (CMQC.MQRC_EXPIRY_ERROR, {"md": {"Expiry": -2}}),
        (CMQC.MQRC_FEEDBACK_ERROR, {"md": {"Feedback": -1}}),
        (CMQC.MQRC_PRIORITY_ERROR, {"md": {"Priority": -2}}),
        (CMQC.MQRC_PERSISTENCE_ERROR, {"md": {"Persistence": 3}}),
        (CMQC.MQRC_MISSING_REPLY_TO_Q, {"md": {"MsgType": CMQC.MQMT_REQUEST}}),
        # MQRO_COA, and MQRO_EXCEPTION_WITH_FULL_DATA.
        (CMQC.MQRC_MISSING_REPLY_TO_Q, {"md": {"Report": 0x100}}),
        (CMQC.MQRC_MISSING_REPLY_TO_Q, {"md": {"Report": 0x07000000}}),
        (CMQC.MQRC_PMO_ERROR, {"pmo": {"StrucId": "XX"}}),
        (CMQC.MQRC_PMO_ERROR, {"pmo": {"Version": 4}}),
        (CMQC.MQRC_OPTIONS_ERROR, {"pmo": {"Options": 6}}),
        (CMQC.MQRC_OPTIONS_ERROR, {"pmo": {"Options": 1}}),
        (CMQC.MQRC_OPTIONS_ERROR, {"pmo": {"Options": CMQC.MQPMO_NO_CONTEXT | CMQC.MQPMO_DEFAULT_CONTEXT}}),
        (CMQC.MQRC_GMO_ERROR, {"gmo": {"StrucId": "XX"}}),
        (CMQC.MQRC_GMO_ERROR, {"gmo": {"Version": 5}}),
        (CMQC.MQRC_OPTIONS_ERROR, {"gmo": {"Options": 6}}),
        (CMQC.MQRC_OPTIONS_ERROR, {"gmo": {"Options": CMQC.MQGMO_CONVERT}}),
        (CMQC.MQRC_OPTIONS_ERROR, {"gmo": {"Options": CMQC.MQGMO_LOCK | CMQC.MQGMO_BROWSE_FIRST}}),
        (CMQC.MQRC_OPTIONS_ERROR, {"gmo": {"Options": SYNC | CMQC.MQGMO_BROWSE_FIRST}}),
        (CMQC.MQRC_OPTIONS_ERROR, {"gmo": {"Options": 0x30}}),
        (
            CMQC.MQRC_OPTIONS_ERROR,
            {"gmo": {"Version": 2, "Options": CMQC.MQGMO_SYNCPOINT_IF_PERSISTENT | CMQC.MQGMO_COMPLETE_MSG}},
        ),
        (CMQC.MQRC_WRONG_GMO_VERSION, {"gmo": {"Options": CMQC.MQGMO_LOGICAL_ORDER}}),
        (CMQC.MQRC_WAIT_INTERVAL_ERROR, {"gmo": {"Options": CMQC.MQGMO_WAIT, "WaitInterval": -2}}),
        (CMQC.MQRC_NO_MSG_AVAILABLE, {"gmo": {"WaitInterval": -2}}),
        (CMQC.MQRC_MATCH_OPTIONS_ERROR, {"gmo": {"Version": 2, "MatchOptions": 64}}),
        (CMQC.MQRC_WRONG_MD_VERSION, {"gmo": {"Version": 2, "MatchOptions": CMQC.MQMO_MATCH_GROUP_ID}}),
        (CMQC.MQRC_OD_ERROR, {"od": {"ObjectType": 5}}),
        (CMQC.MQRC_OBJECT_NAME_ERROR, {"od": {"ObjectName": ""}}),
        (CMQC.MQRC_OBJECT_NAME_ERROR, {"od": {"ObjectName": "A B"}}),
        (CMQC.MQRC_OBJECT_NAME_ERROR, {"od": {"ObjectName": b"Q\xff"}}),
        (CMQC.MQRC_UNKNOWN_REMOTE_Q_MGR, {"od": {"ObjectQMgrName": b"Q\xff"}}),
        (CMQC.MQRC_UNKNOWN_OBJECT_NAME, {"od": {"ObjectName": "q"}}),
        (CMQC.MQRC_OPTIONS_ERROR, {"open": 0}),
        (CMQC.MQRC_OPTIONS_ERROR, {"open": 3}),
        (CMQC.MQRC_OPTIONS_ERROR, {"open": CMQC.MQOO_INPUT_SHARED | CMQC.MQOO_SET_ALL_CONTEXT}),
        (CMQC.MQRC_OPTIONS_ERROR, {"open": CMQC.MQOO_BROWSE | CMQC.MQOO_SET_IDENTITY_CONTEXT}),
        (CMQC.MQRC_OPTIONS_ERROR, {"open": CMQC.MQOO_OUTPUT | 0x40000000}),
        (CMQC.MQRC_NOT_OPEN_FOR_OUTPUT, {"open": CMQC.MQOO_BROWSE, "pmo": {}}),
        (CMQC.MQRC_NOT_OPEN_FOR_INPUT, {"open": CMQC.MQOO_OUTPUT, "gmo": {}}),
        (CMQC.MQRC_NOT_OPEN_FOR_BROWSE, {"open": CMQC.MQOO_INPUT_SHARED, "gmo": {"Options": 0x10}}),
        (CMQC.MQRC_NOT_OPEN_FOR_BROWSE, {"open": CMQC.MQOO_INPUT_SHARED, "gmo": {"Options": 0x100}}),
        (CMQC.MQRC_DATA_LENGTH_ERROR, {"gmo": {}, "room": -1}),
    ],
)
def test_what_is_refused(reason: int, arguments: dict[str, Any], tmp_path: Path) -> None:
    def call(manager: QueueManager) -> None:
        od = OD(**({"ObjectName": "Q"} | arguments.get("od", {})))
        queue = Queue(manager)
        queue.open(od, arguments.get("open", ALL))
        md = MD(**arguments.get("md", {}))
        if "gmo" in arguments:
            queue.get(arguments.get("room"), md, GMO(**arguments["gmo"]))
        else:
            queue.put(b"x", md, PMO(**arguments.get("pmo", {})))

    with queue_manager(tmp_path, "Q") as manager:
        assert reason_of(call, manager) == reason
        assert manager.statistics("Q")[0].messages == 0


def test_what_a_structure_takes() -> None:
    md = MD()
    for name, value, error in (
        ("Nothing", 1, AttributeError),
        ("Priority", "3", TypeError),
        ("Priority", True, TypeError),
        ("Priority", 1 << 31, ValueError),
        ("MsgFlags", 1 << 32, ValueError),
        ("Format", "TOO.LONG.", ValueError),
        ("Format", "MÜ", ValueError),
        ("Format", 3, TypeError),
        ("MsgId", bytes(25), ValueError),
        ("MsgId", "text", TypeError),
    ):
        with pytest.raises(error, match=name):
            md.set(**{name: value})
    assert md == MD()
    md.set(MsgFlags=-1, Format=b"AB\0CD", MsgId=b"x")
    assert (md.MsgFlags, md["Format"], md.get()["MsgId"]) == (0xFFFFFFFF, b"AB      ", b"x" + bytes(23))
    assert MD.unpack(md.pack()) == md
    assert repr(MD(Priority=3)) == "MD(Priority=3)"
    assert repr(MQMIError(2, 2053, "Q takes 3")) == "MQMIError(2, 2053, 'Q takes 3')"
    assert str(MQMIError(2, 2053, "Q takes 3")) == "FAILED: MQRC_Q_FULL (2053): Q takes 3"
    assert MQMIError(1, 99).errorAsString() == "WARNING: reason 99"


def test_attributes(tmp_path: Path) -> None:
    with queue_manager(tmp_path) as manager:
        for wrong in (
            {"MaxQDepth": -1},
            {"MaxQDepth": 10**9},
            {"DefPriority": 10},
            {"MaxMsgLength": (100 << 20) + 1},
            {"Usage": 2},
            {"QType": CMQC.MQQT_REMOTE},
            {"RemoteQName": "X"},
            {"XmitQName": "X"},
            {"QType": CMQC.MQQT_REMOTE, "RemoteQName": "X"},
            {"QType": CMQC.MQQT_REMOTE, "RemoteQMgrName": "X"},
            {"MaxQDepth": True},
        ):
            with pytest.raises(ValueError, match=r"cannot be|a remote queue"):
                manager.define("Q", **wrong)
        with pytest.raises(TypeError):
            manager.define("Q", Nothing=1)
        assert reason_of(manager.define, "a b") == CMQC.MQRC_OBJECT_NAME_ERROR
        manager.define("Q", MaxQDepth=7)
        assert reason_of(manager.define, "Q") == CMQC.MQRC_OBJECT_ALREADY_EXISTS
        manager.alter("Q", DefPriority=5)
        assert (manager.queues()["Q"].MaxQDepth, manager.queues()["Q"].DefPriority) == (7, 5)
        with Queue(manager, "Q", ALL) as queue:
            assert queue.inquire(CMQC.MQIA_MAX_Q_DEPTH) == 7
            assert queue.inquire(CMQC.MQCA_Q_NAME) == b"Q".ljust(48)
            assert queue.inquire(CMQC.MQIA_OPEN_INPUT_COUNT) == 1
            assert reason_of(queue.inquire, 1) == CMQC.MQRC_SELECTOR_ERROR
        assert manager.inquire(CMQC.MQCA_Q_MGR_NAME) == b"QM1".ljust(48)
        assert reason_of(manager.inquire, 1) == CMQC.MQRC_SELECTOR_ERROR
    with pytest.raises(ValueError, match="Encoding"):
        QueueManager("QM1", tmp_path / "other.db", Encoding=0)
    assert not (tmp_path / "other.db").exists()


def test_files_that_are_not_ours(tmp_path: Path) -> None:
    gone = CMQC.MQRC_Q_MGR_NOT_AVAILABLE
    text = tmp_path / "notes.txt"
    text.write_text("not a database at all\n" * 300)
    assert reason_of(QueueManager, "QM1", text) == gone
    assert text.read_text() == "not a database at all\n" * 300
    other = tmp_path / "other.db"
    db = sqlite3.connect(other)
    db.execute("CREATE TABLE messages (x)")
    db.commit()
    db.close()
    before = other.read_bytes()
    with pytest.raises(MQMIError, match="another program"):
        QueueManager("QM1", other)
    assert other.read_bytes() == before
    with pytest.raises(MQMIError, match="does not exist"):
        QueueManager("QM1", tmp_path / "none.db", create=False)
    assert not (tmp_path / "none.db").exists()
    assert reason_of(QueueManager, "QM1", tmp_path / "no" / "folder.db") == gone
    with queue_manager(tmp_path, "Q") as manager:
        assert reason_of(QueueManager, "QM2", manager.file.path) == CMQC.MQRC_Q_MGR_NAME_ERROR
        manager.file.db.execute("PRAGMA user_version = 9")
    with pytest.raises(MQMIError, match="version 9; this program knows version 1"):
        QueueManager("QM1", tmp_path / "queues.db")
    assert not list(tmp_path.glob("*-user*"))


def test_a_message_that_is_not_what_was_written_is_set_aside(manager: QueueManager, queue: Queue) -> None:
    for data in (b"one", b"two", b"three"):
        queue.put(data)
    manager.file.db.execute("UPDATE messages SET body = x'6f6e66' WHERE body = x'6f6e65'")
    manager.file.db.execute("UPDATE messages SET md = zeroblob(364) WHERE body = x'74776f'")
    assert reason_of(queue.browse) == CMQC.MQRC_OBJECT_DAMAGED
    assert queue.get() == b"three"
    assert [reason for reason, _, _ in manager.set_aside("Q")] == [CMQC.MQRC_OBJECT_DAMAGED] * 2
    assert manager.give_back("Q") == 0


def test_a_group_that_is_too_long(manager: QueueManager, queue: Queue) -> None:
    queue.put(b"x", md2(MsgFlags=GROUP, GroupId=GROUP_ID, MsgSeqNumber=999_999_999))
    pmo = PMO(Options=CMQC.MQPMO_LOGICAL_ORDER)
    assert reason_of(queue.put, b"y", md2(MsgFlags=GROUP), pmo) == CMQC.MQRC_MSG_SEQ_NUMBER_ERROR
    assert manager.statistics("Q")[0].depth == 1


@pytest.mark.parametrize("damage", ["body = NULL", "body = x'00'", "md = NULL", "md = x'00'"])
@pytest.mark.parametrize("twice", [False, True])
def test_a_segment_that_is_not_what_was_written(
    damage: str, twice: bool, manager: QueueManager, queue: Queue
) -> None:
    """It is set aside alone, and what is behind it is not kept waiting."""
    complete = CMQC.MQGMO_COMPLETE_MSG
    parts = segments(b"abcd", 2, GroupId=GROUP_ID)
    for md, part in [*parts, *(parts[1:] if twice else ())]:
        queue.put(part, md)
    manager.file.db.execute(f"UPDATE messages SET {damage} WHERE id = 2")
    queue.put(b"other")
    browse = gmo2(complete | CMQC.MQGMO_BROWSE_FIRST)
    assert reason_of(queue.get, None, md2(), browse) == CMQC.MQRC_OBJECT_DAMAGED
    expected = [b"abcd", b"other"] if twice else [b"other"]
    assert [queue.get(None, md2(), gmo2(complete)) for _ in expected] == expected
    assert [reason for reason, _, _ in manager.set_aside("Q")] == [CMQC.MQRC_OBJECT_DAMAGED]


def test_a_full_disk_is_said_and_changes_nothing(manager: QueueManager, queue: Queue) -> None:
    queue.put(b"before", md2(MsgFlags=GROUP), PMO(Options=CMQC.MQPMO_LOGICAL_ORDER))
    (pages,) = manager.file.db.execute("PRAGMA page_count").fetchone()
    manager.file.db.execute(f"PRAGMA max_page_count = {pages + 2}")
    ordered = PMO(Options=CMQC.MQPMO_LOGICAL_ORDER)
    large = random.Random("large").randbytes(100_000)
    assert reason_of(queue.put, large, md2(MsgFlags=GROUP), ordered) == CMQC.MQRC_STORAGE_MEDIUM_FULL
    manager.file.db.execute("PRAGMA max_page_count = 100000")
    md = md2(MsgFlags=GROUP | CMQC.MQMF_LAST_MSG_IN_GROUP)
    queue.put(large, md, ordered)
    assert md.MsgSeqNumber == 2
    assert queue.get(None, md2()) == b"before"
    assert queue.get(None, md2()) == large


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueManager]:
    with queue_manager(tmp_path_factory.mktemp("shared"), "Q") as manager:
        yield manager


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_data_with_any_descriptor(shared: QueueManager, data: st.DataObject) -> None:
    """A put says a reason of IBM's, or what comes back is what was put."""
    longs = st.sampled_from([-1, 0, 1, 2, 4, 8, 24, 30, 31, 0x1000, 999_999_999, 1_000_000_000])
    md = MD(
        Version=data.draw(st.sampled_from([1, 2])),
        Format=data.draw(st.sampled_from(["MQHMDE", "MQDEAD", "MQSTR", "", "MQXMIT"])),
        Encoding=data.draw(st.sampled_from([546, 273, 0])),
        CodedCharSetId=data.draw(st.sampled_from([0, 819, 500, -2])),
        MsgType=data.draw(st.sampled_from([8, 4])),
        MsgSeqNumber=data.draw(longs),
        Offset=data.draw(longs),
        MsgFlags=data.draw(longs),
        OriginalLength=data.draw(longs),
    )
    begin = data.draw(
        st.sampled_from([b"", b"MDE \x02\0\0\0\x48\0\0\0", b"DLH \x01\0\0\0", b"MDE \x01\0\0\0"])
    )
    body = begin + data.draw(st.binary(max_size=200))
    given = md.copy()
    with Queue(shared, "Q", ALL) as queue:
        error = attempt(queue.put, body, given)
        if error is not None:
            assert error.comp == CMQC.MQCC_FAILED
            assert error.reason in range(2248, 2254) or error.reason == CMQC.MQRC_DLH_ERROR
            assert given == md
            return
        got = md2()
        back = queue.get(None, got)
        if got.Format == given.Format and got.Format != CMQC.MQFMT_DEAD_LETTER_HEADER:
            assert back == body
        else:
            assert body.endswith(back) or back[244:] == body[172:]
