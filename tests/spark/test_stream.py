"""``spark.readStream.format("headwater")``: each frame once, while the log grows, is pruned, and the query restarts."""

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow.dataset as ds
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from headwater_host.capture.log_id import LogIdError, log_id
from headwater_spark.options import OptionError, parse
from headwater_spark.positions import Position
from headwater_spark.source import LogReader, LogStream
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

    def __init__(self, *paths: Path, **options: Any):
        self.options = {name: str(value) for name, value in options.items()}
        self.load(*paths)
        self.committed: Row | None = None
        self.planned: tuple[Row, Row] | None = None
        self.restart()

    def load(self, *paths: Path) -> None:
        """Name the logs that the next start reads."""
        self.options["paths"] = json.dumps([str(path) for path in paths])

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


def row_of(log: Path, position: Position) -> Row:
    """A row of the view `positions`, which was the offset when a stream read one log."""
    return {"log": log_id(log), **position._asdict()}


def ends_of(log: Path, rows: int) -> list[Position]:
    """Where micro-batches of at most so many rows end."""
    query = Query(log, view="positions", maxRowsPerTrigger=rows)
    return [Position.from_json(row) for batch in query.batches() for row in batch]


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
            with pytest.raises(RuntimeError, match=f"{path.name}: removed before it was read"):
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
    name = log_id(log)
    log.rename(tmp_path / "old")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=f"the log {name}, which .* is gone: it is not in {log}. Name"):
            query.plan()
        grow(log, 5)


def test_a_stream_begins_at_a_time(tmp_path: Path) -> None:
    grow(tmp_path, *[10] * 9, segment_blocks=3)
    query = Query(tmp_path, since="1790000000035000000", maxRowsPerTrigger=10)
    assert query.stream.initialOffset()[log_id(tmp_path)]["sequence"] == 3
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
    for text in ("7", "[]", "{}", '{"log": ""}', "{", json.dumps([rows[0], rows[1]])):
        with pytest.raises(OptionError, match="is not a row of the view"):
            Query(tmp_path, startingPosition=text)


def three(tmp_path: Path, *blocks: int) -> list[Path]:
    """Three logs: one with these blocks, and two with one block of 10 frames."""
    logs = [tmp_path / name for name in ("a", "b", "c")]
    for log, some in zip(logs, (blocks, [10], [10]), strict=True):
        grow(log, *some, segment_blocks=3)
    return logs


def test_several_logs(tmp_path: Path) -> None:
    logs = three(tmp_path, *[10] * 9)
    query = Query(*logs, view="positions", maxRowsPerTrigger=40)
    found = list(query.batches())
    # 20 rows of the backlog, all of the others: what one log does not need is shared by the others.
    assert [[(row["log"], row["sequence"]) for row in rows] for rows in found] == [
        [(log_id(log), sequence) for log, sequence in zip(logs, (2, 1, 1), strict=True)],
        [(log_id(logs[0]), 6)],
        [(log_id(logs[0]), 9)],
    ]
    for limits in ({"maxRowsPerTrigger": 1}, {"maxBytesPerTrigger": 1}, {}):
        some = [texts(rows) for rows in Query(*logs, **limits).batches()]
        assert sorted(number for batch in some for number in batch) == list(range(110))
        # At least one block of each log that has one.
        assert [len(batch) for batch in some] == ([30, *[10] * 8] if limits else [110])
    assert list(query.batches()) == []
    grow(logs[1], 5)
    ((row,),) = query.batches()
    assert (row["log"], row["sequence"]) == (log_id(logs[1]), 2)


def test_a_log_with_a_backlog_does_not_starve_another(tmp_path: Path) -> None:
    logs = three(tmp_path, *[10] * 30)
    query = Query(*logs, maxRowsPerTrigger=30)
    for _ in range(5):
        assert query.plan()
        batch = texts(query.read())
        query.commit()
        assert len(batch) == 30
        assert len([number for number in batch if number >= 300]) == 20  # all that the others have
        for log in logs[1:]:
            grow(log, 10)


