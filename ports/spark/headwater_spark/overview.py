"""Summarize tables in numbers: boards, gaps, rates, sensor values.

Counts come from `device_health` and `reconciliation`, which are small. Gaps, sensor values and rates below an hour need
`messages` and `telemetry`, of which the last DETAIL_ROWS messages are read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake.exceptions import TableNotFoundError

from headwater_host.capture.filesystem import Location
from headwater_host.progress import Display, Step
from headwater_spark import delta
from headwater_spark.arrow import Rows, numbers, valid
from headwater_spark.chart import Values
from headwater_spark.place import Place
from headwater_spark.tables import (
    DEVICE_HEALTH,
    LOGICAL_MESSAGES,
    MESSAGES,
    QUARANTINE,
    RECONCILIATION,
    TELEMETRY,
    Table,
)
from headwater_spark.tally import HOUR_NS

#: How messages without an identity, whose board is None, are named to a reader.
NO_BOARD = "(no identity)"
#: Messages of which gaps, rates and sensor values are computed.
DETAIL_ROWS = 2_000_000
#: Days before the last message that a summary covers by default.
DAYS = 7
#: Boards whose values and gaps are shown, values of one board, gaps of one board.
MAX_BOARDS = 12
MAX_METRICS = 12
MAX_GAPS = 20
_SLOTS = 150
_EVER = (1 << 63) - 1
_WIDTHS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 10800, 21600, 86400)


class UnknownBoardError(ValueError):
    """A board that was named has no message in the span."""


@dataclass(frozen=True)
class Options:
    """A summary's span in ns since 1970, and the boards whose values it shows; by default the last DAYS, and some."""

    since_ns: int | None = None
    until_ns: int | None = None
    boards: tuple[str, ...] = ()
    detail_rows: int = DETAIL_ROWS


