"""Start Spark for a command, and report its errors in one line."""

from __future__ import annotations

import argparse
import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headwater_host.capture.filesystem import Location, LocationError
from headwater_host.capture.log_id import LogIdError
from headwater_host.exits import FAILED, USAGE, CommandError, explain
from headwater_spark.place import Place
from headwater_spark.session import NO_CONNECT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: The oldest Java that Spark runs on.
_JAVA = 17
_MASTER = re.compile(r"local($|\[)|local-cluster\[|(spark|k8s|mesos)://|yarn$")


@contextmanager
def started(args: argparse.Namespace) -> Iterator[SparkSession]:
    """Provide a Spark session as `args.master` and `args.conf` say, or the running one; stop it if it was started.

    Raises CommandError without Java, and for errors of Spark, of files and of tables that are busy.
    """
    if args.master.startswith("sc://"):
        raise CommandError(f"--master {args.master}: {NO_CONNECT}", USAGE)
    if not _MASTER.match(args.master):
        raise CommandError(
            f"--master {args.master}: expected local[*], local[N], spark://HOST:PORT, yarn or k8s://HOST:PORT",
            USAGE,
        )
    _check_java()
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from headwater_spark.batches import BusyError
    from headwater_spark.session import local_session

    running = SparkSession.getActiveSession()
    if running is None:
        say("starting Spark")
    # py4j logs an interrupt with a traceback before it raises it.
    logging.getLogger().addFilter(_is_no_interrupt)
    before = _children()
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        spark = running or local_session("headwater pipeline", args.master, dict(args.conf))
    except (Py4JError, PySparkException) as error:
        raise CommandError(
            f"Spark does not start; check --master and --conf: {_cause(str(error))}", FAILED
        ) from error
    except KeyboardInterrupt:
        # Java that is still starting fails to answer, and would wait for ever.
        for process in _children() - before:
            os.kill(process, signal.SIGTERM)
        raise
    if threading.current_thread() is threading.main_thread():
        # PySpark's handler calls Java, also in the middle of another call: that fails with a traceback, or hangs.
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield spark
    except ConnectionError as error:
        raise CommandError("Java, which runs Spark, has ended; run the command again", FAILED) from error
    except (BusyError, LocationError, LogIdError, OSError) as error:
        raise failed(error, args.out) from error
    except (Py4JError, PySparkException) as error:
        raise CommandError(f"a Spark task failed: {_cause(str(error))}", FAILED) from error
    finally:
        if running is None:
            with suppress(ConnectionError, Py4JError):  # Java has ended already
                spark.stop()


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return not record.getMessage().endswith("while sending command.")


def _children() -> set[int]:
    """Return the ids of processes that this thread has started; none where there is no /proc."""
    try:
        text = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text(encoding="ascii")
    except OSError:
        return set()
    return {int(number) for number in text.split()}


def tables_at(location: Location, storage: Iterable[tuple[str, str]]) -> Place:
    """Return the place of tables. Raises CommandError for one that cannot have tables."""
    try:
        return Place.at(location, storage)
    except LocationError as error:
        raise CommandError(str(error), USAGE) from error


def check_writable(place: Place, option: str = "--out") -> None:
    """Create the directory that an option names. Raises CommandError when this process cannot write to it."""
    out = place.path
    if out is None:
        probe = place / f".{secrets.token_hex(8)}"
        try:
            probe.create(b"")
            probe.remove()
        except OSError as error:
            raise CommandError(f"{option}: cannot write to {place}: {explain(error)}", FAILED) from error
        except LocationError as error:
            raise CommandError(str(error), USAGE) from error
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out) as file:
            file.write(b"0")
    except OSError as error:
        raise CommandError(f"{option}: cannot write to {out}: {error.strerror}", FAILED) from error


def failed(error: Exception, out: object) -> CommandError:
    """Return the error of a command that writes to `out`. Errors of a full disk do not name a file."""
    if isinstance(error, OSError) and error.strerror and not error.filename:
        return CommandError(f"cannot write to {out}: {error.strerror}", FAILED)
    return CommandError(explain(error), FAILED)


def _check_java() -> None:
    """Raise CommandError when there is no `java` that Spark's scripts can start, or it is too old."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin/java")
        if shutil.which(java) is None:
            raise CommandError(
                f"JAVA_HOME={home}: {java} does not exist; set JAVA_HOME to a directory of Java 17 or newer, "
                "or unset it to use java from PATH",
                FAILED,
            )
    elif shutil.which("java") is None:
        why = "PATH has no java" if home is None else "JAVA_HOME is empty, and PATH has no java"
        raise CommandError(
            f"Spark needs Java 17 or newer: {why}: apt-get install default-jre-headless", FAILED
        )
    command = str(Path(home, "bin/java")) if home else str(shutil.which("java"))
    try:
        done = subprocess.run(
            [command, "-version"], capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise CommandError(f"{command} does not start: {error.strerror}", FAILED) from error
    found = re.search(r'version "(?:1\.)?([0-9]+)', done.stderr)
    if done.returncode or found is None:
        said = done.stderr.strip().partition("\n")[0]
        raise CommandError(
            f"{command} is not a Java that works: {said or f'exit code {done.returncode}'}", FAILED
        )
    if int(found[1]) < _JAVA:
        where = "JAVA_HOME" if home else "PATH"
        raise CommandError(
            f"{command} is Java {found[1]}, but Spark needs Java {_JAVA} or newer: install it and set {where}",
            FAILED,
        )


def say(text: str) -> None:
    """Print a line of progress."""
    print("pipeline:", text, file=sys.stderr, flush=True)


def _cause(text: str) -> str:
    """Extract the cause from Spark's error: the last line of a Python traceback, the JVM's error, or all of it."""
    python = re.search(r"^Traceback \(most recent call last\):\n(?: .*\n)+(.+)$", text, re.MULTILINE)
    found = python or re.search(r"^: (.+?)\n\s+at ", text, re.MULTILINE | re.DOTALL)
    return " ".join(found[1].splitlines()) if found else text
