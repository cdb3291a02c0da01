"""An open queue of the local queue manager: put, get, browse.

    with Queue(qmgr, "READINGS", CMQC.MQOO_OUTPUT | CMQC.MQOO_INPUT_SHARED) as queue:
        queue.put(b"21.5", MD(Format=CMQC.MQFMT_STRING))
        md = MD()
        data = queue.get(None, md, GMO(Options=CMQC.MQGMO_WAIT, WaitInterval=1000))

A call that ends with a warning has done its work and raises MQMIError, as a failed call does.
"""

import sqlite3
import threading
import time
from types import TracebackType
from typing import NamedTuple

from headwater_host.mq import CMQC, get, put
from headwater_host.mq.descriptors import MD
from headwater_host.mq.errors import MQMIError, failed, warning
from headwater_host.mq.fields import IN_GROUP, SEGMENT
from headwater_host.mq.put import Place
from headwater_mq import messages
from headwater_mq.choosing import MATCHES, Chooser, Found, Wanted
from headwater_mq.manager import QueueManager
from headwater_mq.messages import DamagedError
from headwater_mq.options import (
    BROWSING,
    GMO,
    INPUT,
    OD,
    PMO,
    UNDER_CURSOR,
    check_get_options,
    check_object_descriptor,
    check_open_options,
)
from headwater_mq.putting import Places, Resolved

#: Interval at which a waiting get checks the file for changes, in s.
_LOOK_AGAIN = 0.01


class _Got(NamedTuple):
    """The result of a get. ``after``: the next position in groups; ``taken``: number of rows taken, 0 for a browse."""

    md: MD
    data: bytes
    reason: int
    after: Place | None
    found: Found
    taken: int
    syncpoint: bool


