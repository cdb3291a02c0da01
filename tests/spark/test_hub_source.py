"""`spark.readStream.format("headwater.hub")`: each message of the hub once in the tables, whatever is killed."""

import contextlib
import os
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from headwater_host.capture.block_log import BlockLog
from headwater_host.capture.manifest import LOCK
from headwater_host.hub.users import hashed
from headwater_spark.hub_source import HubSource, HubStream, parse_hub
from headwater_spark.options import OptionError
from headwater_spark.pipeline import run_on
from headwater_spark.servers import BROKER, CONSUMER, server_of, server_options
from headwater_spark.tables import MESSAGES, VIEWS
from tests.host.command import environment
from tests.spark.hubs import HubProcess, hub_on, publish
from tests.spark.logs import InProcess, rows
from tests.waiting import PATIENCE_S, wait_until
from tools.broker import HOST, free_port
from tools.toolchain import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP = "tables"


def options(port: int, capture: Path, **more: str) -> dict[str, str]:
    return {
        "host": HOST,
        "port": str(port),
        "topics": "plant/#",
        "group": GROUP,
        "capture": str(capture),
        **more,
    }


def send(port: int, numbers: range) -> None:
    publish(port, *((f"plant/{number % 3}", str(number).encode()) for number in numbers))


def in_tables(log: Path, out: Path) -> list[int]:
    """The numbers of all messages, after a run of the pipeline."""
    run_on(InProcess(), log, out)
    return sorted(int(payload) for payload in rows(out, MESSAGES, "payload"))


class Query:
    """A stream as Spark drives it, without Spark."""

    def __init__(self, given: dict[str, str]):
        parsed = parse_hub(given)
        self.stream = HubStream(parsed, VIEWS["decoded"].names)
        self.at: dict[str, Any] | None = None
        self.payloads: list[int] = []

    def step(self) -> None:
        """One trigger."""
        if self.at is not None:
            self.stream.commit(self.at)
        start = self.stream.initialOffset() if self.at is None else self.at
        end = self.stream.latestOffset(start, ReadAllAvailable())
        if end != start:
            parts = self.stream.partitions(start, end)
            # Spark pickles the reader of its tasks before the gateway runs, in another process.
            for part in parts:
                for batch in self.stream.read(pickle.loads(pickle.dumps(part))):
                    self.payloads += [int(row["payload"]) for row in batch.to_pylist()]
        self.at = end

    def until(self, numbers: range) -> None:
        """Trigger until these have arrived."""

        def arrived() -> bool:
            self.step()
            return len(set(self.payloads)) >= len(numbers)

        wait_until(arrived)
        assert sorted(set(self.payloads)) == list(numbers)


@contextlib.contextmanager
def query_of(given: dict[str, str]) -> Iterator[Query]:
    query = Query({"view": "decoded", **given})
    try:
        yield query
    finally:
        query.stream.stop()


def test_messages_before_and_after_restarts_of_the_hub(tmp_path: Path) -> None:
    with hub_on(tmp_path / "hub") as hub:
        given = options(hub.port, tmp_path / "log")
        send(hub.port, range(50))
        with query_of(given) as query:
            query.until(range(50))
            send(hub.port, range(50, 100))
            query.until(range(100))
            hub.stop()
            query.step()  # goes on
            hub.start()
            send(hub.port, range(100, 200))
            query.until(range(200))
            hub.kill()
            hub.start()
            send(hub.port, range(200, 250))
            query.until(range(250))
        send(hub.port, range(250, 300))
        with query_of(given) as query:
            query.until(range(300))
    assert in_tables(tmp_path / "log", tmp_path / "out") == list(range(300))


def test_a_query_that_begins_before_the_hub(tmp_path: Path) -> None:
    with hub_on(tmp_path / "hub") as hub:
        hub.stop()
        with query_of(options(hub.port, tmp_path / "log")) as query:
            query.step()
            hub.start()
            send(hub.port, range(10))
            query.until(range(10))


def test_available_now_takes_what_the_hub_has(tmp_path: Path) -> None:
    with hub_on(tmp_path / "hub") as hub:
        given = options(hub.port, tmp_path / "log")
        with query_of(given) as query:
            query.stream.prepareForTriggerAvailableNow()
        send(hub.port, range(3000))
        with query_of(given) as query:
            query.stream.prepareForTriggerAvailableNow()
            query.step()
            send(hub.port, range(3000, 3100))
            query.step()
            assert sorted(query.payloads) == list(range(3000))
        hub.stop()
        with (
            query_of(options(hub.port, tmp_path / "log", timeout="0.3")) as query,
            pytest.raises(OptionError, match=rf"fmq:{HOST}:{hub.port}: not consuming within 0.3 s: "),
        ):
            query.stream.prepareForTriggerAvailableNow()


