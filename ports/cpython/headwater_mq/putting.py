"""Put one message into the file: defaults, context, ids, segmentation, transmission header, limits."""

import sqlite3
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from functools import cache, partial
from getpass import getuser
from pathlib import Path
from typing import NamedTuple

from headwater_host.mq import CMQC, put, transmission
from headwater_host.mq.descriptors import MD, V2_FIELDS, QueueManagerSettings
from headwater_host.mq.errors import failed
from headwater_host.mq.fields import MAX_PRIORITY, SEGMENT
from headwater_host.mq.put import Place
from headwater_mq import messages
from headwater_mq.attributes import QueueAttributes, QueueManagerAttributes
from headwater_mq.options import PMO
from headwater_mq.queue_file import QueueFile

_IDENTITY = ("UserIdentifier", "AccountingToken", "ApplIdentityData")
_ORIGIN = ("PutApplType", "PutApplName", "PutDate", "PutTime", "ApplOriginData")
#: Fields that MQPUT returns in a descriptor of any version.
_RETURNED = ("MsgId", "CorrelId", "Priority", "Persistence", *_IDENTITY, *_ORIGIN)
_NOTHING = MD()


class Resolved(NamedTuple):
    """A resolved queue name: ``first`` is the id of the definition, ``target`` that of the queue with the messages."""

    first: int
    target: int
    #: RemoteQName and RemoteQMgrName if ``target`` is a transmission queue.
    remote: "tuple[bytes, bytes] | None" = None


class Places:
    """Positions of an open queue's puts and gets in groups and logical messages; a backout restores them."""

    __slots__ = ("get", "put")

    def __init__(self) -> None:
        self.put: Place | None = None
        self.get: Place | None = None