class Queue:
    """A queue of ``manager``, by name or OD. Without ``options`` (MQOO_*) the first put opens it for output, or the
    first get for input."""

    def __init__(
        self, manager: QueueManager, name: "str | bytes | OD | None" = None, options: int | None = None
    ):
        self._manager = manager
        self._od: OD | None = None
        self.options = 0
        self._handle = 0
        self._resolved = Resolved(0, 0)
        self._places = Places()
        self._browse_place: Place | None = None
        #: Browse cursor: its position, the message under it, whether it is in logical order. None before a browse.
        self._cursor: tuple[int, int] | None = None
        self._under: int | None = None
        self._browsed: bool | None = None
        if name is not None:
            self._od = name if isinstance(name, OD) else OD(ObjectName=name)
            if options is not None:
                self.open(self._od, options)

    def __enter__(self) -> "Queue":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except MQMIError:
            if kind is None:
                raise

    # -- MQOPEN, MQCLOSE, MQINQ ----------------------------------------------------------------------------------------

    def open(self, name: "str | bytes | OD", options: int) -> None:
        """MQOPEN: open the queue with MQOO_* options."""
        if self._handle:
            raise failed(CMQC.MQRC_HOBJ_ERROR, "the queue is open already")
        self._od = name if isinstance(name, OD) else OD(ObjectName=name)
        check_object_descriptor(self._od)
        check_open_options(options)
        self._handle, self._resolved = self._manager.open_handle(self._od, options)
        self.options = options

    def close(self, options: int = CMQC.MQCO_NONE) -> None:
        """MQCLOSE: close the queue. Warns if a group or message in logical order is incomplete."""
        if not self._handle:
            return
        if options != CMQC.MQCO_NONE:
            raise failed(
                CMQC.MQRC_OPTION_NOT_VALID_FOR_TYPE,
                "MQCLOSE deletes only dynamic queues, which are not supported",
            )
        self._manager.close_handle(self._places, self._handle)
        self._handle = 0
        places = [one for one in (self._places.put, self._places.get) if one is not None and one.ordered]
        self._places = Places()
        self._browse_place = None
        self._cursor = self._under = self._browsed = None
        for reason in sorted((place.incomplete for place in places), reverse=True):
            raise warning(reason, "the queue was closed in the middle of it")

    def inquire(self, selector: int) -> int | bytes:
        """MQINQ: return one attribute by its selector, MQIA_* or MQCA_*."""
        if not self.options & CMQC.MQOO_INQUIRE:
            raise failed(CMQC.MQRC_NOT_OPEN_FOR_INQUIRE)
        assert self._od is not None
        return self._manager.inquire_queue(self._od.ObjectName.decode().rstrip(), selector)

    # -- MQPUT ---------------------------------------------------------------------------------------------------------

    def put(
        self, message: "bytes | bytearray | memoryview", md: MD | None = None, pmo: PMO | None = None
    ) -> None:
        """MQPUT: put a message. Sets fields of ``md`` and ``pmo``."""
        if not self._handle and self._od is not None:
            self.open(self._od, CMQC.MQOO_OUTPUT)
        self._check_open(CMQC.MQOO_OUTPUT, CMQC.MQRC_NOT_OPEN_FOR_OUTPUT)
        manager = self._manager
        with manager.lock:
            # Another thread may have closed the queue.
            self._check_open(CMQC.MQOO_OUTPUT, CMQC.MQRC_NOT_OPEN_FOR_OUTPUT)
            manager.put_message(self._resolved, self.options, self._places, message, md, pmo)

    # -- MQGET ---------------------------------------------------------------------------------------------------------

    def get(self, max_length: int | None = None, md: MD | None = None, gmo: GMO | None = None) -> bytes:
        """MQGET: return the data of a message; for an ``md`` of version 1 with an MQMDE in front if it needs one.

        Sets fields of ``md`` and ``gmo``. ``max_length`` is the size of the caller's buffer in bytes, None for any.
        Raises MQRC_NO_MSG_AVAILABLE if there is no message, or none within the wait.
        """
        md = MD() if md is None else md
        gmo = GMO() if gmo is None else gmo
        if not self._handle and self._od is not None:
            browse = gmo.Options & BROWSING
            self.open(self._od, CMQC.MQOO_BROWSE if browse else CMQC.MQOO_INPUT_AS_Q_DEF)
        matches = check_get_options(gmo, md)
        if max_length is not None and max_length < 0:
            raise failed(CMQC.MQRC_DATA_LENGTH_ERROR, f"max_length is {max_length}")
        if gmo.Options & BROWSING:
            self._check_open(CMQC.MQOO_BROWSE, CMQC.MQRC_NOT_OPEN_FOR_BROWSE)
        else:
            self._check_open(INPUT, CMQC.MQRC_NOT_OPEN_FOR_INPUT)
            if gmo.Options & CMQC.MQGMO_MSG_UNDER_CURSOR:
                self._check_open(CMQC.MQOO_BROWSE, CMQC.MQRC_NOT_OPEN_FOR_BROWSE)
        got = self._wait(max_length, md, gmo, matches)
        original = len(got.data)
        data = got.data if max_length is None else got.data[:max_length]
        md.fill(got.md)
        _report(gmo, got.md, len(data), self._name(), zos=self._manager.attributes.settings.zos)
        if got.reason:
            raise MQMIError(CMQC.MQCC_WARNING, got.reason, message=data, original_length=original)
        return data

    def browse(self, max_length: int | None = None, md: MD | None = None, *, first: bool = False) -> bytes:
        """MQGET with MQGMO_BROWSE_NEXT, or MQGMO_BROWSE_FIRST if ``first``."""
        option = CMQC.MQGMO_BROWSE_FIRST if first else CMQC.MQGMO_BROWSE_NEXT
        gmo = GMO(Version=CMQC.MQGMO_VERSION_2, Options=option, MatchOptions=CMQC.MQMO_NONE)
        return self.get(max_length, md, gmo)

    def _wait(self, max_length: int | None, md: MD, gmo: GMO, matches: int) -> _Got:
        """Try to get a message, again after each change of the file while the caller waits."""
        manager = self._manager
        until = None
        if gmo.Options & CMQC.MQGMO_WAIT and not gmo.Options & UNDER_CURSOR:
            unlimited = gmo.WaitInterval == CMQC.MQWI_UNLIMITED
            until = float("inf") if unlimited else time.monotonic() + gmo.WaitInterval / 1000
        pause = threading.Event()
        while True:
            with manager.lock:
                manager.check()
                self._check_open(INPUT | CMQC.MQOO_BROWSE, CMQC.MQRC_HOBJ_ERROR)
                state = manager.file.state()
                got = self._try(max_length, md, gmo, matches)
                if got is None and manager.file.sweep():
                    continue
            if got is not None:
                return got
            while True:
                left = 0 if until is None else until - time.monotonic()
                if left <= 0:
                    raise failed(CMQC.MQRC_NO_MSG_AVAILABLE)
                pause.wait(min(left, _LOOK_AGAIN))
                with manager.lock:
                    manager.check()
                    if manager.file.state() != state or manager.file.sweep():
                        break

    def _try(self, max_length: int | None, md: MD, gmo: GMO, matches: int) -> _Got | None:
        manager = self._manager
        if manager.queue_attributes(self._resolved.target).InhibitGet == CMQC.MQQA_GET_INHIBITED:
            raise failed(CMQC.MQRC_GET_INHIBITED)
        options = gmo.Options
        if options & BROWSING:
            with manager.file.reading() as db:
                got = self._once(db, max_length, md, gmo, matches, syncpoint=False)
            if (
                got is None
                or got.reason == CMQC.MQRC_TRUNCATED_MSG_FAILED
                or options & CMQC.MQGMO_BROWSE_MSG_UNDER_CURSOR
            ):
                return got
            # Within a group the cursor stays at the position of the group.
            if self._browse_place is None or not options & CMQC.MQGMO_LOGICAL_ORDER:
                self._cursor = got.found.position
            self._under = got.found.first
            self._browse_place = got.after
            return got
        conditional = bool(options & CMQC.MQGMO_SYNCPOINT_IF_PERSISTENT)
        syncpoint = not conditional and manager.in_unit_of_work(
            options, CMQC.MQGMO_SYNCPOINT, CMQC.MQGMO_NO_SYNCPOINT
        )
        with manager.file.transaction(durable=not syncpoint) as db:
            messages.expire(db, self._resolved.target, manager.file.now())
            got = self._once(db, max_length, md, gmo, matches, syncpoint=syncpoint)
        if got is not None and got.taken:
            if got.syncpoint:
                persistent = got.md.Persistence == CMQC.MQPER_PERSISTENT
                manager.worked(self._places, got.taken, persistent=persistent, putting=False)
            self._places.get = got.after
        return got

    def _once(
        self,
        db: sqlite3.Connection,
        max_length: int | None,
        md: MD,
        gmo: GMO,
        matches: int,
        *,
        syncpoint: bool,
    ) -> _Got | None:
        """Find and read a message, and take it unless it is browsed. Returns None if there is none."""
        options = gmo.Options
        ordered = bool(options & CMQC.MQGMO_LOGICAL_ORDER)
        browsing = bool(options & BROWSING)
        place = self._begin_browse(options, ordered) if browsing else self._places.get
        now = self._manager.file.now()
        while True:
            wanted = self._wanted(md, options, matches, now, own=syncpoint)
            chooser = Chooser(db, wanted)
            try:
                if options & UNDER_CURSOR:
                    found = chooser.under(self._under)
                elif ordered and place is not None:
                    found = chooser.follow(place)
                else:
                    found = chooser.next()
                read = None if found is None else self._read(db, found, now)
            except DamagedError as error:
                if browsing:
                    raise failed(CMQC.MQRC_OBJECT_DAMAGED, "a message is damaged") from None
                # No connection can get it, so it is not part of the unit of work.
                messages.set_aside(db, [error.args[0]], CMQC.MQRC_OBJECT_DAMAGED)
                continue
            if found is None or read is None:
                return None
            return self._take(db, found, read, max_length, md.Version, options, place, syncpoint=syncpoint)

    def _begin_browse(self, options: int, ordered: bool) -> Place | None:
        """Return the position of a browse in a group; MQGMO_BROWSE_FIRST resets it."""
        if options & CMQC.MQGMO_BROWSE_FIRST:
            self._cursor = self._under = self._browse_place = None
            self._browsed = ordered
        elif options & CMQC.MQGMO_BROWSE_NEXT:
            if self._browsed is not None and self._browsed != ordered:
                raise failed(CMQC.MQRC_INCONSISTENT_BROWSE, "the browse began in another order")
            self._browsed = ordered
        return self._browse_place

    def _wanted(self, md: MD, options: int, matches: int, now: int, *, own: bool) -> Wanted:
        match: dict[str, object] = {}
        for option, (column, field) in MATCHES.items():
            value = md[field]
            # An id of zeros matches any.
            if matches & option and not (isinstance(value, bytes) and not any(value)):
                match[column] = value
        return Wanted(
            queue=self._resolved.target,
            own=self._manager.file.connection if own else 0,
            now=now,
            match=match,
            after=self._cursor if options & CMQC.MQGMO_BROWSE_NEXT else None,
            ordered=bool(options & CMQC.MQGMO_LOGICAL_ORDER),
            complete=bool(options & CMQC.MQGMO_COMPLETE_MSG),
            all_messages=bool(options & CMQC.MQGMO_ALL_MSGS_AVAILABLE),
            all_segments=bool(options & CMQC.MQGMO_ALL_SEGMENTS_AVAILABLE),
        )

    def _read(self, db: sqlite3.Connection, found: Found, now: int) -> messages.Message:
        """Read a message: the descriptor of the first segment and the joined data."""
        read = messages.read(db, found.first, now)
        if len(found.pieces) > 1:
            parts = [
                memoryview(messages.read(db, row, now).body)[skip : skip + length]
                for row, skip, length in found.pieces
            ]
            read = messages.Message(read.md, b"".join(parts))
        if found.whole:
            # A reassembled message shows no segments.
            read.md.MsgFlags &= ~SEGMENT
            read.md.OriginalLength = CMQC.MQOL_UNDEFINED
        return read

    def _take(
        self,
        db: sqlite3.Connection,
        found: Found,
        read: messages.Message,
        max_length: int | None,
        version: int,
        options: int,
        place: Place | None,
        *,
        syncpoint: bool,
    ) -> _Got:
        manager = self._manager
        ordered = bool(options & CMQC.MQGMO_LOGICAL_ORDER)
        if options & CMQC.MQGMO_SYNCPOINT_IF_PERSISTENT:
            syncpoint = read.md.Persistence == CMQC.MQPER_PERSISTENT
        given, data = get.returned(read.md, read.body, version, manager.attributes.settings)
        reason = found.reason
        if place is not None and place.ordered and not ordered and not options & UNDER_CURSOR:
            reason = reason or place.incomplete
        elif place is not None and ordered and not options & BROWSING and place.syncpoint != syncpoint:
            raise failed(
                CMQC.MQRC_INCONSISTENT_UOW,
                "one group or message must be all inside or all outside a unit of work",
            )
        cut = max_length is not None and len(data) > max_length
        after = put.behind(read.md, len(read.body), syncpoint=syncpoint, ordered=ordered)
        if cut and not options & CMQC.MQGMO_ACCEPT_TRUNCATED_MSG:
            reason = CMQC.MQRC_TRUNCATED_MSG_FAILED
        elif cut:
            reason = CMQC.MQRC_TRUNCATED_MSG_ACCEPTED
        taken = 0
        if not options & BROWSING and reason != CMQC.MQRC_TRUNCATED_MSG_FAILED:
            taken = len(found.rows)
            if syncpoint:
                manager.working(taken)
            messages.take(db, found.rows, manager.file.connection if syncpoint else 0)
        return _Got(given, data, reason, after, found, taken, syncpoint)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _check_open(self, options: int, reason: int) -> None:
        if not self._handle:
            raise failed(CMQC.MQRC_HOBJ_ERROR, "the queue is not open")
        if not self.options & options:
            raise failed(reason)

    def _name(self) -> bytes:
        assert self._od is not None
        return self._od.ObjectName


