"""The command on clusters of two workers, and what Spark Connect can do. Each test starts its own Spark."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import pytest

from headwater_host.capture.log_id import log_id
from headwater_host.capture.manifest import read_manifest
from headwater_host.cli.main import main
from headwater_spark.growth import grow
from headwater_spark.pipeline import run_on
from headwater_spark.place import Place
from headwater_spark.positions import Position
from headwater_spark.session import NO_CONNECT
from tests.conftest import require
from tests.object_store import Bucket
from tests.spark.logs import BEGIN_NS, InProcess, Rec, assert_same_tables, publish, reading, write_log
from tools import spark_classes

pytestmark = [pytest.mark.needs_java, pytest.mark.timeout(900)]

_SMALL = f"{spark_classes.options()} -Xss512k"
_ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_DRIVER_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
    # The master's and the workers' processes.
    "SPARK_DAEMON_JAVA_OPTS": _SMALL,
    "SPARK_DAEMON_MEMORY": "128m",
}


def capture_of(directory: Path) -> Path:
    """3,000 messages in 60 blocks."""
    blocks = [
        [Rec(publish("t", reading("b", 1, seq, load=seq / 8)), at=seq) for seq in range(at, at + 50)]
        for at in range(0, 3000, 50)
    ]
    return write_log(directory, blocks, segment_blocks=20)


def headwater(master: str, *words: object, **variables: str) -> str:
    """Run a command of the pipeline on a cluster; what it prints to stderr."""
    settings = {
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.cores.max": "2",
        # Begin when both executors are there.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        "spark.executor.extraJavaOptions": _SMALL,
    }
    given = ["pipeline", *map(str, words), "--master", master, "--partition-bytes", "20k"]
    for name, value in settings.items():
        given += ["--conf", f"{name}={value}"]
    done = subprocess.run(
        [sys.executable, "-m", "headwater_host", *given],
        env=_ENVIRONMENT | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def check(master: str, directory: Path) -> None:
    log = capture_of(directory / "log")
    said = headwater(master, "run", "--capture", log, "--out", directory / "out")
    found = re.findall(r"^pipeline: executor \w+ at \S+: (\d+) tasks, \d+% of the task time$", said, re.M)
    assert len(found) == 2
    assert min(map(int, found)) >= 2, found
    run_on(InProcess(), log, directory / "here", partition_bytes=20 << 10)
    assert_same_tables(directory / "out", directory / "here")


def test_local_cluster_with_two_workers(tmp_path: Path) -> None:
    check("local-cluster[2,1,512]", tmp_path)


def test_a_stream_on_a_cluster_from_s3_to_s3(tmp_path: Path, bucket: Bucket) -> None:
    log, copy, out = capture_of(tmp_path / "log"), f"{bucket.uri}/log", f"{bucket.uri}/out"
    storage = [word for name, value in bucket.options.items() for word in ("--storage", f"{name}={value}")]
    assert main(["capture", "ship", str(log), copy, *storage]) == 0
    words = ("stream", "--capture", copy, "--out", out, "--available-now", "--bytes-per-trigger", "100k")
    said = headwater(
        "local-cluster[2,1,512]",
        *words,
        "--checkpoint",
        tmp_path / "state",
        "--work",
        tmp_path,
        **bucket.options,
    )
    assert "pipeline: batch 2: " in said
    run_on(InProcess(), log, tmp_path / "here", partition_bytes=20 << 10)
    assert_same_tables(Place.at(out, bucket.storage), tmp_path / "here")


@contextmanager
def daemon(name: str, *words: str, says: str) -> Iterator[re.Match[str]]:
    """A process of a standalone cluster, when it has printed a line that matches."""
    environment = _ENVIRONMENT | spark_classes.environment()
    del environment["SPARK_SUBMIT_OPTS"]
    program = Path(environment["SPARK_HOME"], "bin", "spark-class")
    with subprocess.Popen(
        [program, f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        lines: Queue[str] = Queue()

        def read() -> None:
            assert process.stderr is not None
            for line in process.stderr:
                lines.put(line)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        seen = []
        try:
            while True:
                seen.append(lines.get(timeout=300))
                if found := re.search(says, seen[-1]):
                    break
            yield found
        except BaseException:
            print("".join(seen))
            raise
        finally:
            process.terminate()
            reader.join()


def test_standalone_with_two_workers(tmp_path: Path) -> None:
    require("java")
    ports = ("--port", "0", "--webui-port", "0")
    with daemon("master.Master", *ports, says=r"Starting Spark master at (spark://\S+)") as master:
        worker = (*ports, "--cores", "1", "--memory", "600m", master[1])
        with (
            daemon("worker.Worker", *worker, "-d", str(tmp_path / "1"), says="Successfully registered"),
            daemon("worker.Worker", *worker, "-d", str(tmp_path / "2"), says="Successfully registered"),
        ):
            check(master[1], tmp_path)


def test_the_command_refuses_spark_connect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = capture_of(tmp_path / "log")
    words = ["pipeline", "run", "--capture", str(log), "--out", str(tmp_path / "out")]
    assert main([*words, "--master", "sc://127.0.0.1"]) == 2
    assert capsys.readouterr().err == f"headwater: --master sc://127.0.0.1: {NO_CONNECT}\n"


def test_spark_connect_reads_logs_and_tables_and_refuses_the_pipeline(tmp_path: Path) -> None:
    log = capture_of(tmp_path / "log")
    third = next(iter(read_manifest(log).entries.values()))
    for upto in ({log_id(log): Position(third.file, third.bytes, third.next_sequence)}, None):
        grow(InProcess(), [log], tmp_path / "tables", upto=upto)
    program = f"""
import sys
from pyspark.sql import SparkSession
from headwater_spark import pipeline
spark = SparkSession.builder.remote("local[1]").config("spark.driver.memory", "512m").getOrCreate()
print(type(spark).__module__)
frames = spark.read.format("headwater").load({str(log)!r})
print(frames.count(), frames.where("time_ns % 1000000000 = 0").count())
decoded = spark.read.format("headwater").option("view", "decoded").load({str(log)!r})
print(decoded.groupBy("topic").count().collect())
query = (
    spark.readStream.format("headwater").load({str(log)!r}).writeStream.format("memory").queryName("rows")
    .trigger(availableNow=True).option("checkpointLocation", {str(tmp_path / "state")!r}).start()
)
query.awaitTermination()
print(spark.table("rows").count())
def table(name, **options):
    return spark.read.format("headwater.table").options(**options).load({str(tmp_path / "tables")!r} + "/" + name)
messages, telemetry = table("messages"), table("telemetry").select("board", "boot", "seq", "metric", "value_double")
print(messages.count(), table("messages", version=1).count(), table("messages", since={BEGIN_NS + 29 * 10**8}).count())
both = messages.join(telemetry, ["board", "boot", "seq"]).groupBy("topic", "metric").sum("value_double")
print(both.collect())
try:
    table("nothing").count()
except Exception as error:
    print("is not a table" in str(error))
try:
    pipeline.run(spark, {str(log)!r}, {str(tmp_path / "out")!r})
except Exception as error:
    print(type(error).__name__, error)
spark.stop()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=_ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    module, counts, topics, streamed, *tables, error = done.stdout.splitlines()
    assert module == "pyspark.sql.connect.session"
    assert (counts, topics, streamed) == ("3000 3", "[Row(topic='t', count=3000)]", "3000")
    total = sum(range(3000)) / 8
    assert tables == ["3000 1000 100", f"[Row(topic='t', metric='load', sum(value_double)={total})]", "True"]
    assert error == f"ConnectError {NO_CONNECT}"
