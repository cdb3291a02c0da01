"""``spark.read.format("headwater")``: schema, rows, partitions, damage, options."""

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from headwater_host.capture import CaptureReader
from headwater_host.capture.log_id import log_id
from headwater_host.mqtt_properties import encode
from headwater_spark.tables import BADBLOCKS, DECODED, FRAMES, POSITIONS
from tests.spark.fmq_bytes import NOW_NS, consumeresp, fmq_publish, message_id
from tests.spark.fmq_bytes import frame as built
from tests.spark.fmq_bytes import value as fmq_value
from tests.spark.logs import BEGIN_NS, Rec, ack, damage, publish, reading, write_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.needs_java


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 records in 30 blocks and 4 segments, good and bad ones, of two peers and both directions."""
    frames = [
        publish("t/é", reading("b1", 1, 5), qos=1, packet_id=7, retain=True),
        publish("t", b"\x00\xff"),
        publish("t", "x", qos=2, dup=True, packet_id=65535),
        ack(4, 7),
        b"\x36\x05\x00\x01a\x00\x01",
        b"\x30\x07\x00\x05a",
        b"",
        b"\xc0\x00",
    ]
    records = [
        Rec(
            frames[k % len(frames)],
            at=k,
            connection=k % 3,
            peer=f"peer{k % 2}",
            direction=k % 2,
            protocol=3 if k % 50 == 3 else 1,
            version=9 if k % 50 == 7 else 4,
            mark=k % 7 % 4,
            first=k // 2,
        )
        for k in range(600)
    ]
    directory = tmp_path_factory.mktemp("capture")
    return write_log(directory, [records[at : at + 20] for at in range(0, 600, 20)], segment_blocks=8)


def load(spark: "SparkSession", path: Path, schema: str | None = None, **options: Any) -> "DataFrame":
    reader = spark.read.format("headwater").options(**options)
    return (reader.schema(schema) if schema else reader).load(str(path))


def test_schema_and_rows(spark: "SparkSession", log: Path) -> None:
    frames = load(spark, log)
    assert ", ".join(f"{name} {type_}" for name, type_ in frames.dtypes) == (
        "time timestamp, time_ns bigint, connection bigint, peer string, direction smallint, protocol smallint, "
        "version smallint, mark smallint, first_ns bigint, frame binary, file string, offset bigint, record int"
    )
    rows = frames.collect()
    assert len(rows) == 600
    for row, record in zip(rows, CaptureReader(log).records(), strict=True):
        assert row.time.timestamp() == pytest.approx(record.time_ns / 1e9, abs=1e-6)
        assert bytes(row.frame) == record.frame
        assert (row.time_ns, row.connection, row.peer, row.direction, row.protocol, row.version) == record[:6]
        assert (row.mark, row.first_ns) == (record.mark, record.first_ns or None)
    assert rows[0].time_ns == BEGIN_NS
    reader = CaptureReader(log)
    places = [(info.file, info.offset, k) for info in reader.infos() for k in range(info.header.records)]
    assert [(row.file, row.offset, row.record) for row in rows] == places


@pytest.mark.parametrize("partition_bytes", ["1", "3k", "1g"])
def test_every_record_once_however_it_is_cut(spark: "SparkSession", log: Path, partition_bytes: str) -> None:
    frames = load(spark, log, "time_ns long", partitionBytes=partition_bytes, batchRows=7)
    assert frames.rdd.getNumPartitions() == {"1": 30, "1g": 1}.get(
        partition_bytes, frames.rdd.getNumPartitions()
    )
    assert [row.time_ns for row in frames.collect()] == [BEGIN_NS + k * 10**6 for k in range(600)]


def test_there_are_as_many_partitions_as_asked_for(spark: "SparkSession", log: Path) -> None:
    assert load(spark, log, minPartitions=5).rdd.getNumPartitions() == 5


def test_a_span_of_time(spark: "SparkSession", log: Path) -> None:
    times = sorted(row.time_ns for row in load(spark, log).select("time_ns").collect())
    since, until = times[100], times[201]
    text = f"{datetime.fromtimestamp(until / 1e9, timezone.utc):%Y-%m-%dT%H:%M:%S.%f}Z"
    exact = datetime.fromisoformat(text.replace("Z", "+00:00"))
    limit = round((exact - datetime(1970, 1, 1, tzinfo=timezone.utc)).total_seconds() * 1e6) * 1000
    for view in ("frames", "decoded"):
        found = load(spark, log, view=view, since=str(since), until=text, partitionBytes="2000")
        wanted = [one for one in times if since <= one < limit]
        assert sorted(row.time_ns for row in found.select("time_ns").collect()) == wanted
    with pytest.raises(PySparkException, match="option until: 'noon' is not a time such as"):
        load(spark, log, until="noon").collect()


_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_MIDDLE_NS = BEGIN_NS + 300 * 10**6
_MIDDLE = f"timestamp '{datetime.fromtimestamp(_MIDDLE_NS / 1e9, timezone.utc):%Y-%m-%d %H:%M:%S.%f}'"


@pytest.mark.parametrize(
    "where, rows, partitions",
    [
        (f"time >= {_MIDDLE}", 300, 15),
        (f"time > {_MIDDLE}", 299, 15),
        (f"time < {_MIDDLE}", 300, 15),
        (f"time <= {_MIDDLE}", 301, 16),
        (f"time = {_MIDDLE}", 1, 1),
        (f"time <=> {_MIDDLE}", 1, 1),
        (f"time_ns = {_MIDDLE_NS}", 1, 1),
        (f"time_ns > {_MIDDLE_NS} and time <= {_MIDDLE}", 0, 1),
        (f"{_MIDDLE_NS} <= time_ns and time_ns < {_MIDDLE_NS + 10**8} and connection = 1", 33, 5),
        (f"time_ns > {_MIDDLE_NS + 10**12}", 0, 1),
        # Nothing to skip.
        (f"time_ns <> {_MIDDLE_NS} and peer = 'peer0'", 299, 30),
        (f"time_ns < {_MIDDLE_NS} or connection = 1", 400, 30),
    ],
)
def test_a_filter_on_the_time_skips_blocks(
    spark: "SparkSession", log: Path, where: str, rows: int, partitions: int
) -> None:
    def read() -> "DataFrame":
        return load(
            spark, log, "time timestamp, time_ns long, peer string, connection long", partitionBytes="1"
        ).where(where)

    plain = read()
    assert plain.rdd.getNumPartitions() == 30
    wanted = plain.collect()
    assert len(wanted) == rows
    spark.conf.set(_PUSHDOWN, "true")
    try:
        pushed = read()
        assert pushed.rdd.getNumPartitions() == partitions
        assert pushed.collect() == wanted
        assert load(spark, log, "time_ns long").count() == 600
        assert load(spark, log, view="positions").count() == 1
    finally:
        spark.conf.unset(_PUSHDOWN)


def test_only_the_columns_of_a_schema_are_read(spark: "SparkSession", log: Path) -> None:
    frames = load(spark, log, "record int, frame binary")
    assert frames.columns == ["record", "frame"]
    assert [row.record for row in frames.limit(3).collect()] == [0, 1, 2]


@pytest.mark.parametrize(
    "schema, message",
    [
        ("frame string", "column frame of the view frames is binary, not string"),
        ("topic string", "the view frames has no column 'topic'; it has time, time_ns"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(
    spark: "SparkSession", log: Path, schema: str, message: str
) -> None:
    with pytest.raises(Exception, match=message):
        load(spark, log, schema).collect()


def test_options_are_checked(spark: "SparkSession", log: Path) -> None:
    with pytest.raises(Exception, match="has no option 'partitonbytes'"):
        load(spark, log, partitonBytes="1").collect()
    with pytest.raises(Exception, match="option batchRows: 'many' is not a whole number"):
        load(spark, log, batchRows="many").collect()


def test_a_directory_without_a_log(spark: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no capture log in"):
        load(spark, tmp_path).collect()


def test_a_log_without_records(spark: "SparkSession", tmp_path: Path) -> None:
    write_log(tmp_path, [])
    for view in (FRAMES, DECODED, BADBLOCKS, POSITIONS):
        frames = load(spark, tmp_path, view=view.name)
        assert frames.columns == view.names
        assert frames.count() == 0


def test_the_position_of_the_end(spark: "SparkSession", log: Path) -> None:
    (row,) = load(spark, log, view="positions").collect()
    last = list(CaptureReader(log).infos())[-1]
    assert tuple(row) == (log_id(log), last.file, last.end, 30)


def test_decoded(spark: "SparkSession", log: Path) -> None:
    rows = load(spark, log, view="decoded").collect()
    assert len(rows) == 600
    publish_ = {"kind": 3, "reason": None, "error_at": None}
    wanted: list[dict[str, Any]] = [
        publish_ | {"dup": False, "qos": 1, "retain": True, "packet_id": 7, "topic": "t/é"},
        publish_
        | {"dup": False, "qos": 0, "retain": False, "packet_id": None, "topic": "t", "payload": b"\x00\xff"},
        publish_
        | {"dup": True, "qos": 2, "retain": False, "packet_id": 65535, "topic": "t", "payload": b"x"},
        {"kind": 4, "topic": None, "payload": None, "reason": None, "dup": None, "qos": None},
        {"kind": 3, "topic": None, "payload": None, "reason": "bad_qos", "error_at": 0, "qos": None},
        {"kind": 3, "topic": None, "payload": None, "reason": "truncated", "error_at": 5, "retain": None},
        {"kind": 0, "topic": None, "payload": None, "reason": "truncated", "error_at": 0, "packet_id": None},
        {"kind": 12, "topic": None, "payload": None, "reason": None, "error_at": None},
    ]
    for k, row in enumerate(rows):
        found = row.asDict()
        for name, value in wanted[k % 8].items():
            if row.protocol == 3 or row.version == 9:
                value = None
            other = found[name]
            assert (bytes(other) if isinstance(other, bytearray) else other) == value, (k, name)


def test_decoded_without_other_protocols(spark: "SparkSession", tmp_path: Path) -> None:
    write_log(tmp_path, [[Rec(publish("t", "x"))]])
    (row,) = load(
        spark, tmp_path, view="decoded", schema="topic string, payload binary, dup boolean"
    ).collect()
    assert (row.topic, bytes(row.payload), row.dup) == ("t", b"x", False)


def test_decoded_frames_of_mqtt_5_0(spark: "SparkSession", tmp_path: Path) -> None:
    block = b"\x05\x02\x00\x00\x00\x3c"
    records = [
        Rec(publish("a", "x", qos=1, packet_id=5, block=block), at=0, version=5),
        Rec(publish("a", "x"), at=1),
        Rec(publish("", "x", block=b"\x03\x23\x00\x01"), at=2, version=5),
        Rec(b"\xf0\x00", at=3, version=5),
    ]
    write_log(tmp_path, [records])
    names = ("version", "kind", "topic", "qos", "packet_id", "reason", "error_at")
    found = load(spark, tmp_path, view="decoded").collect()
    assert [tuple(row[name] for name in names) for row in found] == [
        (5, 3, "a", 1, 5, None, None),
        (4, 3, "a", 0, None, None, None),
        (5, 3, None, None, None, "bad_topic_alias", 4),
        (5, 15, None, None, None, None, None),
    ]


def test_properties_of_mqtt_5_0(spark: "SparkSession", tmp_path: Path) -> None:
    block = encode(
        {"content_type": "text/plain", "user_property": [("unit", "K")], "correlation_data": b"\0"}, 8
    )
    records = [
        Rec(publish("a", "x", block=block), at=0, version=5),
        Rec(publish("a", "x"), at=1),
        Rec(publish("a", "y", block=b"\0"), at=2, version=5),
    ]
    write_log(tmp_path, [records])
    table = load(spark, tmp_path, view="decoded")
    table.createOrReplaceTempView("decoded")
    query = (
        "SELECT content_type, user_properties['unit'], hex(correlation_data), message_expiry, response_topic"
    )
    found = [tuple(row) for row in spark.sql(query + " FROM decoded ORDER BY time_ns").collect()]
    assert found == [("text/plain", "K", "00", None, None), (None,) * 5, (None,) * 5]


def test_decoded_frames_of_two_protocols_stay_in_order(spark: "SparkSession", tmp_path: Path) -> None:
    ident = message_id(process=7, thread=3)
    odd = message_id(process=1 << 40)
    records = [
        Rec(fmq_publish("a", b"x", ident, qos=1, tags=("raw",)), at=0, protocol=2, version=0),
        Rec(publish("b", "y", qos=1, packet_id=5), at=1),
        Rec(built(0x50, odd, None), at=2, protocol=2, version=0),
        Rec(b"whatever", at=3, protocol=3, version=0),
        Rec(b"\x36" + ident, at=4, protocol=2, version=0),
        Rec(consumeresp(ident, b"z", fmq_value(7)), at=5, protocol=2, version=0),
        Rec(b"\x36\x00", at=6),
    ]
    write_log(tmp_path, [records])
    rows = load(spark, tmp_path, view="decoded").collect()
    names = ("protocol", "kind", "topic", "qos", "packet_id", "tags", "process", "thread", "id_type", "id_ns")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (2, 3, "a", 1, None, ["raw"], 7, 3, 3, NOW_NS),
        (1, 3, "b", 1, 5, None, None, None, None, None),
        (2, 5, None, None, None, None, None, None, 3, None),
        (3, *[None] * 9),
        (2, 3, None, None, None, None, None, None, None, None),
        (2, 11, None, None, None, [], 7, 3, 3, NOW_NS),
        (1, 3, None, None, None, None, None, None, None, None),
    ]
    ids = [row.message_id and bytes(row.message_id) for row in rows]
    assert ids == [ident, None, odd, None, None, ident, None]
    assert [row.payload and bytes(row.payload) for row in rows] == [b"x", b"y", None, None, None, b"z", None]
    assert [(row.reason, row.error_at) for row in rows if row.reason] == [("bad_qos", 0)] * 2
    assert [row.record for row in rows] == list(range(7))
    (first, *_) = load(spark, tmp_path, "tags array<string>, record int", view="decoded").collect()
    assert (first.tags, first.record) == (["raw"], 0)


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Path, int]:
    """A log whose second of five blocks has a wrong body, with the offset of that block."""
    write_log(tmp_path, [[Rec(publish("t", "x"), at=k)] * 4 for k in range(5)])
    (path,) = tmp_path.glob("segment-*.hwc")
    return tmp_path, damage(path, 1, 64)[1]


@pytest.mark.parametrize("partition_bytes", [1, 1 << 20])
def test_a_bad_block_is_a_row_of_badblocks(
    spark: "SparkSession", damaged: tuple[Path, int], partition_bytes: int
) -> None:
    directory, at = damaged
    assert load(spark, directory, partitionBytes=partition_bytes).count() == 16
    (row,) = load(spark, directory, view="badblocks", partitionBytes=partition_bytes).collect()
    assert (row.kind, row.offset, row.length) == ("bad", at, at)
    assert "body CRC is wrong" in row.reason
    assert row.file.startswith("segment-")


def test_a_torn_tail_is_a_row_of_badblocks(spark: "SparkSession", tmp_path: Path) -> None:
    write_log(tmp_path, [[Rec(publish("t", "x"))]] * 3)
    (tmp_path / "manifest.jsonl").unlink()
    (path,) = tmp_path.glob("segment-*.hwc")
    os.truncate(path, path.stat().st_size - 1)
    assert load(spark, tmp_path).count() == 2
    (row,) = load(spark, tmp_path, view="badblocks").collect()
    assert (row.kind, row.offset + row.length) == ("torn", path.stat().st_size)


def test_sql_over_frames(spark: "SparkSession", log: Path) -> None:
    load(spark, log).createOrReplaceTempView("frames")
    rows = spark.sql("select peer, direction, count(*) n from frames group by 1, 2 order by 1, 2").collect()
    assert [(row.peer, row.direction, row.n) for row in rows] == [("peer0", 0, 300), ("peer1", 1, 300)]


def test_a_new_session_finds_the_format_by_itself(spark: "SparkSession", log: Path) -> None:
    """Nothing here registers it: Spark looks for packages called pyspark_... with a DefaultSource."""
    assert load(spark.newSession(), log, "record int").count() == 600