def _report(gmo: GMO, md: MD, length: int, queue: bytes, *, zos: bool) -> None:
    """Set the fields of ``gmo`` that its version returns."""
    gmo.ResolvedQName = queue
    if gmo.Version >= CMQC.MQGMO_VERSION_2:
        flags = md.MsgFlags
        gmo.GroupStatus = (
            CMQC.MQGS_LAST_MSG_IN_GROUP
            if flags & CMQC.MQMF_LAST_MSG_IN_GROUP
            else CMQC.MQGS_MSG_IN_GROUP
            if flags & IN_GROUP
            else CMQC.MQGS_NOT_IN_GROUP
        )
        gmo.SegmentStatus = (
            CMQC.MQSS_NOT_A_SEGMENT
            if zos or not flags & SEGMENT
            else CMQC.MQSS_LAST_SEGMENT
            if flags & CMQC.MQMF_LAST_SEGMENT
            else CMQC.MQSS_SEGMENT
        )
        allowed = flags & CMQC.MQMF_SEGMENTATION_ALLOWED and not zos
        gmo.Segmentation = CMQC.MQSEG_ALLOWED if allowed else CMQC.MQSEG_INHIBITED
    if gmo.Version >= CMQC.MQGMO_VERSION_3:
        gmo.ReturnedLength = length
