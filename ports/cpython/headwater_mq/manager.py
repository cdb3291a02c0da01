"""A local queue manager: queues in one SQLite file, with the behaviour of MQPUT, MQPUT1 and MQGET.

    with QueueManager("QM1", "queues.db") as qmgr:
        qmgr.define("READINGS", MaxQDepth=100_000)
        qmgr.put1("READINGS", b"21.5", MD(Format=CMQC.MQFMT_STRING), PMO(Options=CMQC.MQPMO_SYNCPOINT))
        qmgr.commit()

What ``commit``, or a put outside a unit of work, has returned is on the disk. docs/ibm-mq-queue.md says what there is.
"""

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, NamedTuple

from headwater_host.lifetime import Clocks
from headwater_host.mq import CMQC, put
from headwater_host.mq.descriptors import MD
from headwater_host.mq.errors import failed, warning
from headwater_host.mq.put import Place
from headwater_mq import messages, queue_file
from headwater_mq.attributes import (
    OF_QUEUE_MANAGERS,
    OF_QUEUES,
    QueueAttributes,
    QueueManagerAttributes,
    check_name,
    dump,
    load,
)
from headwater_mq.options import INPUT, OD, PMO, check_object_descriptor, check_put_options
from headwater_mq.putting import Places, Putting, Resolved
from headwater_mq.queue_file import QueueFile, explained


class Statistics(NamedTuple):
    """A queue in numbers: messages that can be got, those in units of work (put, and got), those set aside, the data of
    all in bytes, its depth as IBM counts it (all but those that are got), and how many have it open."""

    name: str
    messages: int
    uncommitted_puts: int
    uncommitted_gets: int
    set_aside: int
    bytes: int
    depth: int
    open_for_input: int
    open_for_output: int


