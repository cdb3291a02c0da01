"""Units of work and processes: commit, backout, what a connection that is gone leaves, several at a time, bad files."""

import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_host import ibmmq
from headwater_host.ibmmq import CMQC
from headwater_host.ibmmq.descriptors import GMO, MD, OD, PMO
from headwater_host.ibmmq.errors import MQMIError
from headwater_host.ibmmq.manager import QueueManager
from headwater_host.ibmmq.queue import Queue
from tests.host.mq_queue import ALL, GROUP, attempt, empty, gmo2, md2, queue_manager, reason_of, sync

SYNC = CMQC.MQGMO_SYNCPOINT


def test_the_names_are_where_people_look_for_them() -> None:
    assert ibmmq.QueueManager is QueueManager
    assert (ibmmq.Queue, ibmmq.MD, ibmmq.PMO, ibmmq.GMO, ibmmq.OD) == (Queue, MD, PMO, GMO, OD)
    assert ibmmq.MQMIError is MQMIError
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        ibmmq.Nothing  # noqa: B018


def test_commit_and_backout(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q") as one, queue_manager(tmp_path) as other:
        mine, theirs = Queue(one, "Q", ALL), Queue(other, "Q", ALL)
        mine.put(b"1", MD(), sync())
        assert empty(theirs)
        # In the unit of work it is there; outside of it it is not.
        assert empty(mine)
        assert mine.get(None, MD(), gmo2(SYNC)) == b"1"
        one.backout()
        assert empty(mine, SYNC)
        mine.put(b"2", MD(), sync())
        one.commit()
        for count in range(3):
            md = MD()
            assert theirs.get(None, md, gmo2(SYNC)) == b"2"
            assert md.BackoutCount == count
            assert empty(mine)
            assert reason_of(mine.browse) == CMQC.MQRC_NO_MSG_AVAILABLE
            assert one.statistics("Q")[0]._asdict() | {"bytes": 0} == {
                "name": "Q",
                "messages": 0,
                "uncommitted_puts": 0,
                "uncommitted_gets": 1,
                "set_aside": 0,
                "bytes": 0,
                "depth": 0,
                "open_for_input": 2,
                "open_for_output": 2,
            }
            other.backout()
        mine.put(b"3", MD(), sync())
        assert one.statistics("Q")[0].depth == 2, "as IBM counts: uncommitted puts are in it"
        assert theirs.get(None, MD(), gmo2(SYNC)) == b"2"
        other.commit()
        one.commit()
        assert theirs.get() == b"3"
        assert one.statistics("Q")[0].depth == 0
        theirs.close()
        mine.close()


def test_leaving_commits_and_an_exception_backs_out(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q") as manager:
        manager.put1("Q", b"kept", MD(), sync())

    def fail() -> None:
        with queue_manager(tmp_path) as manager:
            manager.put1("Q", b"not kept", MD(), sync())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with queue_manager(tmp_path) as manager, Queue(manager, "Q") as queue:
        assert queue.get() == b"kept"
        assert empty(queue)
    assert reason_of(manager.commit) == CMQC.MQRC_HCONN_ERROR
    assert reason_of(manager.put1, "Q", b"") == CMQC.MQRC_HCONN_ERROR
    manager.disconnect()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["queues.db"]


def test_a_unit_of_work_has_a_limit(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q", MaxUncommittedMsgs=3) as manager, Queue(manager, "Q", ALL) as queue:
        for _ in range(3):
            queue.put(b"x", MD(), sync())
        assert reason_of(queue.put, b"x", MD(), sync()) == CMQC.MQRC_SYNCPOINT_LIMIT_REACHED
        queue.put(b"y")
        manager.commit()
        for _ in range(3):
            queue.get(None, MD(), gmo2(SYNC))
        assert reason_of(queue.get, None, MD(), gmo2(SYNC)) == CMQC.MQRC_SYNCPOINT_LIMIT_REACHED
        manager.backout()
        assert manager.statistics("Q")[0].messages == 4


def test_syncpoint_if_persistent(tmp_path: Path) -> None:
    option = CMQC.MQGMO_SYNCPOINT_IF_PERSISTENT
    with queue_manager(tmp_path, "Q") as manager, Queue(manager, "Q", ALL) as queue:
        queue.put(b"kept", MD(Persistence=CMQC.MQPER_PERSISTENT))
        queue.put(b"gone", MD(Persistence=CMQC.MQPER_NOT_PERSISTENT))
        assert [queue.get(None, MD(), gmo2(option)) for _ in range(2)] == [b"kept", b"gone"]
        manager.backout()
        assert queue.get() == b"kept"
        assert empty(queue)


def test_what_waits_for_the_disk(tmp_path: Path) -> None:
    """SQLite's word for how the last call was committed: 2, it waited for the disk; 1, it did not."""
    kinds = {"persistent": CMQC.MQPER_PERSISTENT, "transient": CMQC.MQPER_NOT_PERSISTENT}
    for keeps_over, waits in (("power", 2), ("process", 1)):
        with queue_manager(tmp_path, keeps_over=keeps_over) as manager:
            if not manager.queues():
                manager.define("Q")
            with Queue(manager, "Q", ALL) as queue:
                for step, expected in (
                    ("put transient", 1),
                    ("put persistent", waits),
                    ("put persistent in unit", 1),
                    ("commit", waits),
                    ("put transient in unit", 1),
                    ("commit", 1),
                    ("get in unit", 1),
                    ("get in unit", 1),
                    ("backout", waits),
                    ("get", waits),
                ):
                    verb, *how = step.split()
                    if verb == "put":
                        pmo = sync() if "unit" in how else PMO()
                        queue.put(b"x", MD(Persistence=kinds[how[0]]), pmo)
                    elif verb == "get":
                        queue.get(None, MD(), gmo2(SYNC if how else 0))
                    else:
                        getattr(manager, verb)()
                    (synchronous,) = manager.file.db.execute("PRAGMA synchronous").fetchone()
                    assert synchronous == expected, (keeps_over, step)


def test_who_has_a_queue_open(tmp_path: Path) -> None:
    shared, exclusive = CMQC.MQOO_INPUT_SHARED, CMQC.MQOO_INPUT_EXCLUSIVE
    with queue_manager(tmp_path, "Q") as one, queue_manager(tmp_path) as other:
        with Queue(one, "Q", exclusive):
            assert reason_of(Queue, other, "Q", shared) == CMQC.MQRC_OBJECT_IN_USE
            assert reason_of(Queue, one, "Q", CMQC.MQOO_INPUT_AS_Q_DEF) == CMQC.MQRC_OBJECT_IN_USE
            with Queue(other, "Q", CMQC.MQOO_OUTPUT | CMQC.MQOO_BROWSE) as queue:
                queue.put(b"x")
        with Queue(one, "Q", shared), Queue(other, "Q", shared):
            assert reason_of(Queue, other, "Q", exclusive) == CMQC.MQRC_OBJECT_IN_USE
            assert reason_of(one.delete, "Q") == CMQC.MQRC_OBJECT_IN_USE
        assert reason_of(one.delete, "Q") == CMQC.MQRC_Q_NOT_EMPTY
        one.delete("Q", purge=True)
        assert reason_of(Queue, other, "Q", shared) == CMQC.MQRC_UNKNOWN_OBJECT_NAME


CHILD = """
import os, sys
from headwater_host.ibmmq import CMQC, GMO, MD, PMO, Queue, QueueManager
manager = QueueManager("", sys.argv[1], create=False, keeps_over="process")
queue = Queue(manager, "Q", CMQC.MQOO_OUTPUT | CMQC.MQOO_INPUT_EXCLUSIVE)
queue.put(b"theirs", MD(), PMO(Options=CMQC.MQPMO_SYNCPOINT))
assert queue.get(None, MD(), GMO(Options=CMQC.MQGMO_SYNCPOINT)) == b"first"
print("there", flush=True)
sys.stdin.readline()
os._exit(1)
"""


def test_a_process_that_is_gone_is_backed_out(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q") as manager, Queue(manager, "Q", CMQC.MQOO_OUTPUT) as out:
        out.put(b"first")
        command = [sys.executable, "-c", CHILD, str(tmp_path / "queues.db")]
        environment = {"PYTHONPATH": ":".join(sys.path)}
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert child.stdin is not None
        assert child.stdout is not None
        with child:
            assert child.stdout.readline() == "there\n"
            # Both use the file; the child's unit of work is its own, and it has the queue for itself.
            out.put(b"second")
            assert manager.statistics("Q")[0][1:5] == (1, 1, 1, 0)
            assert reason_of(Queue, manager, "Q", CMQC.MQOO_INPUT_SHARED) == CMQC.MQRC_OBJECT_IN_USE
            child.stdin.write("go\n")
        # The next one who comes finds it gone; so does one who waits.
        with queue_manager(tmp_path) as other, Queue(other, "Q", ALL) as queue:
            md = MD()
            assert queue.get(None, md) == b"first"
            assert md.BackoutCount == 1
            assert queue.get() == b"second"
            assert empty(queue)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["queues.db"]


WORKER = """
import sys
from headwater_host.ibmmq import CMQC, GMO, MD, MQMIError, PMO, Queue, QueueManager
manager = QueueManager("", sys.argv[1], create=False, keeps_over="process")
source, target = Queue(manager, "A"), Queue(manager, "B")
gmo = GMO(Options=CMQC.MQGMO_SYNCPOINT | CMQC.MQGMO_WAIT, WaitInterval=200)
moved = 0
while True:
    try:
        data = source.get(None, MD(), gmo)
    except MQMIError as error:
        assert error.reason == CMQC.MQRC_NO_MSG_AVAILABLE, error
        break
    target.put(data, MD(), PMO(Options=CMQC.MQPMO_SYNCPOINT))
    moved += 1
    manager.backout() if moved % 7 == 0 else manager.commit()
manager.disconnect()
"""


def test_processes_share_the_work(tmp_path: Path) -> None:
    """Three move messages from one queue to another; each arrives once."""
    with queue_manager(tmp_path, "A", "B") as manager:
        for n in range(120):
            manager.put1("A", b"%d" % n, MD(), sync())
        manager.commit()
        command = [sys.executable, "-c", WORKER, str(tmp_path / "queues.db")]
        environment = {"PYTHONPATH": ":".join(sys.path)}
        workers = [subprocess.Popen(command, env=environment) for _ in range(3)]
        assert [worker.wait() for worker in workers] == [0, 0, 0]
        with Queue(manager, "B") as queue:
            assert sorted(int(queue.get()) for _ in range(120)) == list(range(120))
            assert empty(queue)
        assert [(one.messages, one.depth) for one in manager.statistics()] == [(0, 0), (0, 0)]


# -- against a model ---------------------------------------------------------------------------------------------------


class Model:
    """What two connections and one queue must do, in a few lines: messages as (priority, number, data)."""

    def __init__(self) -> None:
        self.there: list[tuple[int, int, bytes]] = []
        self.put: list[list[tuple[int, int, bytes]]] = [[], []]
        self.got: list[list[tuple[int, int, bytes]]] = [[], []]
        self.count = 0

    def add(self, who: int, priority: int, data: bytes, *, unit: bool) -> None:
        self.count += 1
        (self.put[who] if unit else self.there).append((-priority, self.count, data))

    def take(self, who: int, *, unit: bool) -> bytes | None:
        seen = sorted(self.there + (self.put[who] if unit else []))
        if not seen:
            return None
        first = seen[0]
        if first in self.there:
            self.there.remove(first)
            if unit:
                self.got[who].append(first)
        else:
            self.put[who].remove(first)
        return first[2]

    def end(self, who: int, *, commit: bool) -> None:
        self.there += self.put[who] if commit else self.got[who]
        self.put[who], self.got[who] = [], []


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"), st.integers(0, 1), st.integers(0, 9), st.binary(max_size=300), st.booleans()
        ),
        st.tuples(st.just("get"), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("end"), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("again"), st.integers(0, 1)),
    ),
    max_size=40,
)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(steps=STEPS)
def test_two_connections_do_as_the_model(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]
) -> None:
    path = tmp_path_factory.mktemp("model") / "queues.db"
    model = Model()
    managers = [QueueManager("QM1", path, keeps_over="process") for _ in range(2)]
    managers[0].define("Q")
    queues = [Queue(one, "Q", ALL) for one in managers]
    for what, who, *more in steps:
        if what == "put":
            priority, data, unit = more
            queues[who].put(data, MD(Priority=priority), PMO(Options=2 if unit else 4))
            model.add(who, priority, data, unit=unit)
        elif what == "get":
            (unit,) = more
            found = attempt(queues[who].get, None, MD(), gmo2(2 if unit else 4))
            if isinstance(found, MQMIError):
                assert found.reason == CMQC.MQRC_NO_MSG_AVAILABLE
                found = None
            assert found == model.take(who, unit=unit)
        elif what == "end":
            (commit,) = more
            (managers[who].commit if commit else managers[who].backout)()
            model.end(who, commit=commit)
        else:
            managers[who].disconnect()
            model.end(who, commit=True)
            managers[who] = QueueManager("QM1", path, keeps_over="process")
            queues[who] = Queue(managers[who], "Q", ALL)
        counted = managers[0].statistics("Q")[0]
        assert counted.messages == len(model.there)
        assert counted.depth == len(model.there) + sum(map(len, model.put))
    for one in managers:
        one.disconnect()


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
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
        (CMQC.MQRC_WRONG_GMO_VERSION, {"gmo": {"Options": CMQC.MQGMO_LOGICAL_ORDER}}),
        (CMQC.MQRC_WAIT_INTERVAL_ERROR, {"gmo": {"WaitInterval": -2}}),
        (CMQC.MQRC_MATCH_OPTIONS_ERROR, {"gmo": {"Version": 2, "MatchOptions": 64}}),
        (CMQC.MQRC_WRONG_MD_VERSION, {"gmo": {"Version": 2, "MatchOptions": CMQC.MQMO_MATCH_GROUP_ID}}),
        (CMQC.MQRC_OD_ERROR, {"od": {"ObjectType": 5}}),
        (CMQC.MQRC_OBJECT_NAME_ERROR, {"od": {"ObjectName": ""}}),
        (CMQC.MQRC_OBJECT_NAME_ERROR, {"od": {"ObjectName": "A B"}}),
        (CMQC.MQRC_UNKNOWN_OBJECT_NAME, {"od": {"ObjectName": "q"}}),
        (CMQC.MQRC_OPTIONS_ERROR, {"open": 0}),
        (CMQC.MQRC_OPTIONS_ERROR, {"open": 3}),
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
    with pytest.raises(MQMIError, match="something else"):
        QueueManager("QM1", other)
    assert other.read_bytes() == before
    with pytest.raises(MQMIError, match="there is no file"):
        QueueManager("QM1", tmp_path / "none.db", create=False)
    assert not (tmp_path / "none.db").exists()
    assert reason_of(QueueManager, "QM1", tmp_path / "no" / "folder.db") == gone
    with queue_manager(tmp_path, "Q") as manager:
        assert reason_of(QueueManager, "QM2", manager.file.path) == CMQC.MQRC_Q_MGR_NAME_ERROR
        manager.file.db.execute("PRAGMA user_version = 9")
    with pytest.raises(MQMIError, match="version 9; this program knows version 1"):
        QueueManager("QM1", tmp_path / "queues.db")
    assert not list(tmp_path.glob("*-user*"))


