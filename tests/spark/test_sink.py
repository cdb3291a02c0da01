"""`format("headwater.hub")` and `format("headwater.mqtt")` as sinks: each row is published once, however often Spark
repeats a micro-batch, and everything that cannot be published is an error that names it."""

import json
import random
import shutil
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import ArrayType, StringType, StructType

from headwater.fmq.ids import id_end
from headwater_host.client.blocking import Client, FmqClient
from headwater_host.client.mqtt import SessionOptions
from headwater_host.hub.users import hashed
from headwater_spark.options import OptionError
from headwater_spark.publishing import (
    Message,
    Publisher,
    PublishingError,
    message_id,
    publish_to_broker,
    publish_to_hub,
)
from headwater_spark.servers import Server
from headwater_spark.sink import BROKER_SINK, HUB_SINK, Form, RowError, Sink, messages_of, sink_of
from tests.host.command import environment
from tests.spark.hubs import HubProcess, Reader, hub_on
from tools import spark_classes
from tools.broker import HOST, Mosquitto, free_port
from tools.toolchain import ROOT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = "concat('cmd/', id % 3) as topic, cast(id as string) as payload, id"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with hub_on(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


def payloads(reader: Reader) -> list[int]:
    return sorted(int(message.payload) for message in reader.take())


def to_hub(frame: "DataFrame", port: int, **options: str) -> None:
    writer = frame.write.format("headwater.hub").option("host", HOST).option("port", port)
    writer.options(**{"key": "id", **options}).mode("append").save()


# -- DataFrames --------------------------------------------------------------------------------------------------------


def test_rows_go_to_a_hub_once_in_any_order(spark: "SparkSession", hub: HubProcess) -> None:
    rows = spark.range(3000).selectExpr(*ROWS.split(", c")[:1], "cast(id as string) as payload", "id")
    with Reader(hub.port, "cmd/0", "cmd/1", "cmd/2") as reader:
        to_hub(rows, hub.port, query="nightly")
        assert payloads(reader) == list(range(3000))
        to_hub(rows.orderBy("payload").repartition(3), hub.port, query="nightly")
        assert payloads(reader) == []
        to_hub(rows.limit(10), hub.port, query="other")
        to_hub(rows.limit(10), hub.port)
        assert payloads(reader) == sorted([*range(10), *range(10)])


def test_columns_of_a_message(spark: "SparkSession", hub: HubProcess) -> None:
    columns = (
        "'all/1' as topic, X'00ff' as payload, 2 as qos, true as retain, array('a', 'b') as tags, 1 as id"
    )
    with Reader(hub.port, "all/1") as reader:
        to_hub(spark.sql(f"select {columns}"), hub.port)
        (message,) = reader.take()
    assert (message.payload, message.tags) == (b"\0\xff", ("a", "b"))
    with FmqClient(HOST, hub.port) as client:
        client.subscribe("all/#")
        retained = client.get(60)
    assert (retained.payload, retained.retain, retained.qos) == (b"\0\xff", True, 2)


@pytest.mark.needs_mosquitto
def test_rows_go_to_a_broker_with_their_ids(
    spark: "SparkSession", mosquitto: Callable[..., Mosquitto]
) -> None:
    broker = mosquitto()
    rows = spark.range(500).selectExpr(
        "'b/1' as topic", "cast(id as string) as payload", "id", "60 as expiry"
    )
    ids: list[dict[bytes, str]] = []
    with Client(HOST, broker.port, protocol="5.0") as client:
        client.subscribe("b/#", 1)
        for _ in range(2):
            writer = rows.repartition(2).write.format("headwater.mqtt").option("host", HOST)
            writer.options(port=broker.port, key="id", query="run").mode("append").save()
            found = [client.get(60) for _ in range(500)]
            assert all(0 < message.properties["message_expiry_interval"] <= 60 for message in found)
            ids.append({m.payload: dict(m.properties["user_property"])["message_id"] for m in found})
    assert ids[0] == ids[1]
    assert len(set(ids[0].values())) == len(ids[0]) == 500


@pytest.mark.needs_mosquitto
def test_mqtt_3_1_1_and_retained_messages(spark: "SparkSession", mosquitto: Callable[..., Mosquitto]) -> None:
    broker = mosquitto()
    rows = spark.sql("select 'b/1' as topic, 'on' as payload, true as retain, 1 as id")
    writer = rows.write.format("headwater.mqtt").options(host=HOST, port=broker.port, key="id")
    writer.option("protocol", "3.1.1").mode("append").save()
    with Client(HOST, broker.port) as client:
        client.subscribe("b/#", 1)
        assert (message := client.get(60)).payload == b"on"
        assert message.retain


ROW: dict[str, Any] = {"topic": "t", "payload": b"p", "id": 1}


@pytest.mark.parametrize(
    "row, says",
    [
        ({"topic": None}, "column topic is null"),
        ({"topic": "a/+"}, "column topic: 'a/+' is not a topic"),
        ({"topic": ""}, "column topic: '' is not a topic"),
        ({"payload": None}, "column payload is null (topic 't'); an empty payload is an empty string"),
        ({"qos": 0}, "column qos is 0 (topic 't'), not 1 or 2: messages at QoS 0 are not acknowledged"),
        ({"qos": 3}, "column qos is 3 (topic 't'), not 1 or 2"),
        ({"tags": ["a", None]}, "column tags contains null (topic 't')"),
        ({"expiry": -1}, "column expiry is -1 (topic 't'), not 0 to 4294967295 seconds"),
        ({"id": None}, "column id is null, but a part of the key"),
        ({"id": 2}, "option key: two rows of the micro-batch have id 2: name columns that identify a row"),
    ],
)
def test_rows_that_cannot_be_published(row: dict[str, Any], says: str) -> None:
    form = BROKER_SINK if "expiry" in row else HUB_SINK
    rows = [ROW | {"id": 2}, ROW | row]
    batch = pa.table({name: [one.get(name) for one in rows] for name in rows[1]}).to_batches()[0]
    with pytest.raises(RowError) as caught:
        messages_of(Sink(form, Server("h", 1), ("id",), 1, ""), b"", batch, set())
    assert says in str(caught.value)


def test_an_error_in_a_row_names_the_format(spark: "SparkSession", hub: HubProcess) -> None:
    rows = spark.sql("select 't/#' as topic, 'p' as payload, 1 as id")
    with pytest.raises(Exception, match=r'format\("headwater.hub"\): column topic: \'t/#\' is not a topic'):
        to_hub(rows, hub.port)


@pytest.mark.parametrize(
    "topic, size, says",
    [
        ("$dead/t", 1, "topic '$dead/t', 1 bytes: the server refused the message"),
        ("t", 17_000_000, "topic 't', 17000000 bytes: the server refused the message: packet too large"),
        ("t", (16 << 20) - 16, "topic 't', 16777200 bytes: the server refused the message: packet too large"),
    ],
)
def test_messages_that_the_hub_refuses(hub: HubProcess, topic: str, size: int, says: str) -> None:
    message = Message(topic, bytes(size), 1, False, (), None, bytes(16))
    with pytest.raises(PublishingError) as caught:
        publish_to_hub(Publisher(Server(HOST, hub.port), "spark-1", 7, 60), iter([[message]]))
    assert says in str(caught.value)


def test_a_key_in_two_partitions_is_reported(spark: "SparkSession", hub: HubProcess) -> None:
    rows = spark.range(0, 4, 1, 2).selectExpr("'t' as topic", "'p' as payload", "id % 2 as id")
    with pytest.raises(
        Exception, match=r"2 rows of the micro-batch have the key \(id\) of another row, in another"
    ):
        to_hub(rows, hub.port)


# -- streams -----------------------------------------------------------------------------------------------------------

FAILED = "one failure"


def failing_once(marker: str, after_s: float) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Pass rows on in another order each time; in the first call, fail so long after half of them."""

    def act(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            rows = list(range(batch.num_rows))
            random.shuffle(rows)
            half = len(rows) // 2
            yield batch.take(pa.array(rows[:half], pa.int64()))
            if half and not Path(marker).exists():
                Path(marker).touch()
                time.sleep(after_s)
                raise RuntimeError(FAILED)
            yield batch.take(pa.array(rows[half:], pa.int64()))

    return act


def start_stream(
    spark: "SparkSession", folder: Path, port: int, after_s: float = 1, form: str = "headwater.hub"
) -> Any:
    rows = spark.readStream.schema("id long, topic string, payload string").json(str(folder / "in"))
    rows = rows.selectExpr("topic", "payload", "id", "rand() as r").repartition(2, "r").drop("r")
    rows = rows.mapInArrow(failing_once(str(folder / "failed"), after_s), rows.schema)
    writer = rows.writeStream.format(form).option("host", HOST).option("port", port)
    writer = writer.option("key", "id").option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(availableNow=True).start()


def add(folder: Path, numbers: range) -> None:
    (folder / "in").mkdir(exist_ok=True)
    rows = ({"id": number, "topic": "s/1", "payload": str(number)} for number in numbers)
    (folder / "in" / f"{numbers.start}.json").write_text("\n".join(map(json.dumps, rows)))


def test_a_micro_batch_that_runs_again_adds_nothing(
    spark: "SparkSession", hub: HubProcess, tmp_path: Path
) -> None:
    with Reader(hub.port, "s/1") as reader:
        add(tmp_path, range(1000))
        with pytest.raises(StreamingQueryException, match=FAILED):
            start_stream(spark, tmp_path, hub.port).awaitTermination()
        some = payloads(reader)
        assert 0 < len(some) < 1000
        start_stream(spark, tmp_path, hub.port).awaitTermination()
        assert sorted(some + payloads(reader)) == list(range(1000))
        # As after a crash between the last acknowledgement and Spark's own commit.
        add(tmp_path, range(1000, 1500))
        start_stream(spark, tmp_path, hub.port).awaitTermination()
        assert payloads(reader) == list(range(1000, 1500))
        for number in (0, 1):
            (tmp_path / "checkpoint" / "commits" / str(number)).unlink()
            (tmp_path / "checkpoint" / "commits" / f".{number}.crc").unlink()
            start_stream(spark, tmp_path, hub.port).awaitTermination()
            assert payloads(reader) == []
            break
        # The same rows are other messages to a query with another checkpoint.
        shutil.rmtree(tmp_path / "checkpoint")
        start_stream(spark, tmp_path, hub.port).awaitTermination()
        assert payloads(reader) == list(range(1500))


@pytest.mark.needs_mosquitto
def test_a_micro_batch_that_runs_again_has_the_same_ids_at_a_broker(
    spark: "SparkSession", mosquitto: Callable[..., Mosquitto], tmp_path: Path
) -> None:
    broker = mosquitto()
    ids: list[tuple[int, str]] = []
    with Client(HOST, broker.port, protocol="5.0") as client, Client(HOST, broker.port) as marker:

        def take() -> int:
            """Note the messages up to now; return their count."""
            before = len(ids)
            marker.publish("s/1", b"end", 1)
            while (message := client.get(60)).payload != b"end":
                ids.append((int(message.payload), dict(message.properties["user_property"])["message_id"]))
            return len(ids) - before

        client.subscribe("s/1", 1)
        add(tmp_path, range(400))
        with pytest.raises(StreamingQueryException, match=FAILED):
            start_stream(spark, tmp_path, broker.port, form="headwater.mqtt").awaitTermination()
        assert 0 < take() < 400
        start_stream(spark, tmp_path, broker.port, form="headwater.mqtt").awaitTermination()
        assert take() == 400
        (tmp_path / "checkpoint/commits/0").unlink()
        (tmp_path / "checkpoint/commits/.0.crc").unlink()
        start_stream(spark, tmp_path, broker.port, form="headwater.mqtt").awaitTermination()
        assert take() == 400
    assert len({number for number, _ in ids}) == len({ident for _, ident in ids}) == len({*ids}) == 400


@pytest.mark.timeout(900)
def test_a_driver_that_is_killed_after_half_of_a_micro_batch(
    spark: "SparkSession", hub: HubProcess, tmp_path: Path
) -> None:
    add(tmp_path, range(1000))
    program = f"""
        from pathlib import Path
        from headwater_spark.session import local_session
        from tests.spark.test_sink import start_stream
        spark = local_session("driver", "local[2]")
        start_stream(spark, Path({str(tmp_path)!r}), {hub.port}, 600).awaitTermination()
    """
    with Reader(hub.port, "s/1") as reader:
        command = [sys.executable, "-c", textwrap.dedent(program)]
        with subprocess.Popen(command, cwd=ROOT, env=environment(PYSPARK_PYTHON=sys.executable)) as driver:
            try:
                some: list[int] = []
                while not some:
                    time.sleep(0.2)
                    assert driver.poll() is None
                    some = payloads(reader)
            finally:
                driver.kill()
        assert 0 < len(some) < 1000
        start_stream(spark, tmp_path, hub.port).awaitTermination()
        assert sorted(some + payloads(reader)) == list(range(1000))


@pytest.mark.needs_java
@pytest.mark.timeout(900)
def test_a_task_that_fails_on_a_cluster_is_retried_without_doubles(hub: HubProcess, tmp_path: Path) -> None:
    """Executors of their own learn the query and the micro-batch as well."""
    add(tmp_path, range(400))
    program = f"""
        from pathlib import Path
        from headwater_spark.session import local_session
        from tests.spark.test_sink import start_stream
        settings = {{
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": {spark_classes.options()!r},
            "spark.sql.shuffle.partitions": "2",
        }}
        spark = local_session("cluster", "local-cluster[2,1,512]", settings)
        start_stream(spark, Path({str(tmp_path)!r}), {hub.port}).awaitTermination()
        spark.stop()
    """
    with Reader(hub.port, "s/1") as reader:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            cwd=ROOT,
            env=environment(PYSPARK_PYTHON=sys.executable, PYTHONPATH=":".join(filter(None, sys.path))),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "failed").exists()
        assert payloads(reader) == list(range(400))


# -- the hub's side ----------------------------------------------------------------------------------------------------


def messages(numbers: range, topic: str = "p") -> list[Message]:
    rng = random.Random(numbers.start)
    return [
        Message(topic, str(number).encode(), 1 + number % 2, False, (), None, rng.randbytes(16))
        for number in numbers
    ]


def test_message_ids_are_ids_and_differ() -> None:
    rng = random.Random(3)
    found = set()
    for ident in [bytes(16), b"\xff" * 16, *(rng.randbytes(16) for _ in range(1000))]:
        for query in (0, 1, (1 << 32) - 1):
            made = message_id(query, ident)
            assert id_end(made, 0, len(made)) == len(made) == 18
            assert int.from_bytes(made[10:], "little") < 1_230_000_000_000_000_000  # 2008
            found.add(made)
    assert len(found) == 3 * 1002


def test_a_hub_that_is_killed_while_messages_are_in_flight(tmp_path: Path) -> None:
    with hub_on(tmp_path) as hub:
        publisher = Publisher(Server(HOST, hub.port), "spark-1", 7, 60)
        with Reader(hub.port, "p") as reader:

            def batches() -> Iterator[list[Message]]:
                for start in range(0, 3000, 1000):
                    yield messages(range(start, start + 1000))
                    hub.kill()
                    hub.start()

            publish_to_hub(publisher, batches())
            publish_to_hub(publisher, iter([messages(range(1000))]))
            assert Counter(payloads(reader)) == Counter(range(3000))


@pytest.mark.needs_mosquitto
def test_a_broker_that_is_restarted(mosquitto: Callable[..., Mosquitto]) -> None:
    broker = mosquitto(persistence=True)
    kept = SessionOptions(clean_start=False)
    found: set[str] = set()
    with Client(HOST, broker.port, protocol="5.0", identifier="r", session=kept, reconnect=True) as client:
        client.subscribe("p", 1)

        def batches() -> Iterator[list[Message]]:
            yield messages(range(500))
            broker.restart()
            yield messages(range(500, 1000))

        publish_to_broker(Publisher(Server(HOST, broker.port), "spark-1", 7, 60), batches())
        while len(found) < 1000:
            found.add(dict(client.get(60).properties["user_property"])["message_id"])
    assert found == {one.ident.hex() for start in (0, 500) for one in messages(range(start, start + 500))}


@pytest.mark.parametrize("credentials, says", [((None, None), "0x87"), (("ann", b"wrong"), "0x86")])
def test_a_hub_that_refuses(tmp_path: Path, credentials: tuple[str | None, bytes | None], says: str) -> None:
    settings = f"""
    [[user]]
    name = "ann"
    password = "{hashed(b"secret", ln=4)}"
    [[rule]]
    types = ["PUBLISH"]
    deny = ["any"]
    """
    with hub_on(tmp_path, textwrap.dedent(settings)) as hub:
        server = Server(HOST, hub.port, *credentials)
        with pytest.raises(PublishingError) as caught:
            publish_to_hub(Publisher(server, "spark-1", 7, 60), iter([messages(range(5))]))
    assert says in str(caught.value), caught.value
    assert "wrong'" not in str(caught.value)


def test_a_hub_that_cannot_be_reached() -> None:
    port = free_port()
    began = time.monotonic()
    with pytest.raises(PublishingError, match=f"{HOST}:{port}.*[Rr]efused"):
        publish_to_hub(Publisher(Server(HOST, port), "spark-1", 7, 0.5), iter([[], messages(range(5))]))
    assert time.monotonic() - began < 30
    publish_to_hub(Publisher(Server(HOST, port), "spark-1", 7, 0.5), iter([[], []]))  # nothing to publish


# -- options and columns -----------------------------------------------------------------------------------------------

SCHEMA = "topic string, payload binary, id long"


def columns_of(text: str) -> StructType:
    """A schema, without Spark's parser in Java."""
    made = StructType()
    for name, kind in (one.split() for one in text.split(", ")):
        made.add(name, ArrayType(StringType()) if kind == "array<string>" else kind)
    return made


NEEDED = {"host": "h", "key": "id"}


@pytest.mark.parametrize(
    "form, schema, options, says",
    [
        (HUB_SINK, SCHEMA, {"key": None}, "option key is missing"),
        (HUB_SINK, SCHEMA, {"host": None}, "option host is missing"),
        (HUB_SINK, SCHEMA, {"key": "nr"}, "option key: there is no column 'nr'; the columns are topic, payload, id"),
        (HUB_SINK, SCHEMA, {"key": "id,id"}, "option key: 'id,id' is a list with 'id' twice"),
        (HUB_SINK, SCHEMA, {"key": ""}, "option key: '' is not a list of texts"),
        (HUB_SINK, SCHEMA, {"color": "red"}, "has no option 'color'; its options are host, port"),
        (HUB_SINK, SCHEMA, {"protocol": "5.0"}, "has no option 'protocol'"),
        (HUB_SINK, SCHEMA, {"port": "70000"}, "option port: '70000' is not a whole number from 1 to 65535"),
        (HUB_SINK, SCHEMA, {"timeout": "nan"}, "option timeout: 'nan' is not a number of seconds above 0"),
        (HUB_SINK, SCHEMA, {"tls": "maybe"}, "option tls: 'maybe' is neither true nor false"),
        (HUB_SINK, SCHEMA, {"tls": "false", "cafile": "/ca"}, "option tls is false, but"),
        (HUB_SINK, SCHEMA, {"cafile": "/nowhere"}, "cannot use the CA in /nowhere: No such file"),
        (HUB_SINK, SCHEMA, {"password": "p"}, "option username is missing"),
        (HUB_SINK, SCHEMA, {"password": "p", "passwordFile": "/f"}, "give one of them"),
        (HUB_SINK, SCHEMA, {"username": "u", "passwordFile": "/nowhere"}, "cannot read the password in /nowhere"),
        (HUB_SINK, SCHEMA, {"host": "fmq://u:secret@"}, "option host: a hub's URL is fmq://"),
        (HUB_SINK, SCHEMA, {"query": "q"}, "option query is for df.write"),
        (HUB_SINK, "payload string, id integer", {}, "column topic is missing"),
        (HUB_SINK, "topic integer, payload string, id integer", {}, "column topic is int, not string"),
        (HUB_SINK, SCHEMA + ", expiry integer", {}, "has no column 'expiry'; it has topic, payload, qos, retain, tags"),
        (HUB_SINK, SCHEMA + ", x double", {"key": "x"}, "option key: column x is double, not one of string"),
        (BROKER_SINK, SCHEMA + ", tags array<string>", {}, "has no column 'tags'"),
        (BROKER_SINK, SCHEMA + ", expiry integer", {"protocol": "3.1.1"}, "column expiry needs MQTT 5.0, not 3.1.1"),
        (BROKER_SINK, SCHEMA, {"protocol": "6"}, "option protocol: '6' is not one of 5.0, 3.1.1"),
        (BROKER_SINK, SCHEMA, {"host": "fmq://h"}, "option host: the name or address of the broker, not a URL"),
        (BROKER_SINK, SCHEMA, {"websocket": "no path"}, "'no path' is not a path for WebSocket"),
    ],
)  # fmt: skip
def test_wrong_options_and_columns(
    form: Form, schema: str, options: dict[str, str | None], says: str
) -> None:
    given = {name: value for name, value in (NEEDED | options).items() if value is not None}
    with pytest.raises(OptionError) as caught:
        sink_of(form, given, columns_of(schema), False, is_stream=True)
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)


def test_complete_output_is_refused() -> None:
    with pytest.raises(OptionError, match="publishes all rows in each micro-batch"):
        sink_of(HUB_SINK, NEEDED, columns_of(SCHEMA), True, is_stream=True)
