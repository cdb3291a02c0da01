"""Decide which received messages of one part of the log are the same message.

The rows are those of the table ``messages``, with the columns that the decision needs. The rules:

- **By message id**, for FMQ. Rows are one message when type, process, thread and time of their ids are equal:
  ``origin`` and ``made_ns``. The first received stays. One with another payload is a conflict, not a copy.
- **By identity**, for MQTT. Rows whose payload has a board, boot and seq are one message when topic, board, boot and
  seq are equal. First and conflict as above.
- **By mark**, for MQTT's rows without an identity. A row that the receiver marked as a duplicate repeats the row that
  the same peer sent under the same packet id at the time that the mark names, when the log has that row, with the same
  QoS, topic and payload. Nothing else proves that two such rows are one message: all others stay. A row is
  ``doubtful`` when its mark says uncertain, when it has DUP and no mark, or when it is a duplicate of a row that the
  log does not have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater_spark.arrow import Bools, Rows, codes, flags, null_codes, numbers, one, valid, values
from headwater_spark.tables import MESSAGES

#: The columns of the table that the rules make.
VERDICTS = ("copies", "possible_duplicate")
#: The columns of rows that are not settled yet: the others of the table, and what only the rules need.
COLUMNS: Any = pa.schema(
    [f for f in MESSAGES.arrow if f.name not in VERDICTS]
    + [
        pa.field("position", pa.int64()),
        pa.field("doubtful", pa.bool_()),
        pa.field("packet_id", pa.int32()),
        pa.field("first_ns", pa.int64()),
        pa.field("origin", pa.dictionary(pa.int32(), pa.string())),
        pa.field("made_ns", pa.int64()),
    ]
)


Name = tuple[str, str, int]


class Key(NamedTuple):
    """What a mark names: the first receipt of a message."""

    peer: str
    packet_id: int
    time_ns: int


@dataclass
class Settled:
    """What became of each row: kept, with how many frames it came in; a conflict; or else a copy.

    Or it is settled elsewhere.
    """

    keep: Bools
    copies: npt.NDArray[np.int32]
    conflict: Bools
    elsewhere: Bools
    #: Kept rows that may be another row's message.
    doubtful: Bools
    #: What duplicates repeat that is not in these rows.
    unresolved: set[Key] = field(default_factory=set)
    #: Least and greatest receive time of the rows that a mark may name; None without any.
    span: tuple[int, int] | None = None


class Groups:
    """The rows with an identity that are settled here, by (topic, board, boot) or origin, in order of ``seq``.

    ``seq`` is made_ns for an origin's: what grows from message to message.
    """

    def __init__(self, table: Any, elsewhere: Bools):
        board, origin = codes(table["board"]), codes(table["origin"])
        of_origin = origin >= 0
        self.rows: Rows = np.flatnonzero(((board >= 0) | of_origin) & ~elsewhere)
        topic = codes(table["topic"])[self.rows]
        boots = one(table["boot"]).dictionary_encode()
        boot = codes(boots)[self.rows]
        self.topics = values(table["topic"])
        self.boards = values(table["board"])
        self.boots: list[int] = boots.dictionary.to_pylist()
        self.origins = values(table["origin"])
        group = (topic * np.int64(len(self.boards)) + board[self.rows]) * len(self.boots) + boot
        seq = numbers(table["seq"])[self.rows]
        #: Groups of origins are numbered behind the others.
        self.first_origin = len(self.topics) * len(self.boards) * len(self.boots)
        if len(self.origins):
            mine = of_origin[self.rows]
            group = np.where(mine, self.first_origin + origin[self.rows].astype(np.int64), group)
            seq = np.where(mine, numbers(table["made_ns"])[self.rows], seq)
        size = self.first_origin + len(self.origins)
        # Sorting 16-bit numbers is linear; a board's messages mostly come in the order of seq.
        order = np.argsort(group.astype(np.uint16) if size <= 0x10000 else group, kind="stable")
        if not _rises(group[order], seq[order]):
            order = np.lexsort((seq, group))
        self.rows = self.rows[order]
        self.group = group[order]
        self.seq = seq[order]

    def name(self, group: int) -> Name:
        """(topic, board, boot) of a group's number; of an origin ("", origin, 0): no topic is empty."""
        if group >= self.first_origin:
            return "", self.origins[group - self.first_origin], 0
        rest, boot = divmod(group, len(self.boots))
        topic, board = divmod(rest, len(self.boards))
        return self.topics[topic], self.boards[board], self.boots[boot]

    def parts(self) -> Iterable[tuple[Name, slice]]:
        """The name of each group and where it stands in ``rows`` and ``seq``."""
        if not len(self.group):
            return
        edges = np.flatnonzero(np.diff(self.group)) + 1
        bounds = [0, *edges.tolist(), len(self.group)]
        for start, end in pairwise(bounds):
            yield self.name(int(self.group[start])), slice(start, end)


