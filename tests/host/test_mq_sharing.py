"""Several connections, processes and threads on one file, where they meet: while it is made, opened, closed, swept."""

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import pytest

from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import MD
from headwater_host.mq.errors import MQMIError
from headwater_mq import queue_file
from headwater_mq.manager import QueueManager
from headwater_mq.options import PMO
from headwater_mq.queue import Queue
from tests.host.mq_queue import ALL, GROUP, attempt, empty, gmo2, md2, program, queue_manager, reason_of, sync

SYNC = CMQC.MQGMO_SYNCPOINT


def sweep(manager: QueueManager) -> bool:
    """Look now who is gone, and not only once a second."""
    manager.file._swept = 0.0
    return manager.file.sweep()


def kill(manager: QueueManager) -> None:
    """What the system does when a process is killed: its files are closed."""
    manager.file.db.close()
    os.close(manager.file._lock)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- who is there ------------------------------------------------------------------------------------------------------


def test_a_connection_is_there_by_whatever_name_the_file_is_opened(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    link = tmp_path / "link.db"
    link.symlink_to(folder / "queues.db")
    with queue_manager(folder, "Q") as manager:
        manager.put1("Q", b"x", MD(), sync())
        with QueueManager("QM1", link) as other, Queue(other, "Q", ALL) as queue:
            manager.commit()
            assert queue.get(None, MD(), gmo2(SYNC)) == b"x"
            assert not sweep(manager)
            other.commit()
        assert manager.statistics("Q")[0].messages == 0
    assert names(tmp_path) == ["folder", "link.db"]
    assert names(folder) == ["queues.db"]


def test_a_program_goes_to_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    with QueueManager("QM1", "queues.db") as manager, QueueManager("QM1", "queues.db") as other:
        manager.define("Q")
        other.put1("Q", b"x", MD(), sync())
        monkeypatch.chdir(there)
        assert not sweep(manager)
        other.commit()
        assert Queue(manager, "Q").get() == b"x"
    assert (names(here), names(there)) == (["queues.db"], [])


def test_two_who_look_at_the_same_time_find_it_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = QueueManager("QM1", tmp_path / "queues.db")
    gone.define("Q")
    gone.put1("Q", b"x")
    with queue_manager(tmp_path) as one, queue_manager(tmp_path) as other, Queue(other, "Q", ALL) as queue:
        assert Queue(gone, "Q").get(None, MD(), gmo2(SYNC)) == b"x"
        kill(gone)
        flock, found = fcntl.flock, []

        def locked(fd: int, operation: int) -> None:
            flock(fd, operation)
            monkeypatch.setattr(fcntl, "flock", flock)
            # While one has the lock the other looks, and must not take that for a sign of life.
            found.append(sweep(other))
            found.append(attempt(queue.get))

        monkeypatch.setattr(fcntl, "flock", locked)
        sweep(one)
        assert found == [True, b"x"]
        assert empty(queue)


def test_a_number_that_a_killed_process_still_holds_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system lets go of its files one after the other."""
    path = tmp_path / "queues.db"
    held = os.open(f"{path}-user1", os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    with monkeypatch.context() as patch:
        patch.setattr(queue_file, "_BUSY", 0)
        with pytest.raises(MQMIError, match="-user1 cannot be locked"):
            QueueManager("QM1", path)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            os.close(held)

    monkeypatch.setattr(time, "sleep", sleep)
    with queue_manager(tmp_path, "Q") as manager:
        assert (manager.file.connection, len(waits)) == (1, 3)
    assert names(tmp_path) == ["queues.db"]


KILLED = """
import os, sys
from pathlib import Path
from headwater_mq import QueueManager
manager = QueueManager("QM1", sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
Path.unlink = lambda *_, **__: os._exit(9)
manager.file._swept = 0.0
manager.file.sweep() if sys.argv[2] == "sweep" else manager.disconnect()
"""


@pytest.mark.parametrize("where", ["close", "sweep"])
def test_nothing_is_left_by_one_that_is_killed_while_it_removes_files(where: str, tmp_path: Path) -> None:
    gone = QueueManager("QM1", tmp_path / "queues.db")
    with program(KILLED, tmp_path / "queues.db", where) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        kill(gone)
        child.communicate("go\n")
    assert child.returncode == 9
    with queue_manager(tmp_path):
        pass
    assert names(tmp_path) == ["queues.db"]


def test_damage_is_said_by_whoever_looks_for_others(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q") as manager:
        manager.file.db.execute("DROP TABLE connections")
        assert reason_of(sweep, manager) == CMQC.MQRC_Q_MGR_NOT_AVAILABLE


# -- while it is made, and when it cannot be written -------------------------------------------------------------------


def test_who_only_looks_does_not_make_what_another_is_making(tmp_path: Path) -> None:
    path = tmp_path / "queues.db"
    # So it is when SQLite has opened it and nothing is written yet.
    path.touch()
    with pytest.raises(MQMIError, match=r"queues\.db is empty"):
        QueueManager(path=path, create=False)
    assert path.stat().st_size == 0
    with QueueManager("QM1", path, CodedCharSetId=500) as manager:
        assert manager.attributes.CodedCharSetId == 500
        with QueueManager(path=path, create=False) as other:
            assert other.attributes == manager.attributes


def test_an_exception_backs_out_though_the_file_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "queues.db"
    with queue_manager(tmp_path, "Q") as manager:
        manager.put1("Q", b"x")
    blocking = sqlite3.connect(path, isolation_level=None)

    def fail() -> None:
        with queue_manager(tmp_path) as manager:
            assert Queue(manager, "Q").get(None, MD(), gmo2(SYNC)) == b"x"
            manager.file.db.execute("PRAGMA busy_timeout = 0")
            blocking.execute("BEGIN IMMEDIATE")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        fail()
    blocking.execute("ROLLBACK")
    blocking.close()
    # What holds the connection still, as a debugger would, does not keep its unit of work.
    assert caught.value.__traceback__ is not None
    with queue_manager(tmp_path) as manager, Queue(manager, "Q", ALL) as queue:
        md = MD()
        assert queue.get(None, md) == b"x"
        assert md.BackoutCount == 1
    assert names(tmp_path) == ["queues.db"]


class InterruptError(Exception):
    """What a signal's handler raises."""


def test_a_call_that_a_signal_has_ended_keeps_nothing_from_the_next(tmp_path: Path) -> None:
    """Python calls a handler anywhere: also where a transaction is about to be ended."""
    with queue_manager(tmp_path, "Q") as manager, queue_manager(tmp_path) as other:
        queue = Queue(manager, "Q", ALL)
        for left in ("BEGIN", "BEGIN IMMEDIATE"):
            for call in (queue.put, queue.browse):
                other.put1("Q", b"x")
                manager.file.db.execute(left)
                manager.file.db.execute("SELECT * FROM messages").fetchall()
                if left == "BEGIN":
                    other.put1("Q", b"y")
                assert not isinstance(attempt(call, *([b"z"] if call == queue.put else [])), MQMIError)
        assert manager.statistics("Q")[0].messages == 8
        queue.close()


@pytest.mark.parametrize("end", ["backout", "commit"])
@pytest.mark.parametrize("call", ["put", "get"])
def test_what_a_signal_has_ended_when_it_was_done_is_in_the_unit_of_work(
    call: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with queue_manager(tmp_path, "Q") as manager, queue_manager(tmp_path) as other:
        queue = Queue(manager, "Q", ALL)
        other.put1("Q", b"x")

        def interrupted(*_: object, **__: object) -> None:
            raise InterruptError

        with monkeypatch.context() as patch:
            patch.setattr(manager, "worked", interrupted)
            with pytest.raises(InterruptError):
                queue.put(b"x", MD(), sync()) if call == "put" else queue.get(None, MD(), gmo2(SYNC))
        getattr(manager, end)()
        there = 1 + (end == "commit") * (1 if call == "put" else -1)
        assert other.statistics("Q")[0][1:4] == (there, 0, 0)
        queue.close()


# -- ids ---------------------------------------------------------------------------------------------------------------


def an_id(manager: QueueManager) -> bytes:
    md = MD()
    manager.put1("Q", b"x", md)
    return md.MsgId


def test_ids_do_not_come_again_when_32_bits_are_used_up(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q") as manager:
        first = an_id(manager)
        # So many programs have run for a put each, and each has taken a block of numbers.
        manager.file.db.execute("UPDATE about SET value = 1 + (1 << 32) WHERE name = 'ids'")
    with queue_manager(tmp_path) as manager:
        later = an_id(manager)
        assert (len(later), later[:16]) == (24, first[:16])
        assert later != first


def test_queue_managers_of_one_name_and_one_second_have_ids_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines without a clock begin at the same time, and send to the same queue manager."""
    monkeypatch.setattr(time, "time", lambda: 1_000_000.0)
    found = set()
    for name in ("one", "other"):
        with QueueManager("QM1", tmp_path / name) as manager:
            manager.define("Q")
            found.add(an_id(manager))
    assert len(found) == 2


# -- threads -----------------------------------------------------------------------------------------------------------


class Meeting:
    """A queue manager's lock: another thread comes just before it is taken, or as soon as it is free."""

    def __init__(self, manager: QueueManager, act: Callable[[], object], *, before: bool = False):
        self._manager = manager
        self._lock = manager.lock
        self._act = act
        self._before = before
        self._depth = 0
        manager.lock = self  # type: ignore[assignment]

    def _meet(self) -> None:
        self._manager.lock = self._lock
        thread = threading.Thread(target=self._act)
        thread.start()
        thread.join()
        self._manager.lock = self  # type: ignore[assignment]

    def __enter__(self) -> None:
        if self._before and not self._depth:
            self._meet()
        self._lock.acquire()
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        self._lock.release()
        if not self._before and not self._depth:
            self._meet()

    def end(self) -> None:
        self._manager.lock = self._lock


def test_two_threads_open_a_queue_at_a_time(tmp_path: Path) -> None:
    exclusive = CMQC.MQOO_INPUT_EXCLUSIVE
    with queue_manager(tmp_path, "Q") as manager:
        others: list[Queue] = []
        meeting = Meeting(manager, lambda: others.append(Queue(manager, "Q", CMQC.MQOO_OUTPUT)))
        mine = Queue(manager, "Q", exclusive)
        meeting.end()
        mine.close()
        assert manager.statistics("Q")[0][-2:] == (0, len(others))
        with Queue(manager, "Q", exclusive):
            pass
        for other in others:
            other.close()
        assert manager.statistics("Q")[0][-2:] == (0, 0)


@pytest.mark.parametrize("end", ["backout", "commit"])
def test_a_thread_puts_as_soon_as_another_has_ended_the_unit_of_work(
    end: str, manager: QueueManager, queue: Queue
) -> None:
    ordered = CMQC.MQPMO_SYNCPOINT | CMQC.MQPMO_LOGICAL_ORDER
    numbers: list[int] = []

    def put() -> None:
        md = md2(MsgFlags=GROUP)
        queue.put(b"x", md, PMO(Options=ordered))
        numbers.append(md.MsgSeqNumber)

    put()
    meeting = Meeting(manager, put)
    getattr(manager, end)()
    meeting.end()
    # Committed, the group goes on; backed out, it begins anew.
    assert numbers == ([1, 1] if end == "backout" else [1, 2])
    manager.backout()
    put()
    assert numbers[-1] == (1 if end == "backout" else 2)
    with pytest.raises(MQMIError, match="INCOMPLETE_GROUP"):
        queue.close()


def test_a_thread_closes_the_queue_that_another_is_about_to_put_to(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q") as manager:
        queue = Queue(manager, "Q", CMQC.MQOO_OUTPUT)

        def delete() -> None:
            queue.close()
            manager.delete("Q")

        meeting = Meeting(manager, delete, before=True)
        reason = reason_of(queue.put, b"x")
        meeting.end()
        assert reason == CMQC.MQRC_HOBJ_ERROR
