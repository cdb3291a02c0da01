"""Units of work and processes: commit, backout, what a connection that is gone leaves, several at a time, bad files."""

import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater_mq as ibmmq
from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import MD
from headwater_host.mq.errors import MQMIError
from headwater_mq.manager import QueueManager, Statistics
from headwater_mq.options import GMO, OD, PMO
from headwater_mq.queue import Queue
from tests.host.mq_queue import ALL, attempt, empty, gmo2, program, queue_manager, reason_of, sync

SYNC = CMQC.MQGMO_SYNCPOINT


def test_the_names_are_where_people_look_for_them() -> None:
    assert ibmmq.QueueManager is QueueManager
    assert (ibmmq.Queue, ibmmq.MD, ibmmq.PMO, ibmmq.GMO, ibmmq.OD) == (Queue, MD, PMO, GMO, OD)
    assert ibmmq.MQMIError is MQMIError


def test_the_log_of_durable_puts_stays_small(tmp_path: Path) -> None:
    """A disk must not be full when a tenth of it is payload."""
    put, most = 0, 0
    with queue_manager(tmp_path, "Q", keeps_over="power") as manager, Queue(manager, "Q", ALL) as queue:
        manager.alter("Q", MaxQDepth=1000)
        for _ in range(100):
            queue.put(bytes(3000))
            put += 3000
            most = max(most, sum(one.stat().st_size for one in tmp_path.iterdir()))
    assert most < 1_100_000, f"{most} bytes for {put} of payload"


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
            counted = one.statistics("Q")[0]
            assert counted == Statistics("Q", 0, 0, 1, 0, counted.bytes, 0, 2, 2)
            other.backout()
        mine.put(b"3", MD(), sync())
        assert one.statistics("Q")[0].depth == 2, "as IBM counts: uncommitted puts are in it"
        assert theirs.get(None, MD(), gmo2(SYNC)) == b"2"
        other.commit()
        one.commit()
        assert theirs.get() == b"3"
        assert one.statistics("Q")[0].depth == 0
        # Put and got in one unit of work: nothing of it is left.
        mine.put(b"4", MD(), sync())
        assert mine.get(None, MD(), gmo2(SYNC)) == b"4"
        one.commit()
        assert one.statistics("Q")[0][1:7] == (0, 0, 0, 0, 0, 0)
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


def test_syncpoint_if_persistent(manager: QueueManager, queue: Queue) -> None:
    option = CMQC.MQGMO_SYNCPOINT_IF_PERSISTENT
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


def test_a_get_writes_little(tmp_path: Path) -> None:
    """What is got is not written over, whatever SQLite was built with: a full disk must not keep it."""
    size = 1 << 20
    with QueueManager("QM1", tmp_path / "mq.db") as qmgr:
        qmgr.define("Q")
        qmgr.put1("Q", bytes(size))
        qmgr.file.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert len(Queue(qmgr, "Q").get()) == size
        assert 0 < (tmp_path / "mq.db-wal").stat().st_size < size // 4


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
        # A connection that ends closes its queues.
        with queue_manager(tmp_path) as third:
            Queue(third, "Q", exclusive)
        Queue(one, "Q", exclusive).close()
        one.delete("Q", purge=True)
        assert reason_of(Queue, other, "Q", shared) == CMQC.MQRC_UNKNOWN_OBJECT_NAME


CHILD = """
import os, sys
from headwater_host.mq import CMQC
from headwater_mq import GMO, MD, PMO, Queue, QueueManager
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
        child = program(CHILD, tmp_path / "queues.db")
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
from headwater_host.mq import CMQC
from headwater_mq import GMO, MD, MQMIError, PMO, Queue, QueueManager
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
        workers = [program(WORKER, tmp_path / "queues.db") for _ in range(3)]
        for worker in workers:
            worker.communicate()
        assert [worker.returncode for worker in workers] == [0, 0, 0]
        with Queue(manager, "B") as queue:
            assert sorted(int(queue.get()) for _ in range(120)) == list(range(120))
            assert empty(queue)
        assert [(one.messages, one.depth) for one in manager.statistics()] == [(0, 0), (0, 0)]


MAKER = """
import sys
from headwater_mq import QueueManager
sys.stdin.readline()
with QueueManager("QM1", sys.argv[1], keeps_over="process") as manager:
    manager.define("Q%s" % sys.argv[2])
    manager.put1("Q%s" % sys.argv[2], b"x")
"""


def test_several_make_the_file_at_a_time(tmp_path: Path) -> None:
    makers = [program(MAKER, tmp_path / "queues.db", n) for n in range(4)]
    for maker in makers:
        assert maker.stdin is not None
        maker.stdin.write("go\n")
        maker.stdin.flush()
    for maker in makers:
        with maker:
            assert maker.wait() == 0
    with queue_manager(tmp_path) as manager:
        assert [(one.name, one.messages) for one in manager.statistics()] == [(f"Q{n}", 1) for n in range(4)]


def test_a_file_that_another_is_making_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # SQLite itself does not wait for it, whatever the time-out is.
    other = sqlite3.connect(tmp_path / "queues.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            other.execute("ROLLBACK")
            other.close()

    monkeypatch.setattr(time, "sleep", sleep)
    with queue_manager(tmp_path, "Q") as manager:
        manager.put1("Q", b"x")
        assert len(waits) == 3
    with queue_manager(tmp_path) as manager, Queue(manager, "Q") as queue:
        assert queue.get() == b"x"


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
