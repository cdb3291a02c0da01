"""Reassemble messages and groups from payloads in any order.

    assembler = Assembler(db, memory=16 << 20, timeout=600)
    for outcome in assembler.add("plant/7", payload, age.seconds()):
        ...                                     # Whole, WholeGroup, or Problem: take it before the next call
    for problem in assembler.expire(age.seconds()):
        ...                                     # incomplete after the timeout
    assembler.flush()
    db.execute("UPDATE ...")                    # how far the source was read
    db.commit()

The rules are those of ``logical``. Segments are held in memory, and beyond its limit in tables of ``db``, an SQLite
connection. Only the caller commits, after ``flush``: state and position in the source are then on disk together, and a
new assembler continues from there. After an exception of ``sqlite3``, roll back and create a new assembler.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from headwater.ibmmq.header import BIG, EBCDIC, MQMDE, sniff
from headwater_host.mq.CMQC import (
    MQGI_NONE,
    MQRC_INCOMPLETE_GROUP,
    MQRC_INCOMPLETE_MSG,
    MQRC_NONE,
    MQRC_OFFSET_ERROR,
    MQRC_STORAGE_MEDIUM_FULL,
)
from headwater_host.mq.fields import IN_GROUP, SEGMENT, Fault, refused
from headwater_host.mq.reassembly import logical
from headwater_host.mq.reassembly.finished import Finished, packed
from headwater_host.mq.reassembly.holding import FAULTY, OPEN, OUT, ROW, WAITING, Group, Holding, Message
from headwater_host.mq.reassembly.logical import NOTHING, Missing, Named, differ
from headwater_host.mq.reassembly.outcomes import Problem, Whole, WholeGroup
from headwater_host.mq.structures import HeaderError, decode

if TYPE_CHECKING:
    from headwater_host.mq.reassembly.spill import Buffer, Done

Outcome: TypeAlias = Whole | WholeGroup | Problem

#: The fields of an MQMDE in ``_Physical``.
_FIELDS = ("GroupId", "MsgSeqNumber", "Offset", "MsgFlags", "Format", "Encoding", "CodedCharSetId")
_NOT_DONE = (0, MQRC_NONE, b"")
#: Missing ranges that a report lists at most.
_RANGES = 1000


class _Physical(NamedTuple):
    """A payload: the fields of its MQMDE and its data."""

    group_id: bytes
    seq: int
    offset: int
    flags: int
    format: str
    encoding: int
    ccsid: int
    data: memoryview


class _Fresh(NamedTuple):
    """The new bytes of a segment: ``size`` of them. The range replaces the pieces ``inside`` it."""

    size: int
    start: int
    stop: int
    inside: int


@dataclass
class Counts:
    """Counts since the assembler was created.

    Payloads: ``segments`` with new bytes, ``plain`` messages, ``duplicates``, ``malformed`` ones that MQPUT would
    refuse, ``refused`` for lack of room, ``late`` ones after a report. Messages: ``whole`` and ``groups`` handed out,
    ``incomplete`` and ``faulty`` ones set aside.
    """

    segments: int = 0
    plain: int = 0
    duplicates: int = 0
    malformed: int = 0
    refused: int = 0
    late: int = 0
    whole: int = 0
    groups: int = 0
    incomplete: int = 0
    faulty: int = 0


class Assembler:
    """Holds incomplete messages and groups within limits.

    Times are in seconds of a clock that restarts and users do not set back: ``headwater_host.lifetime.AgeClock``.
    If it goes back, the timeout restarts.

    Args:
        db: the SQLite connection of the store.
        memory: bytes of contents and state in memory, without the payload being added, the last outcomes, and the state
            of the current message and GroupId (2000 bytes, and four for each character of the topic).
        room: bytes of contents in memory and store; payloads beyond it become a Problem of kind "room".
        open_groups: incomplete GroupIds; the same.
        timeout: time in s since the last payload of a GroupId after which ``expire`` reports it.
        groups: hand out complete groups instead of messages.
        remembered: number of finished groups and messages whose duplicates are recognised.
        mend: check the store first and drop damaged GroupIds (``damaged``); not needed for a store that this process
            has written.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        *,
        memory: int = 16 << 20,
        room: int = 4 << 30,
        open_groups: int = 100_000,
        timeout: float = 3600.0,
        groups: bool = False,
        remembered: int = 10_000,
        mend: bool = True,
    ):
        self._holding = Holding(db, memory, remembered, mend)
        self.room = room
        self.open_groups = open_groups
        self.timeout = timeout
        self._by_group = groups
        self.counts = Counts()

    @property
    def memory_bytes(self) -> int:
        """Bytes in memory."""
        return self._holding.used

    @property
    def held_bytes(self) -> int:
        """Bytes in memory and store."""
        return self._holding.held

    @property
    def groups(self) -> int:
        """Number of incomplete GroupIds."""
        return self._holding.count

    @property
    def damaged(self) -> int:
        """Number of damaged groups that were dropped from the store."""
        return self._holding.damaged

    def flush(self) -> None:
        """Write all changes to the store. The caller commits. Outcomes are released."""
        self._holding.flush()

    # -- receive path ----------------------------------------------------------------------------------------------

    def add(self, topic: str, payload: Buffer, now: float) -> list[Outcome]:
        """Add a payload of a topic or queue, and return the outcomes."""
        self._holding.settle()
        view = memoryview(payload)
        try:
            one = _physical(view)
        except HeaderError as error:
            self.counts.malformed += 1
            text = f"malformed MQMDE: {error.field} at offset {error.offset}: {error.detail}"
            return [Problem(topic, MQGI_NONE, 0, "malformed", error.reason, text, at=error.offset)]
        fault = refused(one.seq, one.offset, len(one.data), one.flags, one.group_id)
        if fault is not None:
            self.counts.malformed += 1
            return [Problem(topic, one.group_id, one.seq, fault.kind, fault.reason, str(fault))]
        if not one.flags & (SEGMENT | IN_GROUP):
            self.counts.plain += 1
            return [self._plain(topic, one)]
        return self._add(topic, one, now)

    def _add(self, topic: str, one: _Physical, now: float) -> list[Outcome]:
        holding = self._holding
        group = holding.find(topic, one.group_id)
        message = None
        if group is not None:
            holding.touch(group, now)
            message = holding.message(group, one.seq)
        if message is None or message.state in (OUT, FAULTY):
            found = self._behind(topic, one, group, message)
            if found is not None:
                return found
        offset = one.offset if one.flags & SEGMENT else 0
        fresh: _Fresh | Fault = _Fresh(len(one.data), offset, offset + len(one.data), 0)
        if group is not None and message is not None:
            fresh = self._fresh(group, message, offset, one.data)
        if isinstance(fresh, _Fresh) and not self._has_room(group, message, fresh.size):
            self.counts.refused += 1
            text = f"no room for message {one.seq} from byte {offset} on"
            return [Problem(topic, one.group_id, one.seq, "room", MQRC_STORAGE_MEDIUM_FULL, text)]
        if group is None:
            group = holding.begin(topic, one.group_id)
            holding.touch(group, now)
        fault = group.meet(one.seq, one.flags)
        if fault is not None:
            return [self._group_aside(group, fault)]
        if message is None:
            message = Message(one.seq)
            holding.begin_message(group, message)
        known = message.flags >= 0, message.end
        if isinstance(fresh, Fault):
            fault = fresh
        else:
            fault = message.meet(offset, len(one.data), one.flags, one.encoding, one.ccsid)
        if fault is not None or isinstance(fresh, Fault):
            assert fault is not None
            return [self._message_aside(group, message, fault)]
        if fresh.size or known != (True, message.end):
            self.counts.segments += 1
            message.changed = True
            if offset == 0 and not message.format:
                message.format = one.format
        else:
            self.counts.duplicates += 1
        if fresh.inside > 1 or (fresh.inside and fresh.size):
            holding.drop_between(group, message, fresh.start, fresh.stop)
        if fresh.inside > 1 or fresh.size:
            message.covered += fresh.size
            holding.keep(
                group, message, fresh.start, bytes(one.data[fresh.start - offset : fresh.stop - offset])
            )
        if message.state == OPEN and message.whole:
            return self._whole(group, message)
        # The segment may have told that the group ends here.
        return [self._whole_group(group)] if group.whole else []

    def _behind(
        self, topic: str, one: _Physical, group: Group | None, message: Message | None
    ) -> list[Outcome] | None:
        """Handle a payload after its message or group was finished; None if neither was."""
        key = topic, one.group_id
        done = self._holding.done(topic, one.group_id, one.seq)
        last, reason, _ = done.get(0, _NOT_DONE)
        if reason:
            return self._late(topic, one, reason)
        if not done or (group is not None and message is None and one.seq not in done):
            return None if message is None else self._compared(topic, one, b"")
        fault = (_ended_group(last, done) if group is None else group).meet(one.seq, one.flags)
        if fault is not None and group is not None:
            return [self._group_aside(group, fault)]
        if fault is not None:
            self._holding.remember(key, 0, fault.reason)
            return [self._contradicted(topic, one, fault)]
        if group is None and not last and one.seq not in done:
            return None
        _, reason, finished = done.get(one.seq, _NOT_DONE)
        found = self._late(topic, one, reason) if reason else self._compared(topic, one, finished)
        if group is not None and group.whole:
            # The payload may have told that the group ends here.
            self._ended(group)
        return found

    def _compared(self, topic: str, one: _Physical, known: bytes) -> list[Outcome]:
        """Compare a payload with a message that was handed out; no outcome for a duplicate."""
        finished = Finished.of(known)
        offset = one.offset if one.flags & SEGMENT else 0
        fault, unknown = None, offset
        if finished is not None:
            fault, unknown = finished.meet(offset, one.flags, one.encoding, one.ccsid, one.data)
        if fault is not None:
            grouped = bool(one.flags & IN_GROUP)
            seq = 0 if self._by_group and grouped else one.seq
            self._holding.remember((topic, one.group_id), seq, fault.reason)
            return [self._contradicted(topic, one, fault)]
        if unknown >= 0:
            text = f"message {one.seq} was handed out, and from byte {unknown} on this cannot be compared with it"
            return self._late(topic, one, MQRC_OFFSET_ERROR, text)
        self.counts.duplicates += 1
        return []

    def _contradicted(self, topic: str, one: _Physical, fault: Fault) -> Problem:
        """Report a payload that contradicts a message that was handed out."""
        self.counts.faulty += 1
        return Problem(topic, one.group_id, fault.seq, fault.kind, fault.reason, str(fault))

    def _late(self, topic: str, one: _Physical, reason: int, text: str = "") -> list[Outcome]:
        """Report a payload of a message or group that was reported before."""
        self.counts.late += 1
        text = text or f"message {one.seq} was reported, or its group was"
        return [Problem(topic, one.group_id, one.seq, "late", reason, text)]

    def _has_room(self, group: Group | None, message: Message | None, size: int) -> bool:
        if group is None and self._holding.count >= self.open_groups:
            return False
        if message is not None and not size:
            return True
        return self._holding.held + size + (ROW if message else 2 * ROW) <= self.room

    def _fresh(self, group: Group, message: Message, offset: int, view: memoryview) -> _Fresh | Fault:
        """Return the new bytes of a segment, or the fault where it differs from held pieces.

        Held pieces inside the new range have been compared, so one piece replaces them. There are never more pieces
        than segments.
        """
        start = first = offset
        stop = last = offset + len(view)
        shared = 0
        inside = 0
        for at, size, stored in self._holding.overlapping(group, message, start, stop):
            begin, end = max(at, start), min(at + size, stop)
            here = begin
            for other in self._holding.part(group, message, at, stored, begin - at, end - begin):
                there = here + len(other)
                differs = differ(here, view[here - start : there - start], other)
                if differs >= 0:
                    return Fault("overlap", message.seq, differs)
                here = there
            shared += end - begin
            if at < start:
                first = end
            elif at + size > stop:
                last = begin
            else:
                inside += 1
        return _Fresh(stop - start - shared, first, last, inside)

    # -- what is whole ---------------------------------------------------------------------------------------------

    def _plain(self, topic: str, one: _Physical) -> Whole:
        """Hand out a message without group and segments."""
        data = bytes(one.data)
        header = (topic, one.group_id, one.seq, one.flags, len(data), one.format, one.encoding, one.ccsid)
        return Whole(*header, lambda: iter((data,)), self._holding.lease)

    def _whole(self, group: Group, message: Message) -> list[Outcome]:
        """Hand out a complete message, or its group if complete, or nothing yet."""
        if message.flags & IN_GROUP and self._by_group:
            group.whole_messages += 1
            self._remember(group, message, MQRC_NONE)
            message.state = WAITING
            message.changed = group.changed = True
            return [self._whole_group(group)] if group.whole else []
        self.counts.whole += 1
        outcome = self._readable(group, message)
        self._settled(group, message, OUT, MQRC_NONE)
        return [outcome]

    def _readable(self, group: Group, message: Message) -> Whole:
        header = (group.topic, group.group_id, message.seq, message.flags, message.covered)
        described = (message.format, message.encoding, message.ccsid)
        contents = self._holding.reader(group, message)
        return Whole(*header, *described, lambda: (data for _, data in contents()), self._holding.lease)

    def _whole_group(self, group: Group) -> WholeGroup:
        self.counts.groups += 1
        self.counts.whole += group.count
        length = sum(one.covered for one in self._holding.messages(group))

        def messages() -> Iterator[Whole]:
            return (self._readable(group, one) for one in self._holding.messages(group))

        header = (group.topic, group.group_id, group.count, length)
        outcome = WholeGroup(*header, messages, self._holding.lease)
        self._end(group, MQRC_NONE)
        return outcome

    # -- what is not -----------------------------------------------------------------------------------------------

    def expire(self, now: float, limit: int = 100) -> list[Problem]:
        """Set aside and report GroupIds after the timeout: the oldest, at most ``limit``."""
        self._holding.settle()
        self._holding.set_back(now)
        found: list[Problem] = []
        for key in self._holding.old(now - self.timeout, limit):
            group = self._holding.find(*key)
            assert group is not None
            found.append(self._give_up(group))
        return found

    def incomplete(self) -> Iterator[Problem]:
        """Yield what ``expire`` would report after the timeout, oldest first, without contents or changes."""
        for key in self._holding.old(math.inf, self.groups):
            group = self._holding.find(*key)
            assert group is not None
            reason, text, missing = self._lacking(group)
            yield Problem(*key, 0, "incomplete", reason, text, missing=missing)

    def _give_up(self, group: Group) -> Problem:
        self.counts.incomplete += 1
        return self._aside(group, "incomplete", *self._lacking(group))

    def _lacking(self, group: Group) -> tuple[int, str, Missing]:
        missing = self._missing(group)
        reason = MQRC_INCOMPLETE_GROUP if missing.messages else MQRC_INCOMPLETE_MSG
        return reason, f"incomplete, missing: {missing}", missing

    def _missing(self, group: Group) -> Missing:
        named = Named(_RANGES)
        if group.grouped:
            named.messages(group.missing(one.seq for one in self._holding.messages(group)))
        for one in self._holding.messages(group):
            if one.state == OPEN:
                named.segments(one.seq, one.missing(self._holding.extents(group, one)))
        return named.result()

    def _group_aside(self, group: Group, fault: Fault) -> Problem:
        """Set a contradictory group aside."""
        self.counts.faulty += 1
        return self._aside(group, fault.kind, fault.reason, str(fault), NOTHING, fault.seq)

    def _message_aside(self, group: Group, message: Message, fault: Fault) -> Problem:
        """Set a contradictory message aside, or its group if groups are handed out as a whole."""
        if self._by_group and group.grouped:
            return self._group_aside(group, fault)
        self.counts.faulty += 1
        seq = message.seq
        contents = self._holding.reader(group, message)
        problem = Problem(
            *(group.topic, group.group_id, seq, fault.kind, fault.reason, str(fault)),
            contents=lambda: ((seq, at, data) for at, data in contents()),
            lease=self._holding.lease,
        )
        self._settled(group, message, FAULTY, fault.reason)
        return problem

    def _aside(
        self, group: Group, kind: str, reason: int, text: str, missing: Missing, seq: int = 0
    ) -> Problem:
        """Set a GroupId aside and report it."""

        def pieces() -> Iterator[tuple[int, int, bytes]]:
            for one in self._holding.messages(group):
                for at, data in self._holding.reader(group, one)():
                    yield one.seq, at, data

        said = (group.topic, group.group_id, seq, kind, reason, text, missing)
        problem = Problem(*said, contents=pieces, lease=self._holding.lease)
        self._end(group, reason)
        return problem

    # -- what is done ----------------------------------------------------------------------------------------------

    def _settled(self, group: Group, message: Message, state: int, reason: int) -> None:
        """Release a message that was handed out or set aside; end its group if that is finished."""
        self._remember(group, message, reason)
        self._holding.leave(group, message, state)
        if group.grouped:
            group.whole_messages += 1
            if group.whole:
                self._ended(group)
            return
        if group.count == 1:
            self._holding.end(group)
        else:
            self._holding.forget(group, message)

    def _ended(self, group: Group) -> None:
        """End a group whose messages were all handed out or set aside."""
        self.counts.groups += 1
        self._end(group, MQRC_NONE)

    def _end(self, group: Group, reason: int) -> None:
        self._holding.end(group)
        self._holding.remember((group.topic, group.group_id), 0, reason, last=group.last)

    def _remember(self, group: Group, message: Message, reason: int) -> None:
        """Remember a finished message."""
        finished = b"" if reason else packed(message, self._holding.reader(group, message)())
        self._holding.remember((group.topic, group.group_id), message.seq, reason, finished=finished)


def _ended_group(last: int, done: dict[int, Done]) -> logical.Group:
    """Return the state of a finished GroupId."""
    group = logical.Group()
    group.last = group.highest = last
    known = [finished for finished in map(Finished.of, (row[2] for row in done.values())) if finished]
    if known or last:
        group.grouped = bool(last) or known[0].grouped
    return group


def _physical(view: memoryview) -> _Physical:
    """Parse a payload; without an MQMDE it is a message by itself. Raises HeaderError."""
    kind = sniff(view, 0, len(view))
    if not kind:
        return _Physical(MQGI_NONE, 1, 0, 0, " " * 8, 0, 0, view)
    fields = decode(MQMDE, view, big=bool(kind & BIG), ccsid=500 if kind & EBCDIC else 819)
    return _Physical._make((*(fields[name] for name in _FIELDS), view[72:]))
