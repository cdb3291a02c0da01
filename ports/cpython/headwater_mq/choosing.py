"""Choose the message that MQGET returns: by order, match options and completeness.

Reads within the caller's transaction. ``headwater_host.mq.reassembly.verdicts`` decides whether a logical message or
group is complete, once for each call.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headwater_host.mq import CMQC
from headwater_host.mq.errors import failed
from headwater_host.mq.fields import IN_GROUP, SEGMENT
from headwater_host.mq.put import Place
from headwater_host.mq.reassembly.verdicts import Segment, Verdict, judge
from headwater_mq import messages

_COLUMNS = "id, rank, group_id, seq, place, flags, length, msg_id, correl_id"
#: Match option -> column, field of the MQMD.
MATCHES = {
    CMQC.MQMO_MATCH_MSG_ID: ("msg_id", "MsgId"),
    CMQC.MQMO_MATCH_CORREL_ID: ("correl_id", "CorrelId"),
    CMQC.MQMO_MATCH_GROUP_ID: ("group_id", "GroupId"),
    CMQC.MQMO_MATCH_MSG_SEQ_NUMBER: ("seq", "MsgSeqNumber"),
    CMQC.MQMO_MATCH_OFFSET: ("place", "Offset"),
}
# Without a named index SQLite may scan the whole queue in order.
_INDICES = {"msg_id": "by_msg_id", "correl_id": "by_correl_id", "group_id": "by_group"}
_OF_GROUP = "FROM messages INDEXED BY by_group"
#: Flags of a part of a group or message; a GroupId alone makes neither.
_PART = IN_GROUP | SEGMENT


class Row(NamedTuple):
    """The columns of a message that are examined before it is read."""

    id: int
    rank: int
    group_id: bytes | None
    seq: int
    place: int
    flags: int
    length: int
    msg_id: bytes
    correl_id: bytes | None

    @property
    def position(self) -> tuple[int, int]:
        """Position in the queue."""
        return self.rank, self.id

    @classmethod
    def of(cls, values: "tuple[Any, ...]") -> "Row":
        """Check a row of the file. Raises DamagedError."""
        number, rank, group_id, *numbers = values[:7]
        if not (isinstance(rank, int) and isinstance(group_id, bytes | None)):
            raise messages.DamagedError(number)
        messages.check_numbers(number, numbers)
        return cls(*values)


class Wanted(NamedTuple):
    """A request. ``own``: connection whose uncommitted messages are visible, or 0; ``now``: age time in ms; ``match``:
    columns and values; ``after``: position of the browse cursor."""

    queue: int
    own: int
    now: int
    match: Mapping[str, object]
    after: "tuple[int, int] | None" = None
    ordered: bool = False
    complete: bool = False
    all_messages: bool = False
    all_segments: bool = False


class Found(NamedTuple):
    """A chosen message: ``first`` is the row of its descriptor, ``pieces`` are (row, bytes to skip, bytes to take),
    ``rows`` all rows that MQGET removes, ``position`` the new browse cursor, ``whole`` whether it was reassembled,
    ``reason`` that of a warning."""

    first: int
    pieces: Sequence[tuple[int, int, int]]
    rows: Sequence[int]
    position: tuple[int, int]
    whole: bool = False
    reason: int = CMQC.MQRC_NONE


class Chooser:
    """One search. Incomplete and contradictory messages are skipped if the request wants complete ones."""

    def __init__(self, db: sqlite3.Connection, wanted: Wanted):
        self._db = db
        self._wanted = wanted
        self._values = (wanted.queue, wanted.own, wanted.now)
        self._judged: dict[tuple[bytes, int], tuple[list[int], list[Segment], Verdict]] = {}

    # -- ways to look --------------------------------------------------------------------------------------------------

    def next(self) -> Found | None:
        """Return the first message that matches."""
        wanted = self._wanted
        for row in self._rows({} if wanted.ordered else wanted.match, wanted.after):
            candidate = self._first_of(row) if wanted.ordered else row
            if candidate is not None and (not wanted.ordered or self._matches(candidate)):
                found = self._found(candidate, row.position, start=True)
                if found is not None:
                    return found
        return None

    def follow(self, place: Place) -> Found | None:
        """Return the next message of a group or logical message."""
        at = (place.seq, place.offset) if place.in_message else (place.seq + 1, 0)
        query = (
            f"SELECT {_COLUMNS} {_OF_GROUP} WHERE {messages.ELIGIBLE} AND group_id = ? AND seq = ? "
            f"AND place = ? AND flags & {_PART} ORDER BY rank, id LIMIT 1"
        )
        found = self._db.execute(query, (*self._values, place.group_id, *at)).fetchone()
        if found is None:
            return None
        row = Row.of(found)
        if not self._matches(row):
            raise failed(CMQC.MQRC_MATCH_OPTIONS_ERROR, "the next message of the group does not match")
        return self._found(row, row.position, start=not place.in_message, inside=place.in_message)

    def under(self, number: int | None) -> Found | None:
        """Return the message under the browse cursor, by the id of its row."""
        if number is None:
            raise failed(CMQC.MQRC_NO_MSG_UNDER_CURSOR, "no message was browsed")
        query = f"SELECT {_COLUMNS} FROM messages WHERE {messages.ELIGIBLE} AND id = ?"
        found = self._db.execute(query, (*self._values, number)).fetchone()
        if found is None:
            raise failed(CMQC.MQRC_NO_MSG_UNDER_CURSOR, "the message is gone")
        row = Row.of(found)
        if self._wanted.complete and row.place:
            raise failed(CMQC.MQRC_INVALID_MSG_UNDER_CURSOR, f"it is a segment, at {row.place}")
        return self._found(row, row.position, start=True)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _rows(self, match: Mapping[str, object], after: "tuple[int, int] | None") -> Iterator[Row]:
        """Yield available messages in the order of the queue."""
        index = next((index for column, index in _INDICES.items() if column in match), "in_order")
        query = f"SELECT {_COLUMNS} FROM messages INDEXED BY {index} WHERE {messages.ELIGIBLE}"
        values: list[Any] = list(self._values)
        for column, value in match.items():
            query += f" AND {column} = ?"
            values.append(value)
        if after is not None:
            query += " AND (rank, id) > (?, ?)"
            values.extend(after)
        for row in self._db.execute(f"{query} ORDER BY rank, id", values):
            yield Row.of(row)

    def _first_of(self, row: Row) -> Row | None:
        """Return the first message of a group or segmented message if ``row`` is the first of its rows in the queue.

        In logical order a group takes the position of its first row and begins with message 1. A segmented message
        outside a group stands alone, whatever its MsgSeqNumber.
        """
        if row.group_id is None or not row.flags & _PART:
            return row
        grouped = row.flags & IN_GROUP
        within = f"{_OF_GROUP} WHERE {messages.ELIGIBLE} AND group_id = ? AND flags & {_PART}"
        if not grouped:
            within += " AND seq = ?"
        values = (*self._values, row.group_id, *(() if grouped else (row.seq,)))
        before = f"SELECT 1 {within} AND (rank, id) < (?, ?) LIMIT 1"
        if self._db.execute(before, (*values, *row.position)).fetchone():
            return None
        first = f"SELECT {_COLUMNS} {within} AND seq = ? AND place = 0 ORDER BY rank, id LIMIT 1"
        found = self._db.execute(first, (*values, 1 if grouped else row.seq)).fetchone()
        return None if found is None else Row.of(found)

    def _matches(self, row: Row) -> bool:
        return all(getattr(row, name) == value for name, value in self._wanted.match.items())

    # -- whole or not --------------------------------------------------------------------------------------------------

    def _found(
        self, row: Row, position: tuple[int, int], *, start: bool, inside: bool = False
    ) -> Found | None:
        """Return this message if it and its group are as complete as requested."""
        wanted = self._wanted
        alone = Found(row.id, [(row.id, 0, row.length)], [row.id], position)
        if row.group_id is None or not row.flags & _PART:
            return alone
        complete = wanted.complete and not inside
        needs_group = wanted.all_messages and start and (row.seq == 1 or not wanted.ordered)
        needs_message = (complete or wanted.all_segments or wanted.all_messages) and start
        if not needs_group and not needs_message:
            return alone._replace(rows=self._twins(row)) if wanted.ordered else alone
        # Judge the message alone where that suffices: otherwise each MQGET would read the whole group.
        numbers, segments, verdict = self._judge(row.group_id, 0 if needs_group else row.seq)
        message = verdict.messages.get(row.seq)
        if message is None:
            # The index contradicts the table.
            raise messages.DamagedError(row.id)
        if message.fault is not None or (needs_group and verdict.fault is not None):
            return None
        if not message.complete or (needs_group and row.flags & IN_GROUP and not verdict.complete):
            return None
        if not complete:
            return alone._replace(rows=self._twins(row)) if wanted.ordered else alone
        if numbers[message.first] != row.id and row.place:
            return None
        return self._whole(row, position, numbers, segments, message)

    def _whole(
        self,
        row: Row,
        position: tuple[int, int],
        numbers: list[int],
        segments: list[Segment],
        message: Verdict,
    ) -> Found:
        """Join the segments of a logical message, up to the first that differs in Encoding or CodedCharSetId."""
        pieces = [(numbers[index], skip, length) for index, skip, length in message.pieces]
        rows = [number for number, one in zip(numbers, segments, strict=True) if one.seq == row.seq]
        first = numbers[message.first]
        if len(pieces) > 1:
            written = {number: messages.written(self._db, number) for number in rows}
            for at, (number, _, _) in enumerate(pieces):
                if written[number] != written[first]:
                    same = pieces[:at]
                    reason = (
                        CMQC.MQRC_INCONSISTENT_CCSIDS
                        if written[number][1] != written[first][1]
                        else CMQC.MQRC_INCONSISTENT_ENCODINGS
                    )
                    return Found(first, same, [one[0] for one in same], position, False, reason)
        return Found(first, pieces or [(first, 0, 0)], rows, position, True)

    def _twins(self, row: Row) -> list[int]:
        """Return the rows of a segment and of its duplicates, which are removed together."""
        query = (
            f"SELECT id {_OF_GROUP} WHERE {messages.ELIGIBLE} AND group_id = ? AND seq = ? AND place = ? "
            "AND length = ? AND flags = ? AND (id = ? OR body = (SELECT body FROM messages WHERE id = ?))"
        )
        values = (*self._values, row.group_id, row.seq, row.place, row.length, row.flags, row.id, row.id)
        return [number for (number,) in self._db.execute(query, values)]

    def _judge(self, group_id: bytes, seq: int) -> tuple[list[int], list[Segment], Verdict]:
        """Return rows, segments and verdict of one message, or of the whole group if ``seq`` is 0."""
        known = self._judged.get((group_id, seq))
        if known is not None:
            return known
        query = (
            f"SELECT id, seq, place, length, flags {_OF_GROUP} WHERE {messages.ELIGIBLE} AND group_id = ? "
            f"AND flags & {_PART}{' AND seq = ?' if seq else ''} ORDER BY rank, id"
        )
        values = (*self._values, group_id, seq) if seq else (*self._values, group_id)
        rows = self._db.execute(query, values).fetchall()
        for number, *numbers in rows:
            messages.check_numbers(number, numbers)
        numbers = [row[0] for row in rows]
        segments = [Segment(*row[1:]) for row in rows]
        verdict = judge(segments, lambda index: messages.read(self._db, numbers[index], 0).body, 0)
        self._judged[group_id, seq] = numbers, segments, verdict
        return numbers, segments, verdict