class QueueManager:
    """The queue manager ``name`` in the file ``path``, which is made when it is not there, with ``attributes``
    (``QueueManagerAttributes``), unless ``create`` is false.

    One connection: one unit of work. Several threads may share it, and then share that. ``keeps_over``: "power", what a
    call has returned is on the disk; or "process", which is much faster and outlives the end of the process, but not
    the machine's. ``clocks``: the machine's, or a test's. ``group_readable``: whether the group of the file's directory
    may read it. MQRC_Q_MGR_NAME_ERROR: the file is another's; without a name it is whichever it is.
    """

    def __init__(
        self,
        name: str = "",
        path: "str | os.PathLike[str]" = "queues.db",
        *,
        create: bool = True,
        keeps_over: str = "power",
        clocks: Clocks | None = None,
        group_readable: bool = False,
        **attributes: Any,
    ):
        if name:
            attributes["QMgrName"] = name
        wanted = QueueManagerAttributes(**attributes)
        #: Held during each call.
        self.lock = threading.RLock()
        self.monotonic = time.monotonic
        self._closed = False
        self._handles = 0
        self._cache: dict[str, QueueAttributes] = {}
        # The unit of work: whether anything of it may be in the file, how many messages, whether it must be on the
        # disk, and where in groups its open queues were before its first "put" and "get" on each.
        self._working = False
        self._uncommitted = 0
        self._persistent = False
        self._places: dict[tuple[Places, str], Place | None] = {}
        if keeps_over not in ("power", "process"):
            raise ValueError(f"keeps_over is power or process, not {keeps_over!r}")
        self.file = QueueFile(
            path,
            wanted,
            create=create,
            power=keeps_over == "power",
            clocks=clocks,
            group_readable=group_readable,
        )
        #: As the file has them.
        self.attributes = self.file.attributes
        if name and name.rstrip() != self.attributes.QMgrName:
            found = self.attributes.QMgrName
            self.file.close()
            raise failed(CMQC.MQRC_Q_MGR_NAME_ERROR, f"{path} is the queue manager {found}, not {name}")

    def __enter__(self) -> "QueueManager":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit and disconnect; back out when there was an exception."""
        if kind is None:
            self.disconnect()
            return
        with self.lock:
            # This backs out; where nothing can be written, as on a full disk, the next who comes does so.
            self._closed = True
            self.file.close()

    def disconnect(self) -> None:
        """MQDISC: what is not committed is committed. Twice is harmless."""
        with self.lock:
            if self._closed:
                return
            try:
                self.commit()
            finally:
                self._closed = True
                self.file.close()

    # -- units of work -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """MQBEGIN, which is not needed: a unit of work begins with the first call in it."""
        self.check()

    def commit(self) -> None:
        """MQCMIT: what was put is there for all, and what was got is gone; on the disk."""
        with self.lock:
            self._end(queue_file.commit)
            self._places.clear()

    def backout(self) -> None:
        """MQBACK: what was put was never there; what was got is there again, its BackoutCount one more."""
        with self.lock:
            self._end(queue_file.backout)
            for (places, name), place in self._places.items():
                setattr(places, name, place)
            self._places.clear()

    def _end(self, how: Callable[[sqlite3.Connection, int], None]) -> None:
        self.check()
        if self._working:
            with self.file.transaction(durable=self._persistent) as db:
                how(db, self.file.connection)
        self._working = False
        self._uncommitted = 0
        self._persistent = False

    def in_unit_of_work(self, options: int, yes: int, no: int) -> bool:
        """Whether a call is in the unit of work: as it says; otherwise it is on z/OS, and is not elsewhere."""
        return bool(options & yes) or (self.attributes.settings.zos and not options & no)

    def working(self, count: int) -> None:
        """Within a put or a get in the unit of work: MQRC_SYNCPOINT_LIMIT_REACHED when these are too many.

        The exception of a signal's handler may end the call when it is done, and before ``worked``.
        """
        most = self.attributes.MaxUncommittedMsgs
        if self._uncommitted + count > most:
            raise failed(CMQC.MQRC_SYNCPOINT_LIMIT_REACHED, f"a unit of work has at most {most} messages")
        self._working = True

    def worked(self, places: Places, count: int, *, persistent: bool, putting: bool) -> None:
        """After a put or a get in the unit of work, before ``places`` moves on."""
        self._uncommitted += count
        self._persistent = self._persistent or persistent
        name = "put" if putting else "get"
        self._places.setdefault((places, name), getattr(places, name))

    # -- queues --------------------------------------------------------------------------------------------------------

    def define(self, name: str, **attributes: Any) -> None:
        """Make a queue (DEFINE in MQSC) with these ``QueueAttributes``. MQRC_OBJECT_ALREADY_EXISTS."""
        name = check_name(name)
        wanted = QueueAttributes(**attributes)
        with self._changing() as db:
            if self._find(db, name) is not None:
                raise failed(CMQC.MQRC_OBJECT_ALREADY_EXISTS, name)
            db.execute("INSERT INTO queues (name, attributes) VALUES (?, ?)", (name, dump(wanted)))

    def alter(self, name: str, **attributes: Any) -> None:
        """Change attributes of a queue. Messages that are there keep their place in it."""
        with self._changing() as db:
            number, now = self._known(db, name)
            db.execute(
                "UPDATE queues SET attributes = ? WHERE id = ?", (dump(replace(now, **attributes)), number)
            )

    def delete(self, name: str, *, purge: bool = False) -> None:
        """Delete a queue; with ``purge`` its messages as well, unless one is in a unit of work.

        MQRC_Q_NOT_EMPTY, or MQRC_OBJECT_IN_USE when somebody has it open.
        """
        with self._changing() as db:
            number, _ = self._known(db, name)
            if db.execute("SELECT 1 FROM opens WHERE queue = ?", (number,)).fetchone():
                raise failed(CMQC.MQRC_OBJECT_IN_USE, f"{name} is open")
            if purge:
                db.execute("DELETE FROM messages WHERE queue = ? AND put_by = 0 AND taken_by = 0", (number,))
            if db.execute("SELECT 1 FROM messages WHERE queue = ?", (number,)).fetchone():
                raise failed(CMQC.MQRC_Q_NOT_EMPTY, name)
            db.execute("DELETE FROM queues WHERE id = ?", (number,))

    def queues(self) -> dict[str, QueueAttributes]:
        """All queues, by name."""
        with self._looking() as db:
            rows = db.execute("SELECT name, attributes FROM queues ORDER BY name").fetchall()
        return {str(name): load(QueueAttributes, text, str(name)) for name, text in rows}

    def statistics(self, name: str = "") -> list[Statistics]:
        """A queue, or all of them, in numbers."""
        query = (
            "SELECT name, total(put_by = 0 AND taken_by = 0 AND aside = 0), total(put_by != 0), total(taken_by != 0), "
            f"total(messages.id AND aside IS NOT 0), total({messages.LENGTH}), depth, "
            "(SELECT count(*) FROM opens WHERE queue = queues.id AND input), "
            "(SELECT count(*) FROM opens WHERE queue = queues.id AND output) "
            "FROM queues LEFT JOIN messages ON queue = queues.id GROUP BY queues.id ORDER BY name"
        )
        with self._looking() as db:
            if name:
                self._known(db, name)
            rows = db.execute(query).fetchall()
        found = [Statistics(row[0], *map(int, row[1:])) for row in rows]
        return [one for one in found if not name or one.name == name.rstrip()]

    def set_aside(self, name: str) -> Iterator[tuple[int, MD, bytes]]:
        """What nobody gets from a queue, because segments contradict each other or bytes are not what was written: the
        reason, the descriptor and the data, as far as they can be read."""
        with self._looking() as db:
            number, _ = self._known(db, name)
            query = (
                f"SELECT {messages.REASON}, md, body FROM messages WHERE queue = ? AND aside IS NOT 0 "
                "ORDER BY rank, id"
            )
            rows = db.execute(query, (number,)).fetchall()
        for reason, packed, body in rows:
            md = MD.unpack(packed) if isinstance(packed, bytes) and len(packed) == 364 else MD()
            yield reason, md, body if isinstance(body, bytes) else b""

    def give_back(self, name: str) -> int:
        """Let what was set aside in a queue be got again, but for damaged messages; how many."""
        with self._changing() as db:
            number, _ = self._known(db, name)
            statement = "UPDATE messages SET aside = 0 WHERE queue = ? AND aside NOT IN (0, ?)"
            return db.execute(statement, (number, CMQC.MQRC_OBJECT_DAMAGED)).rowcount

    def inquire(self, selector: int) -> int | bytes:
        """MQINQ of an attribute of the queue manager."""
        field = OF_QUEUE_MANAGERS.get(selector)
        if field is None:
            raise failed(CMQC.MQRC_SELECTOR_ERROR, f"selector {selector}")
        return _shown(getattr(self.attributes, field))

    def inquire_queue(self, name: str, selector: int) -> int | bytes:
        """MQINQ of an attribute of a queue; ``Queue.inquire`` calls it."""
        if selector == CMQC.MQCA_Q_NAME:
            return _shown(name)
        if selector in (CMQC.MQIA_CURRENT_Q_DEPTH, CMQC.MQIA_OPEN_INPUT_COUNT, CMQC.MQIA_OPEN_OUTPUT_COUNT):
            (counted,) = self.statistics(name)
            return {
                CMQC.MQIA_CURRENT_Q_DEPTH: counted.depth,
                CMQC.MQIA_OPEN_INPUT_COUNT: counted.open_for_input,
                CMQC.MQIA_OPEN_OUTPUT_COUNT: counted.open_for_output,
            }[selector]
        field = OF_QUEUES.get(selector)
        if field is None:
            raise failed(CMQC.MQRC_SELECTOR_ERROR, f"selector {selector}")
        with self._looking() as db:
            return _shown(getattr(self._known(db, name)[1], field))

    # -- MQPUT1 --------------------------------------------------------------------------------------------------------

    def put1(
        self,
        name: "str | bytes | OD",
        message: "bytes | bytearray | memoryview",
        md: MD | None = None,
        pmo: PMO | None = None,
    ) -> None:
        """MQPUT1: open a queue, put one message, close it."""
        od = name if isinstance(name, OD) else OD(ObjectName=name)
        check_object_descriptor(od)
        handle, resolved = self.open_handle(od, CMQC.MQOO_OUTPUT)
        places = Places()
        try:
            self.put_message(resolved, CMQC.MQOO_OUTPUT, places, message, md, pmo, put1=True)
        finally:
            self.close_handle(places, handle)

    def put_message(
        self,
        to: Resolved,
        opened: int,
        places: Places,
        message: "bytes | bytearray | memoryview",
        md: MD | None,
        pmo: PMO | None,
        *,
        put1: bool = False,
    ) -> None:
        """MQPUT to a queue that is open with the options ``opened``, or MQPUT1. ``md`` and ``pmo`` are filled in."""
        md = MD() if md is None else md
        pmo = PMO() if pmo is None else pmo
        check_put_options(pmo, put1=put1)
        put.check_message_descriptor(md)
        ordered = bool(pmo.Options & CMQC.MQPMO_LOGICAL_ORDER)
        with self.lock:
            self.check()
            syncpoint = self.in_unit_of_work(pmo.Options, CMQC.MQPMO_SYNCPOINT, CMQC.MQPMO_NO_SYNCPOINT)
            putting = self.putting(to)
            given, too_high = putting.described(md, pmo.Options, opened, put1=put1)
            self.answered(given)
            read = put.read(
                given,
                message,
                putting.settings,
                index_type=putting.attributes.IndexType,
                remote=putting.remote is not None,
                ordered=ordered,
            )
            length = put.own_length(read.md, read.data)
            persistent = read.md.Persistence == CMQC.MQPER_PERSISTENT
            with self.file.transaction(durable=persistent and not syncpoint) as db:
                reason = putting.number(db, read.md, length, places.put, syncpoint=syncpoint, ordered=ordered)
                count = putting.insert(db, read.md, read.data, syncpoint=syncpoint, options=pmo.Options)
                if syncpoint:
                    self.working(count)
            if syncpoint:
                self.worked(places, count, persistent=persistent, putting=True)
            places.put = put.behind(read.md, length, syncpoint=syncpoint, ordered=ordered)
            putting.returned(md, read.md, pmo)
        if reason or too_high:
            raise warning(
                reason or CMQC.MQRC_PRIORITY_EXCEEDS_MAXIMUM,
                "the message is put, but one before it lacks its end" if reason else "",
            )

    # -- for open queues -----------------------------------------------------------------------------------------------

    def now(self) -> int:
        """Age time in ms: what expires, expires by it."""
        return self.file.now()

    def check(self) -> None:
        """MQRC_HCONN_ERROR when disconnected."""
        if self._closed:
            raise failed(CMQC.MQRC_HCONN_ERROR, "the queue manager is disconnected")

    def open_handle(self, od: OD, options: int) -> tuple[int, Resolved]:
        """Note who has a queue open, and find it: a handle, and what the name means."""
        reading = options & (INPUT | CMQC.MQOO_BROWSE)
        exclusive = bool(options & CMQC.MQOO_INPUT_EXCLUSIVE)
        with self.lock:
            self.check()
            self.file.sweep()
        with self._changing(durable=False) as db:
            found = self._resolve(db, od)
            if found.remote is not None and reading:
                raise failed(CMQC.MQRC_OPTION_NOT_VALID_FOR_TYPE, "a remote queue is for output")
            taken = "SELECT 1 FROM opens WHERE queue = ? AND input >= ?"
            if options & INPUT and db.execute(taken, (found.target, 1 if exclusive else 2)).fetchone():
                raise failed(CMQC.MQRC_OBJECT_IN_USE, "it is open for input already")
            self._handles += 1
            handle = self._handles
            kind = 2 if exclusive else 1 if options & INPUT else 0
            output = int(bool(options & CMQC.MQOO_OUTPUT))
            row = (self.file.connection, handle, found.target, kind, output)
            db.execute("INSERT INTO opens VALUES (?, ?, ?, ?, ?)", row)
            if found.first != found.target:
                # What says where it goes must stay as well.
                row = (self.file.connection, -handle, found.first, kind, output)
                db.execute("INSERT INTO opens VALUES (?, ?, ?, ?, ?)", row)
        return handle, found

    def close_handle(self, places: Places, handle: int) -> None:
        """The queue is not open any more, and a backout takes it nowhere."""
        with self.lock:
            for name in ("put", "get"):
                self._places.pop((places, name), None)
        if self._closed:
            return
        with self._changing(durable=False) as db:
            row = (self.file.connection, handle, -handle)
            db.execute("DELETE FROM opens WHERE connection = ? AND handle IN (?, ?)", row)

    def queue_attributes(self, number: int) -> QueueAttributes:
        """Of an open queue, as they are now."""
        return self._row(number)[1]

    def putting(self, to: Resolved) -> Putting:
        """What a put needs to know; MQRC_PUT_INHIBITED, be it of a remote queue or of its transmission queue."""
        of_first = self._row(to.first)
        name, attributes = of_first if to.first == to.target else self._row(to.target)
        for one, said in (of_first, (name, attributes)):
            if said.InhibitPut == CMQC.MQQA_PUT_INHIBITED:
                raise failed(CMQC.MQRC_PUT_INHIBITED, one)
        return Putting(
            self.file, self.attributes, to.target, name, attributes, of_first[1], to.remote, self.now()
        )

    def answered(self, md: MD) -> None:
        """Fill in where answers to a message go, when its ReplyToQ does not name a queue manager: to what the remote
        queue of that name stands for, else to the queue here."""
        if not md.ReplyToQ.strip() or md.ReplyToQMgr.strip():
            return
        with self._looking() as db:
            found = self._find(db, md.ReplyToQ.decode("latin-1"))
        if found is None or found[1].QType != CMQC.MQQT_REMOTE:
            md.ReplyToQMgr = self.attributes.QMgrName.encode()
        else:
            md.set(ReplyToQ=found[1].RemoteQName, ReplyToQMgr=found[1].RemoteQMgrName)

    @contextlib.contextmanager
    def _changing(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        with self.lock:
            self.check()
            with self.file.transaction(durable=durable) as db:
                yield db

    @contextlib.contextmanager
    def _looking(self) -> Iterator[sqlite3.Connection]:
        with self.lock:
            self.check()
            with self.file.reading() as db:
                yield db

    def _row(self, number: int) -> tuple[str, QueueAttributes]:
        try:
            query = "SELECT name, attributes FROM queues WHERE id = ?"
            name, text = self.file.db.execute(query, (number,)).fetchone()
        except sqlite3.Error as error:
            raise explained(self.file.path, error) from error
        known = self._cache.get(text)
        if known is None:
            known = self._cache[text] = load(QueueAttributes, text, name)
        return name, known

    def _resolve(self, db: sqlite3.Connection, od: OD) -> Resolved:
        name = od.ObjectName.decode("latin-1").rstrip(" ")
        manager = od.ObjectQMgrName.decode("latin-1").rstrip(" ")
        if manager and manager != self.attributes.QMgrName:
            if not name:
                raise failed(CMQC.MQRC_REMOTE_Q_NAME_ERROR, f"the queue of {manager} has no name")
            target = self._transmission(db, manager, "")
            return Resolved(target, target, (od.ObjectName, od.ObjectQMgrName))
        number, attributes = self._known(db, name)
        if attributes.QType == CMQC.MQQT_LOCAL:
            return Resolved(number, number)
        if attributes.RemoteQMgrName == self.attributes.QMgrName:
            raise failed(
                CMQC.MQRC_UNKNOWN_REMOTE_Q_MGR, f"{name} is a remote queue of this queue manager's own"
            )
        target = self._transmission(db, attributes.RemoteQMgrName, attributes.XmitQName)
        there = OD(ObjectName=attributes.RemoteQName, ObjectQMgrName=attributes.RemoteQMgrName)
        return Resolved(number, target, (there.ObjectName, there.ObjectQMgrName))

    def _transmission(self, db: sqlite3.Connection, manager: str, named: str) -> int:
        """The transmission queue to another queue manager: that which is named, of its name, or the default."""
        for name, reason in (
            (named, CMQC.MQRC_UNKNOWN_XMIT_Q),
            (manager, 0),
            (self.attributes.DefXmitQName, CMQC.MQRC_UNKNOWN_DEF_XMIT_Q),
        ):
            found = self._find(db, name) if name else None
            if found is not None:
                if found[1].QType == CMQC.MQQT_REMOTE and name == manager:
                    text = f"{name} is a remote queue, and there are no aliases of queue managers"
                    raise failed(CMQC.MQRC_UNKNOWN_REMOTE_Q_MGR, text)
                if found[1].QType != CMQC.MQQT_LOCAL or found[1].Usage != CMQC.MQUS_TRANSMISSION:
                    raise failed(CMQC.MQRC_XMIT_Q_USAGE_ERROR, f"{name} is no transmission queue")
                return found[0]
            if name and reason:
                raise failed(reason, name)
        raise failed(CMQC.MQRC_UNKNOWN_REMOTE_Q_MGR, f"there is no transmission queue to {manager}")

    def _find(self, db: sqlite3.Connection, name: str) -> "tuple[int, QueueAttributes] | None":
        row = db.execute("SELECT id, attributes FROM queues WHERE name = ?", (name.rstrip(),)).fetchone()
        return None if row is None else (row[0], load(QueueAttributes, row[1], name.rstrip()))

    def _known(self, db: sqlite3.Connection, name: str) -> tuple[int, QueueAttributes]:
        found = self._find(db, check_name(name))
        if found is None:
            raise failed(CMQC.MQRC_UNKNOWN_OBJECT_NAME, f"{name.rstrip()} is not defined in {self.file.path}")
        return found


def connect(name: str = "", path: "str | os.PathLike[str]" = "queues.db", **options: Any) -> QueueManager:
    """MQCONN: ``QueueManager(name, path)``."""
    return QueueManager(name, path, **options)


def _shown(value: "int | str") -> int | bytes:
    """An attribute as MQINQ returns it: names with their blanks."""
    return value if isinstance(value, int) else value.encode().ljust(48)
