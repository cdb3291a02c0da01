"""The data source of tables, without Spark's JVM: the files of one version, and rows in a span of time."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyspark.sql.types import LongType, StructType

from headwater_spark.growth import grow
from headwater_spark.options import OptionError
from headwater_spark.place import Place
from headwater_spark.table_source import TableSource
from headwater_spark.tables import TABLES
from tests.spark.logs import BEGIN_NS, InProcess, Rec, publish, reading, write_log

DAY = 86_400_000


def read(path: Path | Place, *columns: str, **options: str) -> list[Any]:
    source = TableSource({"path": str(path), **options})
    schema = source.schema()
    if columns:
        schema = StructType([schema[name] for name in columns])
    reader = source.reader(schema)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows = pa.Table.from_batches(batches).to_pylist() if batches else []
    return sorted((tuple(row.values()) for row in rows), key=repr)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    for k in range(3):
        records = [Rec(publish("t", reading("b", 1, 2 * k + n)), at=k * DAY + n) for n in (0, 1)]
        write_log(tmp_path / "log", [records])
        grow(InProcess(), [tmp_path / "log"], tmp_path / "out")
    return tmp_path / "out"


def test_it_reads_the_files_of_one_version(out: Path) -> None:
    assert read(out / "messages", "seq") == [(seq,) for seq in range(6)]
    assert read(out / "messages", "seq", version="2") == [(seq,) for seq in range(4)]
    (out / "messages/date=2026-09-21/orphan.parquet").write_bytes(b"of a crashed batch")
    assert len(read(out / "messages")) == 6


def test_rows_of_a_span_and_their_dates(out: Path) -> None:
    since, until = BEGIN_NS + DAY * 10**6 + 1, BEGIN_NS + 2 * DAY * 10**6 + 1
    found = read(out / "messages", "date", "seq", since=str(since), until=str(until))
    assert [(str(date), seq) for date, seq in found] == [("2026-09-22", 3), ("2026-09-23", 4)]


def test_every_table_has_the_schema_of_its_description(out: Path) -> None:
    for table in TABLES:
        found = TableSource({"path": str(out / table.name)}).schema()
        assert found.fieldNames() == [*table.names, "date"]


def test_a_column_that_a_file_does_not_have_is_null(out: Path) -> None:
    DeltaTable(str(out / "messages")).alter.add_columns([Field("later", PrimitiveType("long"))])
    assert isinstance(TableSource({"path": str(out / "messages")}).schema()["later"].dataType, LongType)
    assert read(out / "messages", "seq", "later")[0] == (0, None)


def test_a_version_or_column_that_the_table_does_not_have_is_named(out: Path) -> None:
    path = str(out / "messages")
    with pytest.raises(OptionError, match="has no version 77; its last one is 3"):
        TableSource({"path": path, "version": "77"}).schema()
    with pytest.raises(OptionError, match="has no column 'nope'; it has time, time_ns, topic"):
        TableSource({"path": path}).reader(StructType().add("nope", LongType()))
    with pytest.raises(OptionError, match=r"column topic of .* is string, not bigint"):
        TableSource({"path": path}).reader(StructType().add("topic", LongType()))


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "the path is missing"),
        ({"path": "/nothing/here"}, "/nothing/here is not a table"),
        (
            {"path": ".", "view": "frames"},
            "has no option 'view'; its options are path, version, since, until",
        ),
        ({"path": ".", "version": "x"}, "option version: 'x' is not a version of a table"),
        ({"path": ".", "version": "-1"}, "option version: '-1' is not a version of a table"),
        ({"paths": '["a", "b"]'}, "reads one table"),
        ({"path": ".", "since": "yesterday"}, "not a time such as"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        TableSource(options).schema()
