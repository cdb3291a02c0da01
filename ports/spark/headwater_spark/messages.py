"""Find duplicates in one part of the log.

Rows are those of the table `messages` with the columns that the decision needs. The rules:

- **By message id**, for FMQ. Rows are one message if type, process, thread and time of their ids are equal
  (`origin`, `made_ns`). The first row in the log stays. A row with another payload is a conflict.
- **By identity**, for MQTT. Rows are one message if topic, board, boot and seq are equal. The first row stays,
  conflicts are as above.
- **By mark**, for MQTT rows without an identity. A row that the receiver marked as a duplicate repeats the row that
  the same peer sent under the same packet identifier at the marked time, if the log has that row with the same QoS,
  topic and payload. All other rows stay. A row is `doubtful` if its mark is uncertain, if it has DUP and no mark,
  or if the log does not have the row that it repeats.

A row repeats only a row whose receive time differs by at most the *horizon*. So a batch finds the rows that earlier
batches have stored in files of that time, and a log in one batch gives the same rows as in many.
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

from headwater_host.capture.format import DUPLICATE
from headwater_spark.arrow import Bools, Rows, codes, flags, null_codes, numbers, one, valid, values
from headwater_spark.tables import MESSAGES, Table, table

#: Default horizon: 7 days.
HORIZON_NS = 7 * 86_400 * 10**9
#: Columns of the table that the rules determine.
VERDICTS = ("copies", "possible_duplicate")
#: Columns that only the rules need.
RULED = table(
    "ruled",
    "columns that only the rules of duplicates need",
    """
    position   long     position in the log
    doubtful   boolean  whether the mark leaves the row uncertain
    first_ns   long     receive time of a duplicate's original
    origin     string*  maker of the FMQ message id
    made_ns    long     when
""",
)
#: Unsettled rows: the table's other columns and these.
UNSETTLED = tuple(one for one in MESSAGES.columns if one.name not in VERDICTS) + RULED.columns
COLUMNS: Any = Table("unsettled", "unsettled rows", UNSETTLED).arrow

Name = tuple[str, str, int]


class Key(NamedTuple):
    """The target of a mark: the first receipt of a message."""

    peer: str
    packet_id: int
    time_ns: int


@dataclass
class Settled:
    """The result for each row: kept, with the number of its frames, a conflict, a copy, or settled elsewhere."""

    keep: Bools
    copies: npt.NDArray[np.int32]
    conflict: Bools
    elsewhere: Bools
    #: Kept rows that may duplicate another row.
    doubtful: Bools
    #: Originals of duplicates that are not among these rows.
    unresolved: set[Key] = field(default_factory=set)
    #: Earliest and latest receive time of the rows that a mark may refer to, or None.
    span: tuple[int, int] | None = None


class Groups:
    """The rows with an identity that are settled here, by (topic, board, boot) or origin, in order of `seq`.

    For an origin, `seq` is `made_ns`.
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
        #: Numbers of origin groups follow the others.
        self.first_origin = len(self.topics) * len(self.boards) * len(self.boots)
        if len(self.origins):
            mine = of_origin[self.rows]
            group = np.where(mine, self.first_origin + origin[self.rows].astype(np.int64), group)
            seq = np.where(mine, numbers(table["made_ns"])[self.rows], seq)
        size = self.first_origin + len(self.origins)
        # Sorting 16-bit numbers takes linear time, and a board's messages are mostly in order of seq.
        order = np.argsort(group.astype(np.uint16) if size <= 0x10000 else group, kind="stable")
        if not _rises(group[order], seq[order]):
            order = np.lexsort((seq, group))
        self.rows = self.rows[order]
        self.group = group[order]
        self.seq = seq[order]

    def name(self, group: int) -> Name:
        """Return (topic, board, boot) of a group number, or ("", origin, 0). Topics are never empty."""
        if group >= self.first_origin:
            return "", self.origins[group - self.first_origin], 0
        rest, boot = divmod(group, len(self.boots))
        topic, board = divmod(rest, len(self.boards))
        return self.topics[topic], self.boards[board], self.boots[boot]

    def parts(self) -> Iterable[tuple[Name, slice]]:
        """Yield each group's name and its slice of `rows` and `seq`."""
        if not len(self.group):
            return
        edges = np.flatnonzero(np.diff(self.group)) + 1
        bounds = [0, *edges.tolist(), len(self.group)]
        for start, end in pairwise(bounds):
            yield self.name(int(self.group[start])), slice(start, end)


def _rises(group: Rows, seq: Rows) -> bool:
    return bool(np.all((seq[1:] >= seq[:-1]) | (group[1:] != group[:-1])))


def in_order(batches: Iterable[Any], schema: Any) -> Any:
    """Return record batches as one table with one chunk; missing columns are null."""
    batches = list(batches)
    lacking = {name for batch in batches for name in schema.names if name not in batch.schema.names}
    # Create columns that every batch lacks once.
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