def test_retention_removes_what_the_query_has_read(tmp_path: Path) -> None:
    with hub_on(tmp_path / "hub") as hub:
        given = options(hub.port, tmp_path / "log", maxBytes="1k")
        send(hub.port, range(100))
        with query_of(given) as query:
            query.until(range(100))
        # The last trigger is not committed.
        (old,) = (tmp_path / "log").glob("*.hwc")
        with query_of(given) as query:
            query.until(range(100))
            query.step()
            assert old.exists()
        with query_of(given) as query:
            query.stream.reportLatestOffset()
            wait_until(lambda: not old.exists())
            send(hub.port, range(100, 110))
            query.until(range(100, 110))


# -- SIGKILL -----------------------------------------------------------------------------------------------------------


def consume_until_killed(moment: str, given: dict[str, str]) -> None:
    """Consume in this process, which is killed before or after the sync of the first block of messages."""
    write = BlockLog.write

    def killing(log: BlockLog, builder: Any) -> None:
        if moment == "after":
            write(log, builder)
        os.kill(os.getpid(), signal.SIGKILL)

    BlockLog.write = killing  # type: ignore[method-assign,assignment]
    query = Query(given)
    while True:
        query.step()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_driver_that_is_killed_around_the_sync(tmp_path: Path, moment: str) -> None:
    with hub_on(tmp_path / "hub") as hub:
        given = options(hub.port, tmp_path / "log", view="decoded")
        send(hub.port, range(50))
        program = f"from tests.spark.test_hub_source import *; consume_until_killed({moment!r}, {given!r})"
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, "-c", program], cwd=ROOT, env=environment(), check=False, timeout=PATIENCE_S
            )
            assert done.returncode == -signal.SIGKILL
        with query_of(given) as query:
            query.until(range(50))
            # What was in the log, but not acknowledged, was redelivered.
            assert (len(query.payloads) > 50) == (moment == "after")
    assert in_tables(tmp_path / "log", tmp_path / "out") == list(range(50))


@pytest.mark.timeout(900)
def test_a_query_of_spark_whose_driver_is_killed(spark: "SparkSession", tmp_path: Path) -> None:
    seed = int(os.environ.get("HEADWATER_SEED", "14"))
    chosen = random.Random(seed)
    with hub_on(tmp_path / "hub") as hub:
        given = options(hub.port, tmp_path / "log")
        program = f"from tests.spark.test_hub_source import *; run_driver({str(tmp_path)!r}, {given!r})"
        sent = 0
        for _ in range(int(os.environ.get("HEADWATER_KILLS", "1"))):
            driver = subprocess.Popen(
                [sys.executable, "-c", program], cwd=ROOT, env=environment(PYSPARK_PYTHON=sys.executable)
            )
            try:
                grown = size_of(tmp_path / "log")
                send(hub.port, range(sent, sent := sent + 500))
                wait_until(lambda least=grown: size_of(tmp_path / "log") > least)  # type: ignore[misc]
                for _ in range(chosen.randrange(5)):
                    send(hub.port, range(sent, sent := sent + 100))
            finally:
                driver.kill()
                driver.wait()
        # Waits until the processes of the last driver have ended.
        query_ = start_query(spark, tmp_path, given)
        send(hub.port, range(sent, sent := sent + 100))
        folder = str(tmp_path / "rows")
        read = "cast(cast(payload as string) as int) as number"

        def numbers() -> list[int]:
            query_.processAllAvailable()
            return [row.number for row in spark.read.parquet(folder).selectExpr(read).distinct().collect()]

        wait_until(lambda: len(numbers()) >= sent)
        assert sorted(numbers()) == list(range(sent))
        query_.stop()
        pid = int((tmp_path / "log" / LOCK).read_text())
        wait_until(lambda: not Path(f"/proc/{pid}").exists())
    assert in_tables(tmp_path / "log", tmp_path / "out") == list(range(sent))


def size_of(log: Path) -> int:
    return sum(path.stat().st_size for path in log.glob("*.hwc"))


def start_query(spark: "SparkSession", folder: Path, given: dict[str, str]) -> Any:
    messages = spark.readStream.format("headwater.hub").options(**given).option("view", "decoded").load()
    writer = messages.select("payload").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(processingTime="200 milliseconds").start(str(folder / "rows"))


def run_driver(folder: str, given: dict[str, str]) -> None:
    """Run a query in this process for ever."""
    from headwater_spark.session import local_session

    spark = local_session("driver", "local[2]")
    while True:
        try:
            start_query(spark, Path(folder), given).awaitTermination()
        except StreamingQueryException as error:
            # On a busy machine, Spark does not wait long enough for its workers.
            if "failed to connect back" not in str(error):
                raise


