"""Create a Spark session."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: Why the pipeline refuses a session of Spark Connect.
NO_CONNECT = (
    "the pipeline needs Spark's driver in its own process, so Spark Connect cannot run it: use spark-submit, or a "
    "master such as local[*] or spark://HOST:PORT; reading logs and tables works over Spark Connect"
)


class ConnectError(RuntimeError):
    """The session is one of Spark Connect."""


class Share(NamedTuple):
    """The work of one executor: completed tasks, and the sum of their times."""

    executor: str
    host: str
    tasks: int
    seconds: float


def shares(session: SparkSession) -> list[Share]:
    """Return the work of each executor since the session started; without executors, an empty list."""
    java: Any = session.sparkContext._jsc.sc().statusStore().executorList(False)
    found = (java.apply(number) for number in range(java.size()))
    return sorted(
        Share(one.id(), one.hostPort(), one.completedTasks(), one.totalDuration() / 1000)
        for one in found
        if one.id() != "driver"
    )


def link_spark(home: Path) -> bool:
    """Make the directory `home` a SPARK_HOME without `pyspark.zip`.

    Each Python process that Spark starts would compile that for about a second. So it imports the installed
    PySpark. Return False if that has no Spark of its own.
    """
    spark = _pyspark()
    if not (spark / "jars").is_dir():
        return False
    home.mkdir(parents=True, exist_ok=True)
    # PySpark comes without `conf`, but Spark reads settings there.
    for name in ("bin", "conf", "jars", "sbin"):
        link, target = home / name, spark / name
        if link.is_symlink() and link.readlink() == target and target.is_dir():
            continue
        link.unlink(missing_ok=True)
        if target.is_dir():
            with suppress(FileExistsError):  # another process has made it
                link.symlink_to(target)
    return True


def _pyspark() -> Path:
    spec = importlib.util.find_spec("pyspark")
    return Path(str(spec.origin if spec else "")).parent


@contextmanager
def _quick_python(master: str) -> Iterator[None]:
    """Let a local Spark that starts here use a SPARK_HOME of `link_spark`, unless the environment names one, or another
    Python, or the user's cache cannot be written."""
    own_python = os.environ["PYSPARK_PYTHON"] == sys.executable
    if not master.startswith("local") or "SPARK_HOME" in os.environ or not own_python:
        yield
        return
    # The same directory each time need not be removed, even after a kill.
    name = f"spark-{hashlib.sha256(bytes(_pyspark())).hexdigest()[:12]}"
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headwater" / name
    with suppress(OSError, RuntimeError):  # RuntimeError: the user has no home directory
        if link_spark(home):
            os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        # Java has it now. Other programs that this process starts may have another Spark.
        os.environ.pop("SPARK_HOME", None)


_LOGGING = Path(__file__).with_name("log4j2.properties")


def local_session(
    name: str, master: str = "local[*]", settings: dict[str, str] | None = None
) -> SparkSession:
    """Return a session that listens on loopback only, without a web interface and with little logging.

    `settings` override the defaults. An existing session is reused.
    """
    from pyspark.sql import SparkSession

    # Workers must use the interpreter that has this package, not the first one on PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # Set before the JVM starts; otherwise it prints irrelevant lines.
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    }
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        defaults |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in (defaults | (settings or {})).items():
        builder = builder.config(key, value)
    with _quick_python(master):
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