def _rises(group: Rows, seq: Rows) -> bool:
    return bool(np.all((seq[1:] >= seq[:-1]) | (group[1:] != group[:-1])))


def in_order(batches: Iterable[Any], schema: Any) -> Any:
    """Record batches as one table of one chunk; columns that one lacks are null there."""
    batches = list(batches)
    lacking = {name for batch in batches for name in schema.names if name not in batch.schema.names}
    # Those that all lack are made once.
    there = pa.schema([f for f in schema if any(f.name in batch.schema.names for batch in batches)])
    if lacking:
        batches = [_completed(batch, there) for batch in batches]
    table = pa.Table.from_batches(batches, there if batches else schema)
    table = table.unify_dictionaries().combine_chunks()
    if table.schema.names == schema.names:
        return table
    columns = {f.name: _nulls(table.num_rows, f.type) for f in schema if f.name not in there.names}
    columns |= {name: table[name] for name in there.names}
    return pa.table([columns[name] for name in schema.names], schema)


def _completed(batch: Any, schema: Any) -> Any:
    names = batch.schema.names
    n = batch.num_rows
    return pa.record_batch(
        [batch[f.name] if f.name in names else _nulls(n, f.type) for f in schema], schema=schema
    )


def _nulls(n: int, type_: Any) -> Any:
    return null_codes(n) if pa.types.is_dictionary(type_) else pa.nulls(n, type_)


def settle(table: Any, groups: Groups, elsewhere: Bools) -> Settled:
    """Apply the rules to rows of COLUMNS; ``groups`` are theirs. Rows ``elsewhere`` are not to be settled here."""
    n = table.num_rows
    settled = Settled(
        ~elsewhere, np.ones(n, np.int32), np.zeros(n, np.bool_), elsewhere, np.zeros(n, np.bool_)
    )
    _by_identity(table, groups, settled)
    _by_mark(table, settled)
    return settled


def _by_identity(table: Any, groups: Groups, settled: Settled) -> None:
    same = (groups.group[1:] == groups.group[:-1]) & (groups.seq[1:] == groups.seq[:-1])
    if not same.any():
        return
    # Only the rows that are not alone, by message, then by receipt.
    member = np.append(same, False) | np.append(False, same)
    message = np.cumsum(np.append(True, ~same))[member]
    rows = groups.rows[member]
    order = np.lexsort((numbers(table["position"])[rows], numbers(table["time_ns"])[rows], message))
    rows, message = rows[order], message[order]
    is_first = np.append(True, message[1:] != message[:-1])
    first = rows[is_first][np.cumsum(is_first) - 1]
    payload = one(table["payload"])
    equal = pc.equal(payload.take(pa.array(rows)), payload.take(pa.array(first))).to_numpy(
        zero_copy_only=False
    )
    settled.keep[rows[~is_first]] = False
    settled.conflict[rows[~equal]] = True
    np.add.at(settled.copies, first[~is_first & equal], 1)


def receipts(table: Any, elsewhere: Bools) -> tuple[Bools, Bools]:
    """Where rows are that only a mark can tell apart, MQTT's at QoS 1 and 2 without an identity: first receipts, and
    duplicates, which have a ``first_ns``."""
    plain = (codes(table["board"]) < 0) & (codes(table["origin"]) < 0) & (numbers(table["qos"]) > 0)
    plain &= ~elsewhere
    duplicate = plain & valid(table["first_ns"])
    return plain & ~duplicate, duplicate


def named(table: Any, where: Bools, column: str, times: Collection[int]) -> Iterator[tuple[int, Key]]:
    """The rows that have one of some times, and what they are to a mark. ``column`` is ``time_ns``, or ``first_ns`` of
    duplicates."""
    peers, peer = values(table["peer"]), codes(table["peer"])
    packet_id, time_ns = numbers(table["packet_id"]), numbers(table[column])
    for row in np.flatnonzero(where & np.isin(time_ns, list(times))).tolist():
        yield row, Key(peers[peer[row]], int(packet_id[row]), int(time_ns[row]))


def _by_mark(table: Any, settled: Settled) -> None:
    first, duplicate = receipts(table, settled.elsewhere)
    if not first.any() and not duplicate.any():
        return
    settled.doubtful |= first & flags(table["doubtful"])
    time_ns = numbers(table["time_ns"])
    if first.any():
        settled.span = int(time_ns[first].min()), int(time_ns[first].max())
    if not duplicate.any():
        return
    times = set(numbers(table["first_ns"])[duplicate].tolist())
    firsts = {key: row for row, key in named(table, first, "time_ns", times)}
    qos, topic, payload = numbers(table["qos"]), codes(table["topic"]), one(table["payload"])
    for row, key in named(table, duplicate, "first_ns", times):
        of = firsts.get(key)
        if of is None:
            settled.unresolved.add(key)
        if of is None or qos[of] != qos[row] or topic[of] != topic[row] or payload[of] != payload[row]:
            settled.doubtful[row] = True
        else:
            settled.keep[row] = False
            settled.copies[of] += 1
