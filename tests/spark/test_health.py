"""`device_health` and `reconciliation`: against a plain reference, and one batch against many."""

import itertools
import math
import random
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headwater_spark import health, tally
from headwater_spark.arrow import numbers
from headwater_spark.health import LOOKBACK, changed, extent, reconcile, refresh
from headwater_spark.tables import DEVICE_HEALTH, MESSAGES, RECONCILIATION
from headwater_spark.tally import HOUR_NS
from tests.rows import each_row

BEGIN_NS = 500_000 * HOUR_NS
PERCENTILES = ("latency_p50_ms", "latency_p90_ms", "latency_p99_ms")
Row = dict[str, Any]


def message(
    board: str | None, boot: int, seq: int, hour: float, *, latency_ms: float | None = None, copies: int = 1
) -> Row:
    time_ns = BEGIN_NS + int(hour * HOUR_NS)
    return {
        "time_ns": time_ns,
        "board": board,
        "boot": None if board is None else boot,
        "seq": None if board is None else seq,
        "sent_ns": None if latency_ms is None else time_ns - int(latency_ms * 1e6),
        "copies": copies,
        "possible_duplicate": False,
    }


def table_of(rows: list[Row]) -> Any:
    schema = pa.schema([MESSAGES.arrow.field(name) for name in tally.COLUMNS])
    return pa.Table.from_pylist(rows, schema)


def windows(*tables: Any) -> Any:
    """The rows of `device_health` of messages, of which each table has a part."""
    return health.windows(tally.merge([tally.tally(table) for table in tables]))


