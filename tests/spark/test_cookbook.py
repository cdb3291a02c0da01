"""The queries of docs/sql-cookbook.md: DuckDB, Polars and Spark give the answers that plain Python finds."""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from headwater.mqtt import spec5
from headwater.mqtt.properties import Properties
from headwater_spark import delta
from headwater_spark.pipeline import run_on
from headwater_spark.tables import DERIVED, TABLES
from tests.rows import each_row
from tests.spark.logs import BEGIN_NS, InProcess, Rec, publish, reading, write_log
from tests.spark.mq_bytes import S, mqmde, segmented
from tools.toolchain import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = ROOT / "docs" / "sql-cookbook.md"
ENGINES = ("duckdb", "polars", "spark")
MINUTE = 60_000
HOUR_NS = 3600 * 10**9
Row = dict[str, Any]
Answer = list[tuple[Any, ...]]
#: Runs a query in an engine: the names of the columns, and the rows.
Ask = Callable[[str, str], tuple[list[str], Answer]]


class Recipe(NamedTuple):
    number: int
    title: str
    engines: tuple[str, ...]
    query: str


def recipes() -> list[Recipe]:
    sections = re.split(r"^## (\d+)\. (.*)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    found = []
    for number, title, text in zip(*(iter(sections),) * 3, strict=True):
        pattern = r"^```(?:sql|python)(?: +([a-z ]+))?\n(.*?)^```$"
        blocks = re.findall(pattern, text, re.MULTILINE | re.DOTALL)
        assert blocks, title
        found += [Recipe(int(number), title, tuple(on.split()) or ENGINES, query) for on, query in blocks]
    return found


RECIPES = recipes()


def firmware(version: str) -> bytes:
    properties = Properties(64)
    properties.add(spec5.CONTENT_TYPE, b"application/json")
    properties.add(spec5.USER_PROPERTY, b"firmware", version.encode())
    return bytes(properties.block)


def records() -> Iterator[Rec]:
    """Three days of four boards: gaps, restarts, late messages, duplicates, a silent board, MQTT 5.0, IBM MQ."""
    chance = random.Random(3)
    for k in range(200):
        at = k * 20 * MINUTE
        for board, boot, seq in (
            ("b1", 1, k),
            ("b2", 1 + k // 70, k % 70),
            ("b3", 1, k),
            ("b4", 1, k),
        ):
            if (board == "b3" and k > 150) or (board == "b2" and k % 50 in (20, 21)):
                continue
            late = chance.choice([40, 250, 90_000 if board == "b2" else 1000])
            values: Row = {
                "celsius": 20 + (9.5 if k == 77 else chance.random()),
                "t": (BEGIN_NS + (at - late) * 10**6) // 1000,
            }
            if k % 4 == 0:
                values["humidity"] = 40 + k / 10
            if board == "b4":
                values.pop("t")
            is_5 = board == "b1"
            block = firmware("1.0" if k < 100 else "1.1") if is_5 else b""
            frame = publish(f"{board}/data", reading(board, boot, seq, **values), block=block)
            rec = Rec(frame, at=at, version=5 if is_5 else 4)
            yield rec
            if k % 10 == 0:
                yield rec._replace(at=at + 500)
        yield Rec(publish("plain", str(k / 2)), at=at)
        if k % 40 == 0:
            yield Rec(b"\xf0\x00", at=at, peer="mqtt:a:1")
            yield Rec(b"\x36\x02\x00\x00", at=at + 1)
    whole, half = segmented(b"whole" * 20, 30, group=b"w" * 24), mqmde(b"half", S, group=b"h" * 24)
    for k, payload in enumerate((*whole, half, mqmde(b"more", S, offset=4, group=b"h" * 24))):
        yield Rec(publish("mq/file", payload), at=k)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cookbook")
    found = sorted(records(), key=lambda rec: rec.at)
    run_on(InProcess(), write_log(folder / "log", [found]), folder / "tables")
    return folder / "tables"


@pytest.fixture(scope="module")
def rows(out: Path) -> dict[str, list[Row]]:
    return {
        table.name: delta.dataset(out, table.name).to_table().to_pylist() for table in (*TABLES, *DERIVED)
    }


NAMES = [table.name for table in (*TABLES, *DERIVED)]


@pytest.fixture(scope="module")
def engines(out: Path, request: pytest.FixtureRequest) -> Ask:
    """Runs a query in an engine, which opens the tables as the page says."""
    database = duckdb.connect()
    for name in NAMES:
        database.register(name, DeltaTable(out / name).to_pyarrow_dataset())
    context = pl.SQLContext({name: pl.scan_delta(str(out / name)) for name in NAMES})
    opened: list[SparkSession] = []

    def ask(engine: str, query: str) -> tuple[list[str], Answer]:
        if engine == "duckdb":
            answer = database.sql(query)
            return answer.columns, answer.fetchall()
        if engine == "polars":
            found = context.execute(query, eager=True) if "SELECT" in query else printed(query, out)
            return found.columns, found.rows()
        spark: SparkSession = request.getfixturevalue("spark")
        if not opened:
            for name in NAMES:
                frame = spark.read.format("headwater.table").load(str(out / name))
                frame.createOrReplaceTempView(name)
            opened.append(spark)
        result = spark.sql(query)
        return result.columns, [tuple(row) for row in result.collect()]

    return ask


def printed(program: str, out: Path) -> pl.DataFrame:
    """What a program of the page prints."""
    found: list[pl.DataFrame] = []
    exec(program.replace('"tables/', f'"{out}/'), {"pl": pl, "print": found.append})
    (frame,) = found
    return frame


def plain(value: Any) -> Any:
    """A value whatever its engine made of it: sums of integers may be decimals."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=timezone.utc)
    if value is None or isinstance(value, str | bool):
        return value
    try:
        return round(float(value), 6)
    except TypeError:
        return str(value)


def starts(rows: dict[str, list[Row]]) -> dict[tuple[str, int], list[Row]]:
    found = defaultdict(list)
    for row in rows["messages"]:
        if row["board"] is not None:
            found[row["board"], row["boot"]].append(row)
    return found


def last_values(rows: dict[str, list[Row]]) -> Answer:
    last: dict[Any, Row] = {}
    for row in sorted(rows["telemetry"], key=lambda row: row["received_ns"]):
        last[row["board"], row["metric"]] = row
    return [(*key, row["value_double"], row["received_ns"]) for key, row in last.items()]


def gaps(rows: dict[str, list[Row]]) -> Answer:
    found = []
    for (board, boot), mine in starts(rows).items():
        times = {row["seq"]: row["time_ns"] for row in mine}
        seqs = sorted(times)
        for before, seq in pairwise(seqs):
            if seq - before > 1:
                found.append((board, boot, before + 1, seq - 1, times[before], times[seq]))
    return found


def losses(rows: dict[str, list[Row]]) -> Answer:
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for (board, _), mine in starts(rows).items():
        seqs = {row["seq"] for row in mine}
        span = max(seqs) - min(seqs) + 1
        found[board] = [a + b for a, b in zip(found[board], (1, span, span - len(seqs)), strict=True)]
    return [(board, *counts, 100 * counts[2] / counts[1]) for board, counts in found.items()]


def late(rows: dict[str, list[Row]]) -> Answer:
    return [
        (row["board"], row["boot"], row["seq"], row["topic"], (row["time_ns"] - row["sent_ns"]) / 1e9)
        for row in rows["messages"]
        if row["sent_ns"] is not None and row["time_ns"] - row["sent_ns"] > 60 * 10**9
    ]


def per_hour(rows: dict[str, list[Row]]) -> Answer:
    counts = Counter(row["time_ns"] // HOUR_NS * HOUR_NS for row in rows["messages"])
    return [(hour, count, count / 3600) for hour, count in counts.items()]


def silent(rows: dict[str, list[Row]]) -> Answer:
    last: Counter[str] = Counter()
    for row in rows["messages"]:
        if row["board"] is not None:
            last[row["board"]] = max(last[row["board"]], row["time_ns"])
    return [(board, time) for board, time in last.items() if time < max(last.values()) - HOUR_NS]


def duplicates(rows: dict[str, list[Row]]) -> Answer:
    frames: Counter[str] = Counter()
    messages: Counter[str] = Counter()
    for mine in starts(rows).values():
        frames[mine[0]["board"]] += sum(row["copies"] for row in mine)
        messages[mine[0]["board"]] += len(mine)
    return [(b, frames[b] - messages[b], 100 * (1 - messages[b] / frames[b])) for b in frames]


def percentiles(rows: dict[str, list[Row]]) -> Answer:
    found = defaultdict(list)
    for row in rows["messages"]:
        if row["sent_ns"] is not None:
            found[row["board"]].append((row["time_ns"] - row["sent_ns"]) / 1e6)
    return [
        (board, *(sorted(ms)[-(-int(share * 100) * len(ms) // 100) - 1] for share in (0.5, 0.99)))
        for board, ms in found.items()
    ]


def daily(rows: dict[str, list[Row]]) -> Answer:
    found = defaultdict(list)
    for row in rows["telemetry"]:
        if row["metric"] == "celsius":
            day = datetime.fromtimestamp(row["received_ns"] // 10**9, timezone.utc).date()
            found[row["board"], day].append(row["value_double"])
    return [(*key, min(v), sum(v) / len(v), max(v), len(v)) for key, v in found.items()]


def restarts(rows: dict[str, list[Row]]) -> Answer:
    found = {key: min(row["time_ns"] for row in mine) for key, mine in starts(rows).items()}
    return [(board, boot, time) for (board, boot), time in found.items() if (board, boot - 1) in found]


def incomplete(rows: dict[str, list[Row]]) -> Answer:
    found = []
    for row in rows["logical_messages"]:
        span = range(row["time_ns"], row["last_ns"] + 1)
        parts = [m for m in rows["messages"] if m["topic"] == row["topic"] and m["time_ns"] in span]
        if not row["complete"]:
            found.append((row["topic"], row["seq"], row["missing"], len(parts)))
    return found


def refused(rows: dict[str, list[Row]]) -> Answer:
    found = defaultdict(list)
    for row in rows["quarantine"]:
        found[row["kind"], row["reason"], row["peer"]].append(row["time_ns"])
    return [(*key, len(times), min(times), max(times)) for key, times in found.items()]


def pairs(rows: dict[str, list[Row]]) -> Answer:
    found: dict[Any, dict[str, float]] = defaultdict(dict)
    for row in rows["telemetry"]:
        if row["board"] is not None:
            found[row["board"], row["boot"], row["seq"]][row["metric"]] = row["value_double"]
    both = {key: values for key, values in found.items() if {"celsius", "humidity"} <= values.keys()}
    return [(*key, values["celsius"], values["humidity"]) for key, values in both.items()]


def jumps(rows: dict[str, list[Row]]) -> Answer:
    found = defaultdict(list)
    for row in rows["telemetry"]:
        if row["board"] is not None and row["metric"] == "celsius":
            found[row["board"]].append((row["boot"], row["seq"], row["value_double"]))
    return [
        (board, boot, seq, before, value)
        for board, mine in found.items()
        for (_, _, before), (boot, seq, value) in pairwise(sorted(mine))
        if abs(value - before) > 5
    ]


def firmwares(rows: dict[str, list[Row]]) -> Answer:
    counts = Counter(
        (row["board"], dict(row["user_properties"])["firmware"], row["content_type"])
        for row in rows["messages"]
        if row["user_properties"] and "firmware" in dict(row["user_properties"])
    )
    return [(*key, count) for key, count in counts.items()]


EXPECTED = [
    last_values,
    gaps,
    losses,
    late,
    per_hour,
    silent,
    duplicates,
    percentiles,
    daily,
    restarts,
    incomplete,
    refused,
    pairs,
    jumps,
    firmwares,
]


def same(answer: Answer, wanted: Answer) -> bool:
    return sorted(repr([plain(v) for v in row]) for row in answer) == sorted(
        repr([plain(v) for v in row]) for row in wanted
    )


def in_order(columns: list[str], answer: Answer, query: str) -> bool:
    """Whether rows are in the order of the query. Engines differ in where they put nulls."""
    sql = re.search(r"ORDER BY ([^()]*)$", query)
    names = sql[1].split(", ") if sql else re.findall(r'"(\w+)"', query[query.index(".sort(") :])
    keys = [(name.split()[0].rpartition(".")[2], name.split()[-1] == "DESC") for name in names]
    for one, other in pairwise(answer):
        for name, descends in keys:
            a, b = (row[columns.index(name)] for row in (one, other))
            if a != b:
                if a is not None and b is not None and (a > b) != descends:
                    return False
                break
    return True


def test_there_is_an_answer_for_each_question() -> None:
    assert sorted({recipe.number for recipe in RECIPES}) == list(range(1, len(EXPECTED) + 1))
    for number in range(1, len(EXPECTED) + 1):
        found = [engine for recipe in RECIPES if recipe.number == number for engine in recipe.engines]
        assert sorted(found) == sorted(ENGINES)


def test_the_order_is_checked() -> None:
    rows: Answer = [(None, 2, 1), ("a", 2, 1), ("a", 1, 2), ("a", 1, 3)]
    assert in_order(["b", "n", "k"], rows, "SELECT 1\nORDER BY t.b, n DESC, k")
    assert in_order(["b", "n", "k"], rows, 'f(b)\n.sort("b")')
    assert not in_order(["b", "n", "k"], rows, "SELECT 1\nORDER BY b, n")
    assert not in_order(["b", "n", "k"], rows[::-1], "SELECT 1\nORDER BY k")


@each_row("recipe", RECIPES, ids=lambda recipe: recipe.title)
def test_duckdb_and_polars(recipe: Recipe, engines: Ask, rows: dict[str, list[Row]]) -> None:
    wanted = EXPECTED[recipe.number - 1](rows)
    assert wanted
    for engine in recipe.engines:
        if engine != "spark" and ("SELECT" in recipe.query or hasattr(pl, "Map")):  # Python 3.10 has Polars 1
            columns, answer = engines(engine, recipe.query)
            assert same(answer, wanted), (engine, answer[:3], wanted[:3])
            assert in_order(columns, answer, recipe.query), (engine, answer)


def test_spark(engines: Ask, rows: dict[str, list[Row]]) -> None:
    wrong = []
    for recipe in RECIPES:
        if "spark" in recipe.engines:
            columns, answer = engines("spark", recipe.query)
            wanted = EXPECTED[recipe.number - 1](rows)
            if not (same(answer, wanted) and in_order(columns, answer, recipe.query)):
                wrong.append((recipe.title, answer[:3], wanted[:3]))
    assert not wrong