@dataclass
class Slots:
    """Equal slots of time; slot k begins at `first_ns + k * width_ns`."""

    first_ns: int
    width_ns: int
    count: int

    @classmethod
    def over(cls, first_ns: int, last_ns: int) -> Slots:
        """Return at most _SLOTS slots of a round width from the first to the last time."""
        span = max(1, last_ns - first_ns)
        width = next((int(s * 10**9) for s in _WIDTHS_S if s * 10**9 * (_SLOTS - 1) >= span), 0)
        width = width or -(-span // (_SLOTS * 86400 * 10**9)) * 86400 * 10**9
        first = first_ns // width * width
        return cls(first, width, (last_ns - first) // width + 1)

    def of(self, time_ns: npt.NDArray[np.int64]) -> Rows:
        """Return the slot of each time; times outside belong to no slot and must not be given."""
        slots: Rows = (time_ns - self.first_ns) // self.width_ns
        return slots


@dataclass
class Board:
    """One board in the span, or (None) all messages without an identity.

    Latencies are in ms; `p99_ms` is the highest of an hour, `p50_ms` the middle hour's.
    """

    name: str | None
    messages: int = 0
    duplicates: int = 0
    possible_duplicates: int = 0
    starts: int = 0
    restarts: int = 0
    missing: int = 0
    first_ns: int = 0
    last_ns: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None
    #: From the boards' own records.
    acknowledged: int | None = None
    lost: int = 0
    #: Messages by QoS; None is FMQ's CONSUMERESP.
    qos: Counter[int | None] = field(default_factory=Counter)
    #: Messages per slot.
    rate: Values = field(default_factory=lambda: np.zeros(0))

    @property
    def interval_ns(self) -> float:
        """Return the mean time between messages."""
        return (self.last_ns - self.first_ns) / max(1, self.messages - 1)


@dataclass
class Gap:
    """Missing sequence numbers of one start, and the receive times of the messages around them.

    `usual_ns` is the median time between the board's messages.
    """

    boot: int
    first_seq: int
    last_seq: int
    before_ns: int
    after_ns: int
    usual_ns: float

    @property
    def count(self) -> int:
        """Return how many are missing."""
        return self.last_seq - self.first_seq + 1


@dataclass
class Series:
    """One value of one board over time; the arrays have a number per slot, NaN without values."""

    board: str | None
    metric: str
    mean: Values
    low: Values
    high: Values
    count: int
    last: float


@dataclass
class Overview:
    """The summary of some tables."""

    first_ns: int
    last_ns: int
    #: Begin of the span of gaps, rates and values.
    detail_ns: int
    slots: Slots
    #: Messages of each slot.
    rate: Values
    #: Slots of the sensor values.
    value_slots: Slots
    boards: list[Board] = field(default_factory=list)
    gaps: dict[str | None, list[Gap]] = field(default_factory=dict)
    series: dict[str | None, list[Series]] = field(default_factory=dict)
    #: Values that are not drawn: constants with their value, and names beyond MAX_METRICS.
    constants: dict[str | None, list[tuple[str, float]]] = field(default_factory=dict)
    omitted: dict[str | None, list[str]] = field(default_factory=dict)
    quarantine: list[tuple[str, str, int]] = field(default_factory=list)
    logical: Counter[str] = field(default_factory=Counter)
    incomplete: list[tuple[str, str]] = field(default_factory=list)

    @property
    def messages(self) -> int:
        """Return the number of messages."""
        return sum(board.messages for board in self.boards)


class Tables:
    """Read the tables in `out`, some rows at a time. `display` shows what takes long."""

    def __init__(self, out: Location | Place, display: Display | None = None):
        self.out = out
        self._display = display

    def dataset(self, table: Table) -> Any:
        """Return a table as a pyarrow dataset of its current files."""
        try:
            return delta.dataset(self.out, table.name)
        except TableNotFoundError as error:
            raise FileNotFoundError(f"{self.out} has no table {table.name}") from error

    def read(self, table: Table, columns: Sequence[str], where: Any = None) -> Any:
        """Return columns of the rows that match."""
        return self.dataset(table).to_table(columns=list(columns), filter=where)

    def batches(self, table: Table, columns: Sequence[str], where: Any = None) -> Iterator[Any]:
        """Yield record batches with columns of the rows that match."""
        found = self.dataset(table)
        rows = found.to_batches(columns=list(columns), filter=where, batch_readahead=2)
        if self._display is None:
            yield from rows
            return
        step, seen = Step(f"reading {table.name}", found.count_rows(filter=where)), 0
        with self._display.step(step, lambda: seen / max(1, step.rows)):
            for batch in rows:
                yield batch
                seen += batch.num_rows


def within(column: str, first_ns: int, last_ns: int) -> Any:
    """Return the condition that a time is in a span, the last ns included."""
    return (ds.field(column) >= first_ns) & (ds.field(column) <= last_ns)


def overview(
    out: Location | Place, options: Options | None = None, display: Display | None = None
) -> Overview:
    """Summarize the tables in `out`; `display` shows what takes long.

    Raises FileNotFoundError when a table does not exist, UnknownBoardError for a board without messages.
    """
    options = options or Options()
    tables = Tables(out, display)
    found = tables.read(DEVICE_HEALTH, DEVICE_HEALTH.names).cast(DEVICE_HEALTH.plain)
    until = _EVER if options.until_ns is None else max(options.until_ns - 1, -_EVER)
    last_ns = min(until, int(pc.max(found["last_ns"]).as_py() or 0))
    since = max(last_ns - DAYS * 24 * HOUR_NS, -_EVER) if options.since_ns is None else options.since_ns
    # Malformed frames may be older or newer than all messages.
    whole = (options.since_ns or 0, until)
    found = found.filter(
        pc.and_(pc.greater_equal(found["last_ns"], since), pc.less_equal(found["first_ns"], last_ns))
    )
    if not found.num_rows:
        none = Slots(since, HOUR_NS, 0)
        result = Overview(since, last_ns, since, none, np.zeros(0), none)
        _problems(tables, result, whole)
        return result
    first_ns = max(since, int(pc.min(found["first_ns"]).as_py()))
    last_ns = min(until, int(pc.max(found["last_ns"]).as_py()))
    boards = _boards(found)
    detail_ns = _detail(found, first_ns, options.detail_rows)
    slots, value_slots = Slots.over(first_ns, last_ns), Slots.over(detail_ns, last_ns)
    result = Overview(first_ns, last_ns, detail_ns, slots, np.zeros(0), value_slots)
    result.boards = list(boards.values())
    _records(tables, boards)
    _rates(tables, result, found)
    chosen = _chosen(result.boards, options.boards)
    _gaps(tables, result, [board for board in chosen if board.name is not None])
    _values(tables, result, [board.name for board in chosen])
    _problems(tables, result, whole)
    return result


def _boards(found: Any) -> dict[str | None, Board]:
    """Return the boards, those with problems first, messages without an identity last."""
    sums = ["messages", "copies", "possible_duplicates", "missing", "restarted"]
    table = found.set_column(
        found.column_names.index("board"), "board", found["board"].cast(pa.string())
    ).append_column("hours", pc.cast(found["restarted"], pa.int64()))
    table = table.set_column(table.column_names.index("restarted"), "restarted", table["hours"])
    grouped = table.group_by("board").aggregate(
        [
            *((name, "sum") for name in sums),
            ("boot", "count_distinct"),
            ("first_ns", "min"),
            ("last_ns", "max"),
            ("latency_p50_ms", "approximate_median"),
            ("latency_p99_ms", "max"),
        ]
    )
    boards = [
        Board(
            row["board"],
            messages=row["messages_sum"],
            duplicates=row["copies_sum"] - row["messages_sum"],
            possible_duplicates=row["possible_duplicates_sum"],
            starts=row["boot_count_distinct"],
            restarts=row["restarted_sum"] or 0,
            missing=max(0, row["missing_sum"] or 0),
            first_ns=row["first_ns_min"],
            last_ns=row["last_ns_max"],
            p50_ms=row["latency_p50_ms_approximate_median"],
            p99_ms=row["latency_p99_ms_max"],
        )
        for row in grouped.to_pylist()
    ]
    boards.sort(key=lambda board: (board.name is None, board.name))
    return {board.name: board for board in boards}


def _detail(found: Any, first_ns: int, rows: int) -> int:
    """Return the time from which on there are at most `rows` messages, by whole hours, at least the last hour."""
    hour, count = numbers(found["time_ns"]), numbers(found["messages"])
    hours, place = np.unique(hour, return_inverse=True)
    after = np.cumsum(np.bincount(place, count)[::-1])[::-1]
    fitting = hours[after <= rows]
    return max(first_ns, int(fitting[0] if len(fitting) else hours[-1]))


def _records(tables: Tables, boards: dict[str | None, Board]) -> None:
    """Add what the boards' own records tell."""
    columns = ["board", "acknowledged", "lost"]
    for row in tables.read(RECONCILIATION, columns, ds.field("sent").is_valid()).to_pylist():
        board = boards.get(row["board"])
        if board is not None:
            board.acknowledged = (board.acknowledged or 0) + row["acknowledged"]
            board.lost += row["lost"]


def _rates(tables: Tables, result: Overview, found: Any) -> None:
    """Count the messages of each slot and board: from `messages` if their slots are shorter than an hour."""
    slots = result.slots
    place = {board.name: k for k, board in enumerate(result.boards)}
    counts = np.zeros((len(place), slots.count))

    def add(names: Any, time_ns: Rows, weights: Rows) -> None:
        names = pc.dictionary_encode(names.cast(pa.string()), null_encoding="encode")
        rows = np.array([place.get(name, -1) for name in names.dictionary.to_pylist()], np.int64)
        row = rows[names.indices.to_numpy()] if len(rows) else np.zeros(0, np.int64)
        good = row >= 0
        slot = np.clip(slots.of(time_ns[good]), 0, slots.count - 1)
        np.add.at(counts, (row[good], slot), weights[good])

    if slots.width_ns < HOUR_NS and result.detail_ns == result.first_ns:
        span = within("time_ns", result.first_ns, result.last_ns)
        for batch in tables.batches(MESSAGES, ["board", "time_ns", "qos"], span):
            add(batch["board"], numbers(batch["time_ns"]), np.ones(batch.num_rows, np.int64))
            _count_qos(result.boards, place, batch)
    else:
        slots.width_ns = max(slots.width_ns, HOUR_NS)
        slots.first_ns = slots.first_ns // slots.width_ns * slots.width_ns
        slots.count = int((result.last_ns - slots.first_ns) // slots.width_ns + 1)
        counts = np.zeros((len(place), slots.count))
        table = found.combine_chunks()
        add(table["board"].combine_chunks(), numbers(table["time_ns"]), numbers(table["messages"]))
        span = within("time_ns", result.detail_ns, result.last_ns)
        for batch in tables.batches(MESSAGES, ["board", "qos"], span):
            _count_qos(result.boards, place, batch)
    for board, rate in zip(result.boards, counts, strict=True):
        board.rate = rate
    result.rate = counts.sum(axis=0)


def _count_qos(boards: list[Board], place: dict[str | None, int], batch: Any) -> None:
    table = pa.table({"board": batch["board"].cast(pa.string()), "qos": batch["qos"].cast(pa.int16())})
    for row in table.group_by(["board", "qos"]).aggregate([([], "count_all")]).to_pylist():
        if row["board"] in place:
            boards[place[row["board"]]].qos[row["qos"]] += row["count_all"]


def _shown(board: Board) -> str:
    return NO_BOARD if board.name is None else board.name


def _chosen(boards: Sequence[Board], names: Sequence[str]) -> list[Board]:
    """Return the named boards, or those with losses, then gaps, then the most messages."""
    if names:
        wanted = set(names)
        unknown = sorted(wanted - {_shown(board) for board in boards})
        if unknown:
            raise UnknownBoardError(f"{unknown[0]}: no message of this board is in the span")
        return [board for board in boards if _shown(board) in wanted]
    ranked = sorted(boards, key=lambda board: (-board.lost, -board.missing, -board.messages))
    best = {board.name for board in ranked[:MAX_BOARDS]}
    return [board for board in boards if board.name in best]


def _gaps(tables: Tables, result: Overview, boards: Sequence[Board]) -> None:
    """Find the missing sequence numbers of some boards, and explain them."""
    if not boards:
        return
    span = within("time_ns", result.detail_ns, result.last_ns)
    names = pa.array([board.name for board in boards], pa.string())
    columns = ["board", "boot", "seq", "time_ns"]
    table = tables.read(MESSAGES, columns, span & ds.field("board").isin(names))
    table = table.set_column(0, "board", table["board"].cast(pa.string()))
    for board in boards:
        mine = table.filter(pc.equal(table["board"], board.name))
        boot, seq, time_ns = (numbers(mine[name]) for name in ("boot", "seq", "time_ns"))
        order = np.lexsort((time_ns, seq, boot))
        boot, seq, time_ns = boot[order], seq[order], time_ns[order]
        step = np.diff(seq)
        at = np.flatnonzero((np.diff(boot) == 0) & (step > 1))
        usual = float(np.median(np.diff(np.sort(time_ns)))) if len(time_ns) > 1 else 0.0
        gaps = [
            Gap(
                int(boot[k]),
                int(seq[k]) + 1,
                int(seq[k + 1]) - 1,
                int(time_ns[k]),
                int(time_ns[k + 1]),
                usual,
            )
            for k in at[np.argsort(-step[at], kind="stable")][:MAX_GAPS].tolist()
        ]
        if gaps:
            result.gaps[board.name] = sorted(gaps, key=lambda gap: (gap.boot, gap.first_seq))
        if result.detail_ns == result.first_ns:
            # Exact, also after more than a day of silence.
            board.missing = int((step[at] - 1).sum())


def _values(tables: Tables, result: Overview, boards: Sequence[str | None]) -> None:
    """Average the sensor values of some boards per slot."""
    slots = result.value_slots
    sums: dict[tuple[str | None, str], Values] = {}
    last: dict[tuple[str | None, str], tuple[int, float]] = {}
    span = within("received_ns", result.detail_ns, result.last_ns)
    condition = span & ds.field("value_double").is_valid()
    named = [name for name in boards if name is not None]
    chosen = ds.field("board").isin(pa.array(named, pa.string()))
    if None in boards:
        chosen |= ds.field("board").is_null()
    columns = ["board", "metric", "time", "received_ns", "value_double"]
    for batch in tables.batches(TELEMETRY, columns, condition & chosen):
        time_ns = _value_times(batch, slots.first_ns)
        table = pa.table(
            {
                "board": batch["board"].cast(pa.string()),
                "metric": batch["metric"].cast(pa.string()),
                "slot": pa.array(slots.of(time_ns)),
                "time_ns": pa.array(time_ns),
                "value": batch["value_double"],
            }
        )
        table = table.filter(pc.is_finite(table["value"]))
        grouped = table.group_by(["board", "metric", "slot"], use_threads=False).aggregate(
            [("value", "sum"), ("value", "count"), ("value", "min"), ("value", "max")]
        )
        for row in grouped.to_pylist():
            cells = sums.get((row["board"], row["metric"]))
            if cells is None:
                cells = np.tile(np.array([0.0, 0.0, np.inf, -np.inf]), (slots.count, 1))
                sums[row["board"], row["metric"]] = cells
            cell = cells[row["slot"]]
            cell[0] += row["value_sum"]
            cell[1] += row["value_count"]
            cell[2] = min(cell[2], row["value_min"])
            cell[3] = max(cell[3], row["value_max"])
        latest = table.sort_by("time_ns").group_by(["board", "metric"], use_threads=False)
        for row in latest.aggregate([("time_ns", "last"), ("value", "last")]).to_pylist():
            key = row["board"], row["metric"]
            if key not in last or last[key][0] <= row["time_ns_last"]:
                last[key] = row["time_ns_last"], row["value_last"]
    drawn: dict[str | None, list[Series]] = defaultdict(list)
    for board, metric in sorted(sums, key=lambda key: (key[0] is None, key)):
        cells = sums[board, metric]
        total, count, low, high = cells.T
        if low.min() == high.max() and count.sum() > 1:
            result.constants.setdefault(board, []).append((metric, float(high.max())))
        elif len(drawn[board]) >= MAX_METRICS:
            result.omitted.setdefault(board, []).append(metric)
        else:
            with np.errstate(invalid="ignore"):
                # A sum of large values may exceed a double's range, their mean does not.
                mean = np.clip(total / count, low, high)
            nothing = count == 0
            low, high = np.where(nothing, np.nan, low), np.where(nothing, np.nan, high)
            end = last[board, metric][1]
            drawn[board].append(Series(board, metric, mean, low, high, int(count.sum()), end))
    result.series = {board: drawn[board] for board in boards if drawn[board]}


def _value_times(batch: Any, first_ns: int) -> Rows:
    """Return the times of telemetry rows: the send time, or the receive time if the board's clock is wrong."""
    received = numbers(batch["received_ns"])
    sent = numbers(pc.cast(batch["time"], pa.int64())) * 1000
    chosen: Rows = np.where(valid(batch["time"]) & (sent >= first_ns) & (sent <= received), sent, received)
    return chosen


def _problems(tables: Tables, result: Overview, span_ns: tuple[int, int]) -> None:
    """Count the quarantine and the logical messages of a span."""
    span = within("time_ns", *span_ns)
    rows = tables.read(QUARANTINE, ["kind", "reason"], span | ds.field("time_ns").is_null())
    rows = pa.table({name: rows[name].cast(pa.string()) for name in ("kind", "reason")})
    counts = rows.group_by(["kind", "reason"]).aggregate([([], "count_all")]).to_pylist()
    result.quarantine = sorted(
        ((row["kind"], row["reason"], row["count_all"]) for row in counts), key=lambda row: (-row[2], row)
    )
    columns = ["topic", "complete", "missing"]
    for batch in tables.batches(LOGICAL_MESSAGES, columns, span):
        result.logical["complete"] += pc.sum(batch["complete"]).as_py() or 0
        lacking = batch.filter(pc.invert(batch["complete"]))
        result.logical["incomplete"] += lacking.num_rows
        for row in lacking.slice(0, max(0, 10 - len(result.incomplete))).to_pylist():
            result.incomplete.append((row["topic"], row["missing"] or ""))
