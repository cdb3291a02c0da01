"""A local queue manager: queues in one SQLite file that behave as those of MQPUT, MQPUT1 and MQGET.

    with QueueManager("QM1", "queues.db") as qmgr:
        qmgr.define("READINGS", MaxQDepth=100_000)
        qmgr.put1("READINGS", b"21.5", MD(Format=CMQC.MQFMT_STRING), PMO(Options=CMQC.MQPMO_SYNCPOINT))
        qmgr.commit()

``commit``, and a put outside a unit of work, return when the messages are on disk. See docs/ibm-mq-queue.md.
"""

import contextlib
import os
import sqlite3
import threading
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
    """Counts of a queue: available messages, uncommitted puts and gets, messages set aside, bytes of data, the depth
    (all messages but uncommitted gets), and open handles."""

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
    """A connection to the queue manager in a file, with one unit of work that all its threads share.

    Args:
        name: its name; empty for any.
        path: the SQLite file.
        create: whether to create a missing file, with ``attributes`` (see ``QueueManagerAttributes``).
        keeps_over: "power" syncs each durable call; "process" is faster and loses the last calls in a power cut.
        clocks: the machine's clocks, or a test's.
        group_readable: whether the group of the file's directory may read the file.

    Raises MQMIError: MQRC_Q_MGR_NAME_ERROR if the file has another name, MQRC_Q_MGR_NOT_AVAILABLE if it is unusable.
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
        #: Held in each call.
        self.lock = threading.RLock()
        self._closed = False
        self._handles = 0
        self._cache: dict[str, QueueAttributes] = {}
        # The unit of work: whether it may have rows in the file, how many messages it has, whether one is persistent,
        # and the positions of open queues in groups before its first "put" and "get" on each.
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
        #: The attributes in the file.
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
        """Commit and disconnect; back out after an exception."""
        if kind is None:
            self.disconnect()
            return
        with self.lock:
            # Closing backs out. If that fails, as on a full disk, the next connection does it.
            self._closed = True
            self.file.close()

    def disconnect(self) -> None:
        """MQDISC: commit and disconnect. A second call does nothing."""
        with self.lock:
            if self._closed:
                return
            try:
                self.commit()
            finally:
                self._closed = True
                self.file.close()

    # -- units of work -------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """MQCMIT: make the unit of work visible to all connections, on disk."""
        with self.lock:
            self._end(queue_file.commit)
            self._places.clear()

    def backout(self) -> None:
        """MQBACK: remove what was put and restore what was got, with BackoutCount increased by one."""
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
        """Tell whether a call is in the unit of work. Without an option it is on z/OS, and is not elsewhere."""
        return bool(options & yes) or (self.attributes.settings.zos and not options & no)

    def working(self, count: int) -> None:
        """Count messages of a call in the unit of work. Raises MQRC_SYNCPOINT_LIMIT_REACHED.

        A signal handler's exception may end the call after its transaction and before ``worked``.
        """
        most = self.attributes.MaxUncommittedMsgs
        if self._uncommitted + count > most:
            raise failed(CMQC.MQRC_SYNCPOINT_LIMIT_REACHED, f"a unit of work has at most {most} messages")
        self._working = True

    def worked(self, places: Places, count: int, *, persistent: bool, putting: bool) -> None:
        """Note a put or get in the unit of work, before ``places`` changes."""
        self._uncommitted += count
        self._persistent = self._persistent or persistent
        name = "put" if putting else "get"
        self._places.setdefault((places, name), getattr(places, name))

    # -- queues --------------------------------------------------------------------------------------------------------

    def define(self, name: str, **attributes: Any) -> None:
        """Create a queue (MQSC: DEFINE) with these ``QueueAttributes``. Raises MQRC_OBJECT_ALREADY_EXISTS."""
        name = check_name(name)
        wanted = QueueAttributes(**attributes)
        with self._changing() as db:
            if self._find(db, name) is not None:
                raise failed(CMQC.MQRC_OBJECT_ALREADY_EXISTS, name)
            db.execute("INSERT INTO queues (name, attributes) VALUES (?, ?)", (name, dump(wanted)))

    def alter(self, name: str, **attributes: Any) -> None:
        """Change attributes of a queue. Messages keep their positions."""
        with self._changing() as db:
            number, now = self._known(db, name)
            db.execute(
                "UPDATE queues SET attributes = ? WHERE id = ?", (dump(replace(now, **attributes)), number)
            )

    def delete(self, name: str, *, purge: bool = False) -> None:
        """Delete a queue; with ``purge`` also its messages that are in no unit of work.

        Raises MQRC_Q_NOT_EMPTY, or MQRC_OBJECT_IN_USE if a connection has it open.
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
        """Return the attributes of all queues, by name."""
        with self._looking() as db:
            rows = db.execute("SELECT name, attributes FROM queues ORDER BY name").fetchall()
        return {str(name): load(QueueAttributes, text, str(name)) for name, text in rows}

    def statistics(self, name: str = "") -> list[Statistics]:
        """Return the counts of one queue, or of all."""
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
        """Yield the contradictory and damaged messages of a queue: reason, descriptor and data, where readable."""
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
        """Make messages that were set aside available again, except damaged ones, and return their number."""
        with self._changing() as db:
            number, _ = self._known(db, name)
            statement = "UPDATE messages SET aside = 0 WHERE queue = ? AND aside NOT IN (0, ?)"
            return db.execute(statement, (number, CMQC.MQRC_OBJECT_DAMAGED)).rowcount

    def inquire(self, selector: int) -> int | bytes:
        """MQINQ: return one attribute of the queue manager."""
        field = OF_QUEUE_MANAGERS.get(selector)
        if field is None:
            raise failed(CMQC.MQRC_SELECTOR_ERROR, f"selector {selector}")
        return _shown(getattr(self.attributes, field))

    def inquire_queue(self, name: str, selector: int) -> int | bytes:
        """MQINQ: return one attribute of a queue."""
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
        """MQPUT1: open a queue, put one message, close the queue."""
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
        """MQPUT to a queue opened with the options ``opened``, or MQPUT1. Sets fields of ``md`` and ``pmo``."""
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
                reason = put.number(
                    *(read.md, length, places.put, lambda: self.file.new_id(db)),
                    syncpoint=syncpoint,
                    ordered=ordered,
                )
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
                "the message was put, but the group or message before it is incomplete" if reason else "",
            )

    # -- for open queues -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise MQRC_HCONN_ERROR after ``disconnect``."""
        if self._closed:
            raise failed(CMQC.MQRC_HCONN_ERROR, "the queue manager is disconnected")

    def open_handle(self, od: OD, options: int) -> tuple[int, Resolved]:
        """Open a queue: return a handle and the resolved name."""
        reading = options & (INPUT | CMQC.MQOO_BROWSE)
        exclusive = bool(options & CMQC.MQOO_INPUT_EXCLUSIVE)
        with self.lock:
            self.check()
            self.file.sweep()
        with self._changing(durable=False) as db:
            found = self._resolve(db, od)
            if found.remote is not None and reading:
                raise failed(
                    CMQC.MQRC_OPTION_NOT_VALID_FOR_TYPE, "a remote queue can be opened for output only"
                )
            taken = "SELECT 1 FROM opens WHERE queue = ? AND input >= ?"
            if options & INPUT and db.execute(taken, (found.target, 1 if exclusive else 2)).fetchone():
                raise failed(CMQC.MQRC_OBJECT_IN_USE, "the queue is open for input already")
            self._handles += 1
            handle = self._handles
            kind = 2 if exclusive else 1 if options & INPUT else 0
            output = int(bool(options & CMQC.MQOO_OUTPUT))
            row = (self.file.connection, handle, found.target, kind, output)
            db.execute("INSERT INTO opens VALUES (?, ?, ?, ?, ?)", row)
            if found.first != found.target:
                # Keep the definition from being deleted as well.
                row = (self.file.connection, -handle, found.first, kind, output)
                db.execute("INSERT INTO opens VALUES (?, ?, ?, ?, ?)", row)
        return handle, found

    def close_handle(self, places: Places, handle: int) -> None:
        """Close a handle; a backout no longer changes its positions."""
        with self.lock:
            for name in ("put", "get"):
                self._places.pop((places, name), None)
        if self._closed:
            return
        with self._changing(durable=False) as db:
            row = (self.file.connection, handle, -handle)
            db.execute("DELETE FROM opens WHERE connection = ? AND handle IN (?, ?)", row)

    def queue_attributes(self, number: int) -> QueueAttributes:
        """Return the current attributes of a queue by id."""
        return self._row(number)[1]

    def putting(self, to: Resolved) -> Putting:
        """Return the destination of a put. Raises MQRC_PUT_INHIBITED for the definition or the transmission queue."""
        of_first = self._row(to.first)
        name, attributes = of_first if to.first == to.target else self._row(to.target)
        for one, said in (of_first, (name, attributes)):
            if said.InhibitPut == CMQC.MQQA_PUT_INHIBITED:
                raise failed(CMQC.MQRC_PUT_INHIBITED, one)
        return Putting(
            self.file, self.attributes, to.target, name, attributes, of_first[1], to.remote, self.file.now()
        )

    def answered(self, md: MD) -> None:
        """Set ReplyToQMgr if ReplyToQ has none: from the remote queue of that name, else this queue manager."""
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
                raise failed(CMQC.MQRC_REMOTE_Q_NAME_ERROR, f"a queue of {manager} needs a name")
            target = self._transmission(db, manager, "")
            return Resolved(target, target, (od.ObjectName, od.ObjectQMgrName))
        number, attributes = self._known(db, name)
        if attributes.QType == CMQC.MQQT_LOCAL:
            return Resolved(number, number)
        if attributes.RemoteQMgrName == self.attributes.QMgrName:
            raise failed(
                CMQC.MQRC_UNKNOWN_REMOTE_Q_MGR, f"{name} is a remote queue of this queue manager itself"
            )
        target = self._transmission(db, attributes.RemoteQMgrName, attributes.XmitQName)
        there = OD(ObjectName=attributes.RemoteQName, ObjectQMgrName=attributes.RemoteQMgrName)
        return Resolved(number, target, (there.ObjectName, there.ObjectQMgrName))

    def _transmission(self, db: sqlite3.Connection, manager: str, named: str) -> int:
        """Return the id of the transmission queue: the named one, the one with the manager's name, or the default."""
        for name, reason in (
            (named, CMQC.MQRC_UNKNOWN_XMIT_Q),
            (manager, 0),
            (self.attributes.DefXmitQName, CMQC.MQRC_UNKNOWN_DEF_XMIT_Q),
        ):
            found = self._find(db, name) if name else None
            if found is not None:
                if found[1].QType == CMQC.MQQT_REMOTE and name == manager:
                    text = f"{name} is a remote queue; aliases of queue managers are not supported"
                    raise failed(CMQC.MQRC_UNKNOWN_REMOTE_Q_MGR, text)
                if found[1].QType != CMQC.MQQT_LOCAL or found[1].Usage != CMQC.MQUS_TRANSMISSION:
                    raise failed(CMQC.MQRC_XMIT_Q_USAGE_ERROR, f"{name} is not a transmission queue")
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


def _shown(value: "int | str") -> int | bytes:
    """Convert an attribute as MQINQ returns it: names with their blanks."""
    return value if isinstance(value, int) else value.encode().ljust(48)