class Putting(NamedTuple):
    """The destination of a put: ``target`` is the id of the queue that holds the message, with ``name`` and
    ``attributes``; ``defaults`` are the attributes of the opened definition."""

    file: QueueFile
    manager: QueueManagerAttributes
    target: int
    name: str
    attributes: QueueAttributes
    defaults: QueueAttributes
    #: See ``Resolved``.
    remote: "tuple[bytes, bytes] | None"
    #: Age time, in ms.
    now: int
    #: Bytes that the file may use; None for no limit.
    file_bytes: int | None = None

    @property
    def settings(self) -> QueueManagerSettings:
        """Settings of the queue manager."""
        return self.manager.settings

    def described(self, md: MD, options: int, opened: int, *, put1: bool) -> tuple[MD, bool]:
        """Return the descriptor with defaults and context, and whether its Priority was too high."""
        given = md.copy()
        if given.Priority == CMQC.MQPRI_PRIORITY_AS_Q_DEF:
            given.Priority = self.defaults.DefPriority
        too_high = given.Priority > MAX_PRIORITY
        given.Priority = min(given.Priority, MAX_PRIORITY)
        if given.Persistence == CMQC.MQPER_PERSISTENCE_AS_Q_DEF:
            given.Persistence = self.defaults.DefPersistence
        given.BackoutCount = 0
        if options & CMQC.MQPMO_SET_ALL_CONTEXT:
            if not put1 and not opened & CMQC.MQOO_SET_ALL_CONTEXT:
                raise failed(CMQC.MQRC_NOT_OPEN_FOR_SET_ALL)
        elif options & CMQC.MQPMO_NO_CONTEXT:
            given.take_over(_NOTHING, (*_IDENTITY, *_ORIGIN))
        else:
            given.set(**origin(self.file.wall()))
            if not options & CMQC.MQPMO_SET_IDENTITY_CONTEXT:
                given.take_over(_NOTHING, _IDENTITY)
                given.UserIdentifier = user()
            elif not put1 and not opened & (CMQC.MQOO_SET_IDENTITY_CONTEXT | CMQC.MQOO_SET_ALL_CONTEXT):
                raise failed(CMQC.MQRC_NOT_OPEN_FOR_SET_IDENT)
        return given, too_high

    def insert(
        self, db: sqlite3.Connection, md: MD, data: memoryview, *, syncpoint: bool, options: int
    ) -> int:
        """Insert the message, in segments if it is too large for the queue, and return the number of rows.

        ``md`` gets its MsgId and CorrelId.
        """
        new_id = partial(self.file.new_id, db)
        fresh = bool(options & CMQC.MQPMO_NEW_MSG_ID) or md.MsgId == CMQC.MQMI_NONE
        if fresh:
            md.MsgId = new_id()
        if options & CMQC.MQPMO_NEW_CORREL_ID:
            md.CorrelId = new_id()
        count = 0
        for part, piece in self._parts(md, data):
            if fresh and count:
                part.MsgId = new_id()
            kept, body = put.dead_letter(part, piece, self.settings) or (part, piece)
            if self.remote is not None:
                body = transmission.wrap(kept, body, *self.remote, self.settings)
                kept = transmission.outer(kept, self.settings)
                kept.MsgId = new_id()
            self._make_room(db, len(body))
            messages.insert(
                *(db, self.target, kept, body),
                fifo=self.attributes.MsgDeliverySequence == CMQC.MQMDS_FIFO,
                put_by=self.file.connection if syncpoint else 0,
                now=self.now,
            )
            count += 1
        return count

    def _parts(self, md: MD, data: memoryview) -> Iterator[tuple[MD, memoryview]]:
        """Yield the message, or segments that fit the queue."""
        of_queue, of_manager = self.attributes.MaxMsgLength, self.manager.MaxMsgLength
        most = min(of_queue, of_manager)
        if self.remote is not None:
            most -= transmission.OVERHEAD
        elif put.is_dead_letter(md):
            # The stored message counts, which includes the MQMDE.
            most -= CMQC.MQMDE_LENGTH_2
        if len(data) <= most:
            return iter([(md.copy(), data)])
        # A known header must not be split, and the queue manager does not parse where headers end.
        built_in = md.Format.startswith(b"MQ") and md.Format != CMQC.MQFMT_STRING
        report = md.MsgType == CMQC.MQMT_REPORT and md.MsgFlags & SEGMENT
        allowed = md.MsgFlags & CMQC.MQMF_SEGMENTATION_ALLOWED and not self.settings.zos
        if not allowed or built_in or report or most < 16:
            raise failed(
                CMQC.MQRC_MSG_TOO_BIG_FOR_Q if of_queue <= of_manager else CMQC.MQRC_MSG_TOO_BIG_FOR_Q_MGR,
                f"{len(data)} bytes; {self.name} takes at most {max(most, 0)}",
            )
        put.check_segment_end(md.MsgSeqNumber, md.Offset, len(data))
        return put.split(md, data, most)

    def _make_room(self, db: sqlite3.Connection, size: int) -> None:
        """Raise MQRC_Q_FULL or MQRC_STORAGE_MEDIUM_FULL if one more message, with ``size`` bytes, does not fit."""
        most = self.attributes.MaxQDepth
        query = "SELECT depth FROM queues WHERE id = ?"
        if db.execute(query, (self.target,)).fetchone()[0] >= most:
            messages.expire(db, self.target, self.now)
            if db.execute(query, (self.target,)).fetchone()[0] >= most:
                raise failed(CMQC.MQRC_Q_FULL, f"{self.name} takes {most} messages")
        if self.file_bytes is not None and self.file.size() + size > self.file_bytes:
            raise failed(CMQC.MQRC_STORAGE_MEDIUM_FULL, f"{self.file.path} has {self.file.size()} bytes")

    def returned(self, md: MD, kept: MD, pmo: PMO) -> None:
        """Set the fields that the call returns. An MQMDE is not changed."""
        md.take_over(kept, _RETURNED if md.Version < CMQC.MQMD_VERSION_2 else (*_RETURNED, *V2_FIELDS))
        if self.remote is None:
            pmo.set(ResolvedQName=self.name, ResolvedQMgrName=self.manager.QMgrName)
        else:
            pmo.set(ResolvedQName=self.remote[0], ResolvedQMgrName=self.remote[1])
        if pmo.Version >= CMQC.MQPMO_VERSION_2:
            pmo.set(KnownDestCount=int(self.remote is None), UnknownDestCount=int(self.remote is not None))


def origin(now: int) -> "dict[str, int | str | bytes]":
    """Return the origin context of a put at ``now``, in ms since 1970."""
    at = datetime.fromtimestamp(now / 1000, timezone.utc)
    return {
        "PutApplType": CMQC.MQAT_UNIX,
        "PutApplName": _program(),
        "PutDate": at.strftime("%Y%m%d"),
        "PutTime": at.strftime("%H%M%S") + f"{at.microsecond // 10_000:02}",
        "ApplOriginData": b"",
    }


@cache
def user() -> bytes:
    """Return the UserIdentifier of this process."""
    try:
        return getuser().encode("ascii", "replace")[:12]
    except (KeyError, OSError):
        # The user has no name, as in some containers.
        return b""


def _program() -> bytes:
    return Path(sys.argv[0] or "python").name.encode("ascii", "replace")[-28:]