# -- errors ------------------------------------------------------------------------------------------------------------


def test_a_wrong_password_ends_the_query(spark: "SparkSession", tmp_path: Path) -> None:
    settings = f'[[user]]\nname = "ann"\npassword = "{hashed(b"secret", ln=4)}"\n'
    with hub_on(tmp_path / "hub", settings) as hub:
        given = options(hub.port, tmp_path / "log", username="ann", password="wrong")
        with pytest.raises(StreamingQueryException, match="bad user name or password") as caught:
            start_query(spark, tmp_path, given).awaitTermination()
        assert "'wrong'" not in str(caught.value)
        with query_of(given | {"password": "secret"}) as query:
            query.stream.prepareForTriggerAvailableNow()


def test_a_topic_that_is_denied(tmp_path: Path) -> None:
    with (
        hub_on(tmp_path / "hub", '[[rule]]\ntypes = ["SUBSCRIBE"]\ndeny = ["any"]\n') as hub,
        query_of(options(hub.port, tmp_path / "log")) as query,
        pytest.raises(OptionError, match=r"refused the subscription to 'plant/#': not authorized"),
    ):
        query.until(range(1))


def test_a_log_that_another_process_writes(hub: HubProcess, tmp_path: Path) -> None:
    with query_of(options(hub.port, tmp_path / "log")) as first:
        first.step()
        with (
            query_of(options(hub.port, tmp_path / "log", lockTimeout="0.5")) as second,
            pytest.raises(OptionError, match=rf"writes to .*\(process {os.getpid()}\)"),
        ):
            second.step()
        third = options(hub.port, tmp_path / "log", lockTimeout="100")
        with query_of(third) as later:
            first.stream.stop()
            later.step()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with hub_on(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        query_of(options(free_port(), tmp_path / "file")) as query,
        pytest.raises(OptionError, match="cannot open the capture log"),
    ):
        query.step()


def test_a_batch_read_is_refused(spark: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(
        Exception, match=r"a hub cannot read a range of messages again: use spark\.readStream"
    ):
        spark.read.format("headwater.hub").options(**options(1, tmp_path / "log")).load().count()


@pytest.mark.parametrize(
    "more, says",
    [
        ({"capture": None}, "option capture is missing: directory of the capture log"),
        ({"topics": None}, "option topics is missing"),
        ({"group": None}, "option group is missing"),
        ({"topics": "a/#/b"}, "option topics: 'a/#/b' is wrong: 'a/#/b' is not a topic filter"),
        ({"topics": '["a"'}, """option topics: '["a"' is not a list in JSON"""),
        ({"window": "0"}, "option window: '0' is not a whole number from 1 to 1000"),
        ({"path": "/log"}, "has no option 'path'"),
        ({"capture": "s3://bucket/log"}, "option capture: 's3://bucket/log' is not a local directory"),
        ({"view": "telemetry"}, "option view: 'telemetry' is not one of frames"),
        ({"colour": "red"}, "format(\"headwater.hub\") has no option 'colour'"),
        ({"host": "hub:7760"}, "host 'hub:7760': pass the port apart from the name"),
    ],
)
def test_wrong_options(tmp_path: Path, more: dict[str, str | None], says: str) -> None:
    given = {name: value for name, value in (options(1, tmp_path) | more).items() if value is not None}
    with pytest.raises(OptionError) as caught:
        HubSource(given).streamReader(StructType())
    assert says in str(caught.value)


def test_a_url(tmp_path: Path) -> None:
    given = options(1, tmp_path, host="fmq://ann:secret@h:77", topics='["a,b", "c"]')
    del given["port"]
    (hub,) = parse_hub(given).gateway.hubs
    assert (hub.host, hub.port, hub.username, hub.password) == ("h", 77, "ann", b"secret")
    assert hub.topics == ("a,b", "c")


def test_options_that_make_no_sense_are_errors_or_work() -> None:
    rng = random.Random(14)
    texts = ["", " ", "0", "-1", "1e999", "nan", "true", "\0", "[", "[1]", '["a"]', "a,,b", "/", "fmq://"]
    texts += ["fmq://a:b@", "x" * 70000, "☃", "9" * 5000, "60", "a", "5.0"]
    known = [*CONSUMER, *BROKER]
    right = wrong = 0
    for _ in range(200):
        some = rng.sample(known, rng.randrange(1, 6))
        given = {"host": "h"} | {option.name: rng.choice(texts) for option in some}
        for form in (CONSUMER, BROKER):
            try:
                server_of(server_options("form", given, form))
            except OptionError:
                wrong += 1
            else:
                right += 1
    assert wrong > right > 10