def hours(rows: list[Row]) -> Any:
    return np.unique(np.array([one["time_ns"] // HOUR_NS * HOUR_NS for one in rows], np.int64))


def empty(kind: Any) -> Any:
    return kind.arrow.empty_table()


def rows_of(table: Any, *names: str) -> list[Any]:
    found = [tuple(row[name] for name in names) for row in table.to_pylist()]
    return [row[0] for row in found] if len(names) == 1 else found


def reference(messages: list[Row]) -> list[Row]:
    """The rows of `device_health`, one message after the other."""
    groups: dict[tuple[str | None, int, int], list[Row]] = defaultdict(list)
    for one in messages:
        groups[one["board"], one["boot"] or 0, one["time_ns"] // HOUR_NS].append(one)
    result = []
    for (board, boot, hour), mine in groups.items():
        seqs = {one["seq"] for one in mine}
        recent = [
            (key[1], max(one["seq"] for one in other))
            for key, other in groups.items()
            if key[0] == board and board is not None and hour - LOOKBACK <= key[2] < hour
        ]
        same = [high for other, high in recent if other == boot]
        here = [key[1] for key in groups if key[0] == board and key[2] == hour]
        floor = max(same) if same else (min(seqs) - 1 if board is not None else 0)
        times = sorted((one["time_ns"] - one["sent_ns"]) / 1e6 for one in mine if one["sent_ns"] is not None)

        def at(share: float, times: list[float] = times) -> float | None:
            return times[max(0, math.ceil(share * len(times)) - 1)] if times else None

        named = board is not None
        result.append(
            {
                "time_ns": hour * HOUR_NS,
                "board": board,
                "boot": boot if named else None,
                "messages": len(mine),
                "copies": sum(one["copies"] for one in mine),
                "possible_duplicates": sum(one["possible_duplicate"] for one in mine),
                "sequences": len(seqs) if named else None,
                "first_seq": min(seqs) if named else None,
                "last_seq": max(seqs) if named else None,
                "missing": max(*seqs, floor) - floor - len(seqs) if named else None,
                "restarted": not same and min([*here, *(b for b, _ in recent)]) < boot if named else None,
                "first_ns": min(one["time_ns"] for one in mine),
                "last_ns": max(one["time_ns"] for one in mine),
                "timed": len(times),
                "latency_p50_ms": at(0.5),
                "latency_p90_ms": at(0.9),
                "latency_p99_ms": at(0.99),
                "latency_max_ms": at(1.0),
            }
        )
    return sorted(
        result, key=lambda row: (row["time_ns"], row["board"] is None, row["board"] or "", row["boot"] or 0)
    )


def random_messages(chance: random.Random, n: int) -> list[Row]:
    """Messages over some days: restarts, silence, gaps, late ones, several topics with one seq, no identity."""
    boards: list[str | None] = [None, "b1", "b2", "b3"]
    made: list[Row] = []
    hour, boot, seq = dict.fromkeys(boards, 0.0), dict.fromkeys(boards, 1), dict.fromkeys(boards, 0)
    for _ in range(n):
        board = chance.choice(boards)
        hour[board] += chance.choice([0.01, 0.2, 1, 1, 7]) if chance.random() < 0.97 else 30
        if chance.random() < 0.05:
            boot[board] += 1
            seq[board] = 0
        seq[board] += chance.choice([0, 1, 1, 1, 1, 4])
        late = chance.choice([0, 0, 0, 3, 40])
        one = message(
            board, boot[board], seq[board], hour[board] + late, latency_ms=chance.choice([None, 1.5, 80, -3])
        )
        made.append(one | {"copies": chance.choice([1, 1, 2]), "possible_duplicate": chance.random() < 0.1})
    return made


@each_row("seed", range(6))
def test_windows_are_those_of_a_plain_reference(seed: int) -> None:
    messages = random_messages(random.Random(seed), 150)
    found = windows(table_of(messages))
    assert found.schema.names == DEVICE_HEALTH.names
    names = [name for name in DEVICE_HEALTH.names if name != "time"]
    for row, wanted in zip(found.to_pylist(), reference(messages), strict=True):
        for name in PERCENTILES:
            near = wanted.pop(name)
            assert row.pop(name) == (near if near is None else pytest.approx(near, rel=0.006, abs=0.001))
        assert row == {name: row[name] if name == "time" else wanted[name] for name in row}
    assert {row.timestamp() * 10**9 for row in rows_of(found, "time")} == set(rows_of(found, "time_ns"))
    assert len(names) > len(PERCENTILES)


@each_row("seed", range(6))
def test_tallies_of_parts_add_up_to_that_of_the_whole(seed: int) -> None:
    chance = random.Random(seed)
    messages = random_messages(chance, 200)
    whole = tally.merge([tally.tally(table_of(messages))])
    chance.shuffle(messages)
    parts = []
    while messages:
        n = chance.randrange(1, 60)
        parts.append(tally.tally(table_of(messages[:n])))
        messages = messages[n:]
    while len(parts) > 1:
        n = chance.randrange(2, 5)
        parts = [*parts[n:], tally.merge(parts[:n])]
    keys = [("time_ns", "ascending"), ("boot", "ascending")]

    def rows(found: Any) -> list[Any]:
        return sorted(map(repr, found.sort_by(keys).to_pylist()))

    assert rows(parts[0]) == rows(whole)


@each_row("high", [50, 1 << 40, (1 << 63) - 1])
def test_ranges_of_seqs_are_joined(high: int) -> None:
    chance = random.Random(high)
    base = high - 50
    for _ in range(200):
        seqs = [chance.sample(range(base, high + 1), chance.randrange(1, 20)) for _ in range(3)]
        found = tally.merge(
            [tally.tally(table_of([message("b", 1, seq, 0) for seq in some])) for some in seqs]
        )
        (row,) = found.to_pylist()
        ranges = list(zip(row["firsts"], row["lasts"], strict=True))
        assert [seq for first, last in ranges for seq in range(first, last + 1)] == sorted(
            {seq for some in seqs for seq in some}
        )
        assert all(last + 1 < first for (_, last), (first, _) in itertools.pairwise(ranges))


class Batches:
    """Tables as a pipeline keeps them: the messages, and the two tables that follow them."""

    def __init__(self) -> None:
        self.messages: list[Row] = []
        self.health = empty(DEVICE_HEALTH)
        self.reconciliation = empty(RECONCILIATION)

    def change(self, messages: list[Row], new: list[Row]) -> None:
        """Replace the messages; `new` are those that were added, changed or removed."""
        self.messages = messages
        touched = hours(new)
        low, end = extent(touched)
        needed = self.health.filter(
            pa.compute.and_(
                pa.compute.greater_equal(self.health["time_ns"], low),
                pa.compute.less(self.health["time_ns"], end),
            )
        )
        mine = [one for one in messages if one["time_ns"] // HOUR_NS * HOUR_NS in set(touched.tolist())]
        after = refresh(needed, windows(table_of(mine)), touched)
        days = changed(needed, after)
        day = 24 * HOUR_NS
        # Only the days that have changed are written.
        kept = np.isin(np.array(rows_of(self.health, "time_ns"), np.int64) // day, days)
        whole = refresh(self.health, windows(table_of(mine)), touched)
        written = np.isin(np.array(rows_of(whole, "time_ns"), np.int64) // day, days)
        self.reconciliation = reconcile(self.reconciliation, needed, after)
        self.health = pa.concat_tables(
            [
                self.health.filter(pa.array(~kept)).cast(DEVICE_HEALTH.plain),
                whole.filter(pa.array(written)).cast(DEVICE_HEALTH.plain),
            ]
        )


@each_row("seed", range(6))
def test_many_batches_give_what_one_batch_gives(seed: int) -> None:
    chance = random.Random(seed)
    messages = random_messages(chance, 120)
    if seed % 2:
        chance.shuffle(messages)
    whole, parts = Batches(), Batches()
    whole.change(messages, messages)
    left = list(messages)
    while left:
        n = chance.randrange(1, 40)
        parts.change(parts.messages + left[:n], left[:n])
        left = left[n:]
        if chance.random() < 0.4:
            # A late duplicate of a stored message.
            k = chance.randrange(len(parts.messages))
            again = parts.messages[k] | {"copies": parts.messages[k]["copies"] + 1}
            whole.change([again if one is parts.messages[k] else one for one in whole.messages], [again])
            parts.change([*parts.messages[:k], again, *parts.messages[k + 1 :]], [again])
    assert sorted(map(repr, parts.health.to_pylist())) == sorted(map(repr, whole.health.to_pylist()))
    assert parts.reconciliation.to_pylist() == whole.reconciliation.to_pylist()
    for row in whole.reconciliation.to_pylist():
        mine = [one for one in whole.messages if (one["board"], one["boot"]) == (row["board"], row["boot"])]
        seqs = {one["seq"] for one in mine}
        # A seq on several topics counts in each hour of its receipts.
        assert row["stored"] == len({(one["seq"], one["time_ns"] // HOUR_NS) for one in mine})
        assert row["missing"] == max(seqs) - min(seqs) + 1 - row["stored"]
    assert {(one["board"], one["boot"]) for one in messages if one["board"]} == set(
        rows_of(whole.reconciliation, "board", "boot")
    )


def test_a_gap_counts_where_it_is_seen_and_is_taken_back_when_the_messages_arrive() -> None:
    found = windows(
        table_of(
            [
                *(message("b", 1, seq, 0) for seq in (0, 1, 2)),
                *(message("b", 1, seq, 1) for seq in (5, 6)),  # 3 and 4 are missing
                *(message("b", 1, seq, 2) for seq in (3, 7)),  # 3 is late
                *(message("b", 1, seq, 3) for seq in (10,)),
                *(message("b", 1, seq, 4 + LOOKBACK) for seq in (20,)),  # too long ago to compare
            ]
        )
    )
    assert rows_of(found, "missing") == [0, 2, -1, 2, 0]
    (row,) = reconcile(empty(RECONCILIATION), empty(DEVICE_HEALTH), found).to_pylist()
    assert (row["expected"], row["stored"], row["missing"]) == (21, 9, 12)


def test_the_least_and_the_greatest_seq_in_one_start() -> None:
    most = (1 << 63) - 1
    found = windows(table_of([message("b", 1, seq, 0) for seq in (0, most)]))
    (row,) = reconcile(empty(RECONCILIATION), empty(DEVICE_HEALTH), found).to_pylist()
    assert (row["first_seq"], row["last_seq"], row["expected"], row["stored"]) == (0, most, most, 2)


def test_a_restart_is_counted_once_also_when_messages_of_the_start_before_are_late() -> None:
    found = windows(
        table_of(
            [
                message("b", 1, 0, 0.1),
                message("b", 2, 0, 0.2),
                message("b", 1, 1, 0.3),
                message("b", 2, 1, 1),
                message("b", 1, 2, 1),
                message("b", 4, 0, 2),
                message("c", 7, 0, 2),
                message(None, 0, 0, 2),
            ]
        )
    )
    assert rows_of(found, "board", "boot", "restarted") == [
        ("b", 1, False),
        ("b", 2, True),
        ("b", 1, False),
        ("b", 2, False),
        ("b", 4, True),
        ("c", 7, False),
        (None, None, None),
    ]


def test_a_board_that_numbers_each_reading_over_several_topics_misses_nothing() -> None:
    found = windows(table_of([message("b", 1, seq // 2, 0) for seq in range(20)]))
    assert rows_of(found, "messages", "sequences", "missing") == [(20, 10, 0)]


def test_latencies_are_those_of_the_nearest_rank() -> None:
    many = [message("b", 1, seq, 0, latency_ms=seq) for seq in range(100)]
    random.Random(1).shuffle(many)
    (row,) = windows(table_of(many[:30]), table_of([*many[30:], message("b", 1, 100, 0)])).to_pylist()
    assert [row[name] for name in PERCENTILES] == pytest.approx([49, 89, 98], rel=0.006)
    assert row["latency_max_ms"] == 99
    assert row["timed"] == 100


def test_a_percentile_is_at_most_the_maximum() -> None:
    (row,) = windows(table_of([message("b", 1, 0, 0, latency_ms=1000.004)])).to_pylist()
    assert [row[name] for name in PERCENTILES] <= [row["latency_max_ms"]] * 3


def test_no_messages_give_no_rows() -> None:
    none = windows(table_of([]))
    assert none.num_rows == 0
    assert none.schema == DEVICE_HEALTH.arrow
    touched = hours([])
    assert extent(touched) == (0, 0)
    assert refresh(empty(DEVICE_HEALTH), none, touched).num_rows == 0
    assert changed(none, none) == []
    assert reconcile(empty(RECONCILIATION), none, none).num_rows == 0


def test_a_boards_record_stays_until_the_next_and_may_tell_of_a_start_without_messages() -> None:
    found = windows(table_of([message("b", 1, seq, 0) for seq in range(4)]))
    names = ["board", "boot", *health.RECORDED]

    def recorded(*rows: tuple[Any, ...]) -> Any:
        return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows])

    table = reconcile(empty(RECONCILIATION), none := empty(DEVICE_HEALTH), found, recorded(("b", 1, 5, 4, 1)))
    assert rows_of(table, *names, "stored") == [("b", 1, 5, 4, 1, 4)]
    table = reconcile(table, none, none, recorded(("b", 2, 9, 0, 0), ("a", 1, 1, 1, 1)))
    assert rows_of(table, *names, "stored", "missing") == [
        ("a", 1, 1, 1, 1, 0, 0),
        ("b", 1, 5, 4, 1, 4, 0),
        ("b", 2, 9, 0, 0, 0, 0),
    ]
    table = reconcile(table, none, none, recorded(("b", 1, 6, 5, 0)))
    assert rows_of(table, *names)[1] == ("b", 1, 6, 5, 0)
    assert table.schema == RECONCILIATION.arrow


def test_strings_may_be_of_any_reader() -> None:
    plain = table_of([message("b", 1, 0, 0)]).cast(
        pa.schema([MESSAGES.plain.field(name) for name in tally.COLUMNS])
    )
    large = plain.set_column(1, "board", plain["board"].cast(pa.large_string()))
    for one in (plain, large):
        found = windows(one)
        assert rows_of(found, "board") == ["b"]
        loose = found.cast(DEVICE_HEALTH.plain)
        assert refresh(loose, found, numbers(found["time_ns"])).equals(found)
        assert rows_of(reconcile(empty(RECONCILIATION), empty(DEVICE_HEALTH), loose), "stored") == [1]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 65])
def test_maxima_of_ranges(n: int) -> None:
    chance = np.random.default_rng(n)
    column = chance.integers(-50, 50, n)
    low = chance.integers(0, n, n)
    end = np.minimum(low + chance.integers(0, 30, n), n)
    wanted = [
        max(column[a:b].tolist(), default=health._NONE)
        for a, b in zip(low.tolist(), end.tolist(), strict=True)
    ]
    assert health._highest(column, low, end).tolist() == wanted
