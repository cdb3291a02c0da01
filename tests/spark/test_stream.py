"""``spark.readStream.format("headwater")``: each frame once, while the log grows, is pruned, and the query restarts."""

import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from headwater_spark.options import OptionError, parse
from headwater_spark.source import LogStream
from headwater_spark.tables import VIEWS
from tests.spark.logs import Rec, damage, publish, write_log
from tests.spark.test_plan import segments
from tools.capture_log import LogWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]


def grow(directory: Path, *blocks: int, segment_blocks: int = 10**9) -> None:
    """Append blocks of so many frames, each frame its own text."""
    written = getattr(grow, "written", 0)
    made = []
    for count in blocks:
        made.append([Rec(publish("t", f"{written + k}"), at=written + k) for k in range(count)])
        written += count
    grow.written = written  # type: ignore[attr-defined]
    write_log(directory, made, segment_blocks=segment_blocks)


class Query:
    """A streaming query without Spark: its calls, its checkpoint, everything through JSON and pickle."""

    def __init__(self, path: Path, **options: Any):
        self.options = {"path": str(path), **{name: str(value) for name, value in options.items()}}
        self.committed: Row | None = None
        self.planned: tuple[Row, Row] | None = None
        self.restart()

    def restart(self) -> None:
        options = parse(self.options)
        self.stream = LogStream(options, VIEWS[options.view].names)

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Plan a micro-batch, as Spark does before it writes the offsets; False if there is nothing new."""
        start = self.stream.initialOffset() if self.committed is None else self.committed
        end = self.stream.latestOffset(start, limit or self.stream.getDefaultReadLimit())
        self.planned = json.loads(json.dumps([start, end]))
        return end != start

    def read(self) -> list[Row]:
        """Read the micro-batch that is planned, perhaps once more."""
        assert self.planned is not None
        parts = pickle.loads(pickle.dumps(self.stream.partitions(*self.planned)))
        stream: LogStream = pickle.loads(pickle.dumps(self.stream))
        return [row for part in parts for batch in stream.read(part) for row in batch.to_pylist()]

    def commit(self) -> None:
        assert self.planned is not None
        self.committed = self.planned[1]

    def batches(self, limit: ReadLimit | None = None) -> Iterator[list[Row]]:
        """The rows of each micro-batch until nothing is new."""
        while self.plan(limit):
            yield self.read()
            self.commit()


def texts(rows: list[Row]) -> list[int]:
    return [int(row["frame"][5:]) for row in rows]


@pytest.fixture(autouse=True)
def _numbers_begin_at_zero() -> None:
    grow.written = 0  # type: ignore[attr-defined]


def test_rows_per_micro_batch(tmp_path: Path) -> None:
    grow(tmp_path, *[10] * 9, segment_blocks=3)
    query = Query(tmp_path, maxRowsPerTrigger=40)
    found = [texts(rows) for rows in query.batches()]
    assert [len(batch) for batch in found] == [40, 40, 10]
    assert [number for batch in found for number in batch] == list(range(90))
    assert list(query.batches()) == []
    one_each = [len(rows) for rows in Query(tmp_path, maxRowsPerTrigger=1).batches()]
    assert one_each == [10] * 9


def test_bytes_per_micro_batch(tmp_path: Path) -> None:
    grow(tmp_path, *[10] * 9, segment_blocks=3)
    size = sum(path.stat().st_size for path in segments(tmp_path))
    query = Query(tmp_path, maxBytesPerTrigger=size // 3 + 100)
    assert [len(rows) for rows in query.batches()] == [30, 30, 30]
    assert query.stream.getDefaultReadLimit() == ReadMaxBytes(size // 3 + 100)
    assert Query(tmp_path, maxRowsPerTrigger=5).stream.getDefaultReadLimit() == ReadMaxRows(5)
    # Trigger.Once asks for everything.
    assert [len(rows) for rows in Query(tmp_path, maxRowsPerTrigger=5).batches(ReadAllAvailable())] == [90]


def test_available_now_ends_where_the_log_ended(tmp_path: Path) -> None:
    grow(tmp_path, *[10] * 4, segment_blocks=3)
    query = Query(tmp_path, maxRowsPerTrigger=10)
    query.stream.prepareForTriggerAvailableNow()
    grow(tmp_path, 10)
    assert [len(rows) for rows in query.batches()] == [10] * 4
    query.restart()
    query.stream.prepareForTriggerAvailableNow()
    assert [texts(rows) for rows in query.batches()] == [list(range(40, 50))]


def test_a_log_that_does_not_exist_yet(tmp_path: Path) -> None:
    log = tmp_path / "log"
    query = Query(log)
    assert list(query.batches()) == []
    assert query.stream.reportLatestOffset() == {}
    query.stream.prepareForTriggerAvailableNow()
    with LogWriter(log) as writer:
        assert list(query.batches()) == []
        writer.append(0, 1, "p", 0, 1, 4, publish("t", "0"))
        writer.flush()
        assert list(query.batches()) == []  # it came after the target
        query.restart()
        assert [texts(rows) for rows in query.batches()] == [[0]]


def test_a_torn_tail_is_read_when_it_is_complete(tmp_path: Path) -> None:
    grow(tmp_path, 5, 5)
    (tmp_path / "manifest.jsonl").unlink()
    (path,) = segments(tmp_path)
    data = path.read_bytes()
    query = Query(tmp_path)
    os.truncate(path, len(data) - 1)
    assert [texts(rows) for rows in query.batches()] == [list(range(5))]
    path.write_bytes(data)
    assert [texts(rows) for rows in query.batches()] == [list(range(5, 10))]


def test_a_micro_batch_is_read_again_as_it_was(tmp_path: Path) -> None:
    """The driver died after the offsets were written; meanwhile the log has grown, and its segment is sealed."""
    grow(tmp_path, 5, 5)
    query = Query(tmp_path, maxRowsPerTrigger=5)
    assert query.plan()
    first = query.read()
    query.restart()
    grow(tmp_path, 5, 5)
    assert query.read() == first
    query.commit()
    assert [texts(rows)[0] for rows in query.batches()] == [5, 10, 15]


def test_removed_segments_are_an_error_or_a_row_of_badblocks(tmp_path: Path) -> None:
    grow(tmp_path, *[10] * 9, segment_blocks=3)
    queries = [
        Query(tmp_path, maxRowsPerTrigger=10, failOnDataLoss=lose, view=view)
        for lose, view in ((True, "frames"), (False, "frames"), (False, "badblocks"))
    ]
    for query in queries:
        assert query.plan()
        query.read()
        query.commit()
        assert query.plan()
    segments(tmp_path)[0].unlink()
    strict, loose, bad = queries
    with pytest.raises(RuntimeError, match=r"blocks 1 to 1 were removed .* Set the option failOnDataLoss"):
        strict.read()
    assert loose.read() == []
    loose.commit()
    assert [texts(rows)[0] for rows in loose.batches()] == [30, 40, 50, 60, 70, 80]
    (row,) = bad.read()
    assert (row["kind"], row["reason"]) == ("missing", "blocks 1 to 1 were removed before they were read")
    bad.commit()
    (other,) = [row for rows in bad.batches() for row in rows]
    assert other["reason"] == "blocks 2 to 2 were removed before they were read"


def test_a_segment_that_is_removed_before_its_task_runs(tmp_path: Path) -> None:
    grow(tmp_path, 5, 5, segment_blocks=1)
    for lose in (True, False):
        query = Query(tmp_path, failOnDataLoss=lose, view="badblocks" if not lose else "frames")
        assert query.plan()
        assert query.planned is not None
        parts = query.stream.partitions(*query.planned)
        path = segments(tmp_path)[0]
        data = path.read_bytes()
        path.unlink()
        if lose:
            with pytest.raises(RuntimeError, match=f"{path.name} was removed before it was read"):
                [list(query.stream.read(part)) for part in parts]
        else:
            found = [row for part in parts for batch in query.stream.read(part) for row in batch.to_pylist()]
            assert [(row["kind"], row["length"]) for row in found] == [("missing", len(data))]
        path.write_bytes(data)


def test_damage_is_reported_once(tmp_path: Path) -> None:
    grow(tmp_path, 5, 5, 5, segment_blocks=2)
    at = damage(segments(tmp_path)[0], 1, 70)[1]
    query = Query(tmp_path, maxRowsPerTrigger=5, view="badblocks")
    found = [row for rows in query.batches() for row in rows]
    assert [(row["kind"], row["offset"]) for row in found] == [("bad", at)]
    assert [len(rows) for rows in Query(tmp_path).batches()] == [10]


def test_another_log_at_the_same_place_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log"
    grow(log, 5)
    query = Query(log)
    assert len(list(query.batches())) == 1
    log.rename(tmp_path / "old")
    with pytest.raises(FileNotFoundError, match="No such file or directory"):
        query.plan()
    grow(log, 5)
    with pytest.raises(RuntimeError, match="is not the log that this query has read"):
        query.plan()


def test_a_stream_begins_at_a_time(tmp_path: Path) -> None:
    grow(tmp_path, *[10] * 9, segment_blocks=3)
    query = Query(tmp_path, since="1790000000035000000", maxRowsPerTrigger=10)
    assert query.stream.initialOffset()["sequence"] == 3
    assert [number for rows in query.batches() for number in texts(rows)] == list(range(35, 90))
    late = Query(tmp_path, since="1790000001000000000")
    assert list(late.batches()) == []
    grow(tmp_path, 1000)
    assert [number for rows in late.batches() for number in texts(rows)] == list(range(1000, 1090))


def test_a_stream_begins_at_a_position(tmp_path: Path) -> None:
    grow(tmp_path, *[10] * 4, segment_blocks=3)
    positions = Query(tmp_path, view="positions", maxRowsPerTrigger=10)
    rows = [row for batch in positions.batches() for row in batch]
    assert [row["sequence"] for row in rows] == [1, 2, 3, 4]
    query = Query(tmp_path, startingPosition=json.dumps(rows[1]))
    assert [texts(batch) for batch in query.batches()] == [list(range(20, 40))]
    for text in ("7", "[]", "{}", '{"log": ""}', "{"):
        with pytest.raises(OptionError, match="is not a row of the view"):
            Query(tmp_path, startingPosition=text)


def test_a_query_of_spark_restarts_from_its_checkpoint(spark: "SparkSession", tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"

    def run(**options: Any) -> list[int]:
        """The rows of each micro-batch of a query."""
        frames = spark.readStream.format("headwater").options(**options).load(str(log))
        query = (
            frames.select("frame", "file", "offset")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(out))
        )
        query.awaitTermination(300)
        assert query.exception() is None
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]

    grow(log, *[10] * 6, segment_blocks=4)
    assert run(maxRowsPerTrigger=40) == [40, 20]
    grow(log, 10)
    assert run() == [10]
    listed = spark.read.parquet(str(out)).collect()
    assert sorted(int(row.frame[5:]) for row in listed) == list(range(70))
    segments(log)[0].unlink()
    assert run() == []
    grow(log, 10)
    path = segments(log)[-1]
    grow(log, 10)
    path.unlink()
    for path in segments(log)[:-1]:
        path.unlink()
    with pytest.raises(StreamingQueryException, match="blocks 7 to 7 were removed before they were read"):
        run()
    assert run(failOnDataLoss=False) == [10]
    assert ds.dataset(out, format="parquet").count_rows() == 80


def test_a_query_of_spark_says_which_option_is_wrong(spark: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(Exception, match="option maxRowsPerTrigger: '0' is not between 1 and"):
        spark.readStream.format("headwater").option("maxRowsPerTrigger", 0).load(str(tmp_path))