def test_a_message_that_is_not_what_was_written_is_set_aside(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q") as manager, Queue(manager, "Q", ALL) as queue:
        for data in (b"one", b"two", b"three"):
            queue.put(data)
        manager.file.db.execute("UPDATE messages SET body = x'6f6e66' WHERE body = x'6f6e65'")
        manager.file.db.execute("UPDATE messages SET md = zeroblob(364) WHERE body = x'74776f'")
        assert reason_of(queue.browse) == CMQC.MQRC_OBJECT_DAMAGED
        assert queue.get() == b"three"
        assert [reason for reason, _, _ in manager.set_aside("Q")] == [CMQC.MQRC_OBJECT_DAMAGED] * 2
        assert manager.give_back("Q") == 0


def test_a_full_disk_is_said_and_changes_nothing(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q") as manager, Queue(manager, "Q", ALL) as queue:
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


MAKER = """
import sys
from headwater_host.ibmmq import QueueManager
sys.stdin.readline()
with QueueManager("QM1", sys.argv[1], keeps_over="process") as manager:
    manager.define("Q%s" % sys.argv[2])
    manager.put1("Q%s" % sys.argv[2], b"x")
"""


def test_several_make_the_file_at_a_time(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", MAKER, str(tmp_path / "queues.db")]
    makers = [
        subprocess.Popen([*command, str(n)], stdin=subprocess.PIPE, text=True, env=environment)
        for n in range(4)
    ]
    for maker in makers:
        assert maker.stdin is not None
        maker.stdin.write("go\n")
        maker.stdin.flush()
    for maker in makers:
        with maker:
            assert maker.wait() == 0
    with queue_manager(tmp_path) as manager:
        assert [(one.name, one.messages) for one in manager.statistics()] == [(f"Q{n}", 1) for n in range(4)]
