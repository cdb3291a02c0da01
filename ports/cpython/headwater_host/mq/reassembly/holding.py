"""The state of an assembler: groups, messages and pieces, in memory up to a limit, else in the store.

The rules of reassembly are in ``logical``.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from headwater_host.mq.reassembly import logical
from headwater_host.mq.reassembly.outcomes import Lease
from headwater_host.mq.reassembly.spill import Done, Spill

#: Memory of objects without contents and topics, in bytes, measured and rounded up.
PIECE = 240
MESSAGE = 800
GROUP = 1200
DONE = 640
#: Bytes of a row in the store without its contents.
ROW = 64
#: Maximum number of pieces of a message in memory, so that insertion stays cheap.
_PIECES = 4096

#: States of a message: incomplete; complete, waiting for its group; handed out; contradictory and set aside.
OPEN, WAITING, OUT, FAULTY = range(4)

Key: TypeAlias = tuple[str, bytes]
Contents: TypeAlias = Callable[[], Iterator[tuple[int, bytes]]]


class Message(logical.Message):
    """A message, its pieces in memory, and the range of its pieces in the store."""

    __slots__ = ("changed", "format", "high", "low", "parts", "pieces", "starts", "state")

    def __init__(self, seq: int):
        super().__init__(seq)
        self.state = OPEN
        #: Format of the first segment at Offset 0; empty before it.
        self.format = ""
        #: Offsets and bytes of pieces in memory; no two pieces overlap, also in the store.
        self.starts: list[int] = []
        self.parts: dict[int, bytes] = {}
        #: Number of pieces in memory and store.
        self.pieces = 0
        #: The range of pieces in the store.
        self.low = self.high = 0
        #: True if the store is out of date.
        self.changed = True

    def row(self, number: int) -> tuple[Any, ...]:
        """Return the row for the store."""
        return (
            number, self.seq, self.state, self.format, self.flags, self.encoding, self.ccsid, self.end, self.reach,
            self.covered, self.pieces, self.low, self.high,
        )  # fmt: skip

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> Message:
        """Create the object from a row of the store."""
        message = cls(row[1])
        (
            _, _, message.state, message.format, message.flags, message.encoding, message.ccsid, message.end,
            message.reach, message.covered, message.pieces, message.low, message.high,
        ) = row  # fmt: skip
        message.changed = False
        return message

    @property
    def memory(self) -> int:
        """Memory of its pieces, in bytes."""
        return sum(map(len, self.parts.values())) + PIECE * len(self.parts)


class Group(logical.Group):
    """All messages with one topic and GroupId."""

    __slots__ = ("changed", "count", "group_id", "held", "messages", "number", "stored", "topic", "touched")

    def __init__(self, topic: str, group_id: bytes, number: int):
        super().__init__()
        self.topic = topic
        self.group_id = group_id
        #: Its number in the store.
        self.number = number
        #: Time of its last payload.
        self.touched = 0.0
        #: Number of messages; those in memory.
        self.count = 0
        self.messages: dict[int, Message] = {}
        #: Size in memory and store, in bytes of the store.
        self.held = 0
        #: True if it is in the store; whether the store is out of date.
        self.stored = False
        self.changed = True

    def row(self) -> tuple[Any, ...]:
        """Return the row for the store."""
        return (
            self.number, self.topic, self.group_id, self.touched, self.grouped, self.last, self.highest,
            self.whole_messages, self.count, self.held,
        )  # fmt: skip

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> Group:
        """Create the object from a row of the store."""
        group = cls(row[1], row[2], row[0])
        (
            _, _, _, group.touched, grouped, group.last, group.highest, group.whole_messages, group.count, group.held,
        ) = row  # fmt: skip
        group.grouped = None if grouped is None else bool(grouped)
        group.stored, group.changed = True, False
        return group

    @property
    def memory(self) -> int:
        """Memory without pieces, in bytes."""
        return GROUP + 4 * len(self.topic) + MESSAGE * len(self.messages)


class _Leaving(NamedTuple):
    """Rows that were handed out (``seq`` 0: the group), and their size."""

    number: int
    seq: int
    held: int


class Holding:
    """Groups in memory and in the store.

    ``used``: bytes in memory, at most ``memory`` or the current group with one message and no pieces, without outcomes.
    ``held``: bytes in memory and store, counted as in the store. Every change of a group or message sets ``changed``.
    """

    def __init__(self, db: sqlite3.Connection, memory: int, remembered: int, mend: bool = False):
        self.store = Spill(db)
        self.memory = memory
        self.remembered = remembered
        self.used = 0
        #: Damaged groups that were dropped from the store.
        self.damaged = self.store.mend() if mend else 0
        self._number, self.count, self.held, self._done_rows = self.store.totals()
        #: Groups in memory, least recently extended first.
        self.groups: OrderedDict[Key, Group] = OrderedDict()
        #: Finished messages that are not in the store, by MsgSeqNumber (0: the group).
        self._done: OrderedDict[Key, dict[int, Done]] = OrderedDict()
        self._done_count = self._done_memory = 0
        self._leaving: list[_Leaving] = []
        #: The lease of outcomes until ``settle``.
        self.lease = Lease()

    # -- groups and messages ---------------------------------------------------------------------------------------

    def begin(self, topic: str, group_id: bytes) -> Group:
        """Create a group."""
        self._number += 1
        self.count += 1
        return self._take(Group(topic, group_id, self._number))

    def _take(self, group: Group) -> Group:
        self.make_room(group.memory)
        self.groups[group.topic, group.group_id] = group
        self.used += group.memory
        return group

    def find(self, topic: str, group_id: bytes) -> Group | None:
        """Return a group, or None."""
        group = self.groups.get((topic, group_id))
        if group is None and self.count > len(self.groups):
            row = self.store.group(topic, group_id)
            if row is not None:
                group = self._take(Group.of(row))
        return group

    def touch(self, group: Group, now: float) -> None:
        """Note the time of a payload of the group."""
        group.touched = now
        group.changed = True
        self.groups.move_to_end((group.topic, group.group_id))

    def message(self, group: Group, seq: int) -> Message | None:
        """Return a message, or None."""
        message = group.messages.get(seq)
        if message is None and group.count > len(group.messages):
            row = self.store.message(group.number, seq)
            if row is not None:
                message = Message.of(row)
                self._hold(group, message)
        return message

    def begin_message(self, group: Group, message: Message) -> None:
        """Create a message of the group."""
        self._hold(group, message)
        group.count += 1
        self._grow(group, ROW)

    def _hold(self, group: Group, message: Message) -> None:
        self.make_room(MESSAGE, group)
        group.messages[message.seq] = message
        self.used += MESSAGE

    def _grow(self, group: Group, size: int) -> None:
        group.held += size
        group.changed = True
        self.held += size

    def messages(self, group: Group) -> Iterator[Message]:
        """Yield the messages of a group by MsgSeqNumber, from memory or store."""
        if group.stored:
            self.save(group)
            return map(Message.of, self.store.messages(group.number))
        return iter([group.messages[seq] for seq in sorted(group.messages)])

    # -- pieces ----------------------------------------------------------------------------------------------------

    def overlapping(
        self, group: Group, message: Message, start: int, stop: int
    ) -> Iterator[tuple[int, int, bool]]:
        """Yield (at, size, whether stored) of the pieces that overlap a range, in order."""
        here = _here(message, start, stop)
        if start >= message.high or stop <= message.low:
            return here
        there = self.store.overlapping(group.number, message.seq, start, stop)
        return merge(here, ((at, size, True) for at, size in there))

    def part(
        self, group: Group, message: Message, at: int, stored: bool, skip: int, length: int
    ) -> Iterator[bytes | memoryview]:
        """Yield part of the piece at ``at``, in slices if it is in the store."""
        if stored:
            return self.store.part(group.number, message.seq, at, skip, length)
        return iter((memoryview(message.parts[at])[skip : skip + length],))

    def keep(self, group: Group, message: Message, start: int, data: bytes) -> None:
        """Keep a piece that overlaps no other."""
        self.make_room(len(data) + PIECE, group, message)
        if message.starts and message.starts[-1] > start:
            message.starts.insert(bisect_left(message.starts, start), start)
        else:
            message.starts.append(start)
        message.parts[start] = data
        message.changed = True
        message.pieces += 1
        self.used += len(data) + PIECE
        self._grow(group, len(data) + ROW)
        if self.used > self.memory or len(message.starts) > _PIECES:
            self.save(group)

    def drop_between(self, group: Group, message: Message, start: int, stop: int) -> None:
        """Drop the pieces that begin in a range, before one piece replaces them."""
        first, last = bisect_left(message.starts, start), bisect_left(message.starts, stop)
        count, size = last - first, 0
        for at in message.starts[first:last]:
            size += len(message.parts.pop(at))
        del message.starts[first:last]
        self.used -= size + PIECE * count
        if start < message.high and stop > message.low:
            rows, stored = self.store.drop_pieces(group.number, message.seq, start, stop)
            count, size = count + rows, size + stored
        message.pieces -= count
        self._grow(group, -size - ROW * count)

    def reader(self, group: Group, message: Message) -> Contents:
        """Return a function that yields (Offset, bytes) of the current pieces of a message, also after it changes."""
        starts, parts, stored = message.starts, message.parts, message.high > message.low

        def contents() -> Iterator[tuple[int, bytes]]:
            here = ((at, parts[at]) for at in starts)
            return merge(here, self.store.pieces(group.number, message.seq)) if stored else here

        return contents

    def extents(self, group: Group, message: Message) -> Iterable[tuple[int, int]]:
        """Yield (start, stop) of the pieces of a message, in order."""
        here = ((at, at + len(message.parts[at])) for at in message.starts)
        if message.high == message.low:
            return here
        return merge(here, self.store.extents(group.number, message.seq))

    # -- release -------------------------------------------------------------------------------------------------

    def leave(self, group: Group, message: Message, state: int) -> None:
        """Release the content of a message that was handed out; keep its state."""
        held = message.covered + ROW * message.pieces
        number = group.number if message.high > message.low else 0
        self._leaving.append(_Leaving(number, message.seq, held))
        self.used -= message.memory
        group.held -= held
        message.starts, message.parts = [], {}
        message.low = message.high = message.covered = message.pieces = 0
        message.state = state
        message.changed = group.changed = True

    def forget(self, group: Group, message: Message) -> None:
        """Forget a message that has left."""
        del group.messages[message.seq]
        group.count -= 1
        self.used -= MESSAGE
        self._grow(group, -ROW)
        if group.stored:
            self.store.drop_message(group.number, message.seq)

    def end(self, group: Group) -> None:
        """Forget a group that was handed out."""
        if group.stored:
            # Readers then use the store, where nothing moves.
            self.save(group)
        del self.groups[group.topic, group.group_id]
        self.count -= 1
        self.used -= group.memory + sum(one.memory for one in group.messages.values())
        self._leaving.append(_Leaving(group.number if group.stored else 0, 0, group.held))

    def settle(self) -> None:
        """Release the last outcomes."""
        if not self._leaving:
            return
        self.lease.over = True
        self.lease = Lease()
        for number, seq, held in self._leaving:
            self.held -= held
            if number and seq:
                self.store.drop_pieces(number, seq)
            elif number:
                self.store.drop_group(number)
        self._leaving.clear()

    def set_back(self, now: float) -> None:
        """Limit the times of all groups to ``now``, after the clock has gone back."""
        for group in self.groups.values():
            if group.touched > now:
                group.touched = now
                group.changed = True
        self.store.set_back(now)

    def old(self, until: float, limit: int) -> list[Key]:
        """Return the oldest groups without payloads after ``until``, at most ``limit``."""
        found = [
            (group.touched, group.topic, group.group_id)
            for group in self.groups.values()
            if group.touched <= until
        ]
        # The state in memory is newer.
        stored = (row for row in self.store.oldest(until) if row[:2] not in self.groups)
        found += ((touched, topic, group_id) for topic, group_id, touched in islice(stored, limit))
        return [(topic, group_id) for _, topic, group_id in sorted(found)[:limit]]

    # -- memory and store ------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write all changes to the store."""
        self.settle()
        for group in self.groups.values():
            self.save(group)
        self._save_done()

    def save(self, group: Group) -> None:
        """Write a group; its pieces are then in the store only."""
        changed = [one for one in group.messages.values() if one.changed]
        if not group.changed and not changed:
            return
        number = group.number
        for one in changed:
            if one.starts:
                low, high = one.starts[0], one.starts[-1] + len(one.parts[one.starts[-1]])
                stored = one.high > one.low
                one.low, one.high = (min(low, one.low), max(high, one.high)) if stored else (low, high)
        self.store.save_group(group.row(), (one.row(number) for one in changed))
        for one in changed:
            one.changed = False
            if one.starts:
                seq, parts = one.seq, one.parts
                self.store.save_pieces((number, seq, at, len(parts[at]), parts[at]) for at in one.starts)
                self.used -= one.memory
                one.starts, one.parts = [], {}
        group.stored, group.changed = True, False

    def make_room(self, size: int, group: Group | None = None, message: Message | None = None) -> None:
        """Write groups to the store if ``size`` bytes do not fit, the least recently extended first.

        The current group and message stay in memory without their pieces.
        """
        if self.used + size <= self.memory:
            return
        self._save_done()
        goal = self.memory // 2 - size
        for key in list(self.groups):
            if self.used <= goal:
                return
            one = self.groups[key]
            self.save(one)
            before = one.memory
            if one is group:
                one.messages = {} if message is None else {message.seq: message}
                self.used += one.memory - before
            else:
                self.used -= before
                del self.groups[key]

    # -- finished -----------------------------------------------------------------------------------------------

    def remember(self, key: Key, seq: int, reason: int, *, last: int = 0, finished: bytes = b"") -> None:
        """Remember a finished message, or the group for ``seq`` 0; ``reason`` if it was set aside."""
        of_group = self._done.setdefault(key, {})
        self._done.move_to_end(key)
        before = of_group.pop(seq, None)
        row = of_group[seq] = (last, reason, finished)
        self._done_count += before is None
        more = _memory_of(key, row) - (0 if before is None else _memory_of(key, before))
        self._done_memory += more
        self.used += more
        if self.used > self.memory or self._done_count > self.remembered:
            self._save_done()

    def done(self, topic: str, group_id: bytes, seq: int) -> dict[int, Done]:
        """Return finished messages of a GroupId by MsgSeqNumber: at least the message and its group (0) if finished,
        else any one."""
        here = self._done.get((topic, group_id), {})
        if not self._done_rows or (seq in here and 0 in here):
            return here
        return self.store.done(topic, group_id, seq) | here

    def _save_done(self) -> None:
        if self._done:
            of_groups = self._done.items()
            rows = ((*key, seq, *row) for key, of_group in of_groups for seq, row in of_group.items())
            self.store.remember(rows, self.remembered)
            self.used -= self._done_memory
            self._done.clear()
            self._done_count = self._done_memory = 0
            self._done_rows = 1


def _memory_of(key: Key, row: Done) -> int:
    return DONE + 4 * len(key[0]) + len(row[2])


def _here(message: Message, start: int, stop: int) -> Iterator[tuple[int, int, bool]]:
    """Yield (at, size, False) of the pieces in memory that overlap a range, in order."""
    starts, parts = message.starts, message.parts
    for k in range(max(bisect_right(starts, start) - 1, 0), len(starts)):
        at = starts[k]
        if at >= stop:
            return
        size = len(parts[at])
        if at + size > start:
            yield at, size, False