def settle(table: Any, groups: Groups, elsewhere: Bools, horizon_ns: int = HORIZON_NS) -> Settled:
    """Apply the rules to rows with COLUMNS and their `groups`. Rows `elsewhere` are not settled here."""
    n = table.num_rows
    settled = Settled(
        ~elsewhere, np.ones(n, np.int32), np.zeros(n, np.bool_), elsewhere, np.zeros(n, np.bool_)
    )
    _by_identity(table, groups, settled, horizon_ns)
    _by_mark(table, settled, horizon_ns)
    return settled


def _by_identity(table: Any, groups: Groups, settled: Settled, horizon_ns: int) -> None:
    same = (groups.group[1:] == groups.group[:-1]) & (groups.seq[1:] == groups.seq[:-1])
    if not same.any():
        return
    # Rows with copies, by message and then in the order of the log.
    member = np.append(same, False) | np.append(False, same)
    message = np.cumsum(np.append(True, ~same))[member]
    rows = groups.rows[member]
    order = np.lexsort((numbers(table["position"])[rows], message))
    rows, message = rows[order], message[order]
    is_first = np.append(True, message[1:] != message[:-1])
    first = rows[is_first][np.cumsum(is_first) - 1]
    time_ns = numbers(table["time_ns"])
    far = np.abs(time_ns[rows] - time_ns[first]) > horizon_ns
    if far.any():
        some = np.flatnonzero(np.isin(message, message[far]))
        first[some] = _firsts_within(rows[some], message[some], time_ns, horizon_ns)
        is_first = first == rows
    payload = one(table["payload"])
    equal = pc.equal(payload.take(pa.array(rows)), payload.take(pa.array(first))).to_numpy(
        zero_copy_only=False
    )
    settled.keep[rows[~is_first]] = False
    settled.conflict[rows[~equal]] = True
    np.add.at(settled.copies, first[~is_first & equal], 1)


def _firsts_within(rows: Rows, message: Rows, time_ns: Rows, horizon_ns: int) -> Rows:
    """Return for each row the first row of its message that stays and is within the horizon; itself if none is."""
    stay: dict[int, list[tuple[int, int]]] = {}
    found: Rows = rows.copy()
    for k, (row, name, time) in enumerate(
        zip(rows.tolist(), message.tolist(), time_ns[rows].tolist(), strict=True)
    ):
        others = stay.setdefault(name, [])
        near = next((other for other, at in others if abs(time - at) <= horizon_ns), None)
        if near is None:
            others.append((row, time))
        else:
            found[k] = near
    return found


def receipts(table: Any, elsewhere: Bools) -> tuple[Bools, Bools]:
    """Return where rows are that only a mark distinguishes (MQTT, QoS 1 and 2, no identity): first receipts, and
    duplicates, which have a `first_ns`.
    """
    plain = (codes(table["board"]) < 0) & (codes(table["origin"]) < 0) & (numbers(table["qos"]) > 0)
    plain &= ~elsewhere
    marked = numbers(table["mark"]) == DUPLICATE
    # A stored row does not tell which row it repeats.
    return plain & ~marked, plain & marked & valid(table["first_ns"])


def named(table: Any, where: Bools, column: str, times: Collection[int]) -> Iterator[tuple[int, Key]]:
    """Yield the rows whose `column` (`time_ns`, or `first_ns` of duplicates) is in `times`, with their mark keys."""
    peers, peer = values(table["peer"]), codes(table["peer"])
    packet_id, time_ns = numbers(table["packet_id"]), numbers(table[column])
    for row in np.flatnonzero(where & np.isin(time_ns, list(times))).tolist():
        yield row, Key(peers[peer[row]], int(packet_id[row]), int(time_ns[row]))


def _by_mark(table: Any, settled: Settled, horizon_ns: int) -> None:
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
    position = numbers(table["position"])
    firsts: dict[Key, int] = {}
    for row, key in named(table, first, "time_ns", times):
        if key not in firsts or position[row] < position[firsts[key]]:
            firsts[key] = row
    qos, topic, payload = numbers(table["qos"]), codes(table["topic"]), one(table["payload"])
    for row, key in named(table, duplicate, "first_ns", times):
        is_near = abs(int(time_ns[row]) - key.time_ns) <= horizon_ns
        of = firsts.get(key) if is_near else None
        if of is None and is_near:
            settled.unresolved.add(key)
        if of is not None and position[of] > position[row]:
            of = None
        if of is None or qos[of] != qos[row] or topic[of] != topic[row] or payload[of] != payload[row]:
            settled.doubtful[row] = True
        else:
            settled.keep[row] = False
            settled.copies[of] += 1