def test_a_log_may_move_and_others_may_be_added(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    grow(a, 10, 10)
    query = Query(a)
    assert [texts(rows) for rows in query.batches()] == [list(range(20))]
    moved = a.rename(tmp_path / "moved")
    query.load(b, moved)
    query.restart()
    assert list(query.batches()) == []  # b does not exist yet
    grow(moved, 5)
    grow(b, 10)
    # The micro-batch that finds a log has its beginning, the next one its frames.
    assert [texts(rows) for rows in query.batches()] == [list(range(20, 25)), list(range(25, 35))]
    query.load(b, moved, tmp_path / "c", tmp_path / "d")
    ends = []
    for name in ("c", "d"):
        grow(tmp_path / name, 10, 10, segment_blocks=1)
        ends.append(row_of(tmp_path / name, ends_of(tmp_path / name, 10)[0]))
    query.options["startingPosition"] = json.dumps(ends[:1])
    query.options["since"] = "1790000000040000000"
    query.restart()
    assert [texts(rows) for rows in query.batches()] == [[], list(range(45, 75))]


def test_a_log_that_is_gone(tmp_path: Path) -> None:
    logs = three(tmp_path, 10)
    query = Query(*logs)
    assert [len(rows) for rows in query.batches()] == [30]
    name = log_id(logs[1])
    away = logs[1].rename(tmp_path / "away")
    grow(logs[0], 5)
    for loads in (logs, logs[:1] + logs[2:]):
        query.load(*loads)
        query.restart()
        with pytest.raises(
            RuntimeError, match=f"the log {name}, which this query has read, is gone: it is not"
        ):
            query.plan()
    query.options["failOnDataLoss"] = "false"
    query.restart()
    assert [len(rows) for rows in query.batches()] == [5]
    # Its position stays.
    grow(away, 7)
    query.load(*logs, away)
    query.restart()
    assert [len(rows) for rows in query.batches()] == [7]


def test_copies_of_a_log_are_an_error(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    grow(a, 10)
    shutil.copytree(a, b)
    with pytest.raises(LogIdError, match=f"{a} and {b} are copies of one log: name one of them"):
        Query(a, b).plan()
    options = parse({"paths": json.dumps([str(a), str(b)])})
    with pytest.raises(LogIdError, match=f"{a} and {b} are copies of one log: name one of them"):
        LogReader(options, VIEWS["frames"].names).partitions()


def test_available_now_with_several_logs(tmp_path: Path) -> None:
    logs = three(tmp_path, *[10] * 5)
    query = Query(*logs[:2], tmp_path / "later", maxRowsPerTrigger=20)
    assert query.plan()
    query.read()
    query.commit()
    query.load(*logs, tmp_path / "later")
    query.restart()
    query.stream.prepareForTriggerAvailableNow()
    for log in (*logs, tmp_path / "later"):
        grow(log, 10)
    found = [number for rows in query.batches() for number in texts(rows)]
    assert sorted(found) == [*range(10, 50), *range(60, 70)]
    query.restart()
    query.stream.prepareForTriggerAvailableNow()
    assert sorted(number for rows in query.batches() for number in texts(rows)) == list(range(70, 110))


def test_damage_and_loss_in_several_logs_are_reported_once(tmp_path: Path) -> None:
    logs = three(tmp_path, *[10] * 6)
    at = [damage(segments(log)[0], 0, 70)[0] for log in logs[:2]]
    torn = segments(logs[2])[0]
    (logs[2] / "manifest.jsonl").unlink()
    data = torn.read_bytes()
    os.truncate(torn, len(data) - 1)
    query = Query(*logs, view="badblocks", maxRowsPerTrigger=20, failOnDataLoss=False)
    assert query.plan()
    found = [(row["kind"], row["offset"]) for row in query.read()]
    assert found == [("bad", offset) for offset in at]
    query.commit()
    segments(logs[0])[0].unlink()
    torn.write_bytes(data)
    (row,) = [row for rows in query.batches() for row in rows]
    assert row["reason"] == "blocks 1 to 2 were removed before they were read"
    query.options["failOnDataLoss"] = "true"
    query.committed = None
    query.restart()
    assert query.plan()
    segments(logs[0])[0].unlink()
    with pytest.raises(RuntimeError, match=f"{logs[0]}: blocks 3 to 3 were removed before they were read"):
        query.read()


def test_a_checkpoint_of_an_earlier_version(tmp_path: Path) -> None:
    """Its offsets are rows of the view `positions`, and {} is the beginning of a log."""
    log, other = tmp_path / "log", tmp_path / "other"
    grow(log, *[10] * 4, segment_blocks=3)
    one, *_, last = ends_of(log, 10)
    query = Query(log)
    query.committed = row_of(log, one)
    assert query.plan()
    assert texts(query.read()) == list(range(10, 40))
    # What the earlier version has planned is read as it was.
    for start, numbers in ({}, range(10)), (row_of(log, last), ()):
        query.planned = start, row_of(log, one)
        assert texts(query.read()) == list(numbers)
    query.committed = row_of(log, last)
    assert not query.plan()  # with an offset as another text, Spark would run a micro-batch
    grow(other, 10)
    query.load(log, other)
    query.restart()
    assert [len(rows) for rows in query.batches()] == [0, 10]


_KEYS = st.sampled_from(["log", "file", "offset", "sequence", "0" * 32, "f" * 32])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(_KEYS | st.text(max_size=5), some, max_size=4),
    max_leaves=8,
)
_FILE = "segment-00000000000000000000-0000000000000000.hwc"
_ROWS = st.fixed_dictionaries(
    {
        "file": st.just(_FILE) | _JSON,
        "offset": st.integers(-1, 2) | st.just(1 << 63) | _JSON,
        "sequence": st.integers(-1, 2) | _JSON,
    },
    optional={"log": st.just("0" * 32) | _JSON},
)
_OFFSETS = _JSON | _ROWS | st.lists(_ROWS, max_size=3) | st.dictionaries(_KEYS, _ROWS, max_size=3)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example("")
@given(_OFFSETS)
def test_damaged_offsets_are_refused(tmp_path: Path, offset: Any) -> None:
    query = Query(tmp_path / "log")
    errors = [
        error_of(lambda: query.stream.latestOffset(offset, ReadAllAvailable())),
        error_of(lambda: query.stream.partitions(offset, offset)),
    ]
    if offset in ({}, []):
        assert errors == ["", ""]
        return
    for error in filter(None, errors):
        assert re.match("the checkpoint is damaged: |the log [0-9a-f]{32}, which .* is gone", error)
        assert error.endswith("use another checkpoint directory")
    assert errors[0]


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


def run_query(spark: "SparkSession", folder: Path, *logs: Path, **options: Any) -> list[int]:
    """Run a query until it has what the logs have. Returns the rows of each micro-batch."""
    frames = spark.readStream.format("headwater").options(**options)
    if len(logs) > 1:
        frames = frames.option("paths", json.dumps([str(log) for log in logs]))
    query = (
        frames.load(*([] if len(logs) > 1 else [str(logs[0])]))
        .select("frame", "file", "offset")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "out"))
    )
    query.awaitTermination(300)
    assert query.exception() is None
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def test_a_query_of_spark_restarts_from_its_checkpoint(spark: "SparkSession", tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    run = partial(run_query, spark, tmp_path, log)
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


def test_spark_goes_on_from_a_checkpoint_of_an_earlier_version(spark: "SparkSession", tmp_path: Path) -> None:
    """A query over one log that was killed in its second micro-batch; now it reads another log as well."""
    log, other, checkpoint = tmp_path / "log", tmp_path / "other", tmp_path / "checkpoint"
    grow(log, *[10] * 4, segment_blocks=3)
    grow(other, 10)
    files = {"metadata": json.dumps({"id": str(uuid4())}), "commits/0": 'v1\n{"nextBatchWatermarkMs":0}'}
    for number, end in enumerate(ends_of(log, 10)[:2]):
        files[f"offsets/{number}"] = "\n".join(
            ["v1", '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}', json.dumps(row_of(log, end))]
        )
    for name, text in files.items():
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(text)
    assert run_query(spark, tmp_path, log, other) == [10, 20, 10]
    assert sorted(texts(ds.dataset(tmp_path / "out").to_table().to_pylist())) == list(range(10, 50))
    assert run_query(spark, tmp_path, other, log) == []
    last = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    (last.parent / f".{last.name}.crc").unlink()
    last.write_text("\n".join([*last.read_text().splitlines()[:2], '{"log": 7}']))
    with pytest.raises(StreamingQueryException, match=r"the checkpoint is damaged: \{'log': 7\}"):
        run_query(spark, tmp_path, log, other)


def test_a_query_of_spark_says_which_option_is_wrong(spark: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(Exception, match="option maxRowsPerTrigger: '0' is not between 1 and"):
        spark.readStream.format("headwater").option("maxRowsPerTrigger", 0).load(str(tmp_path))
