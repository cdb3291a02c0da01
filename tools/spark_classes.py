"""Let Spark start in half the time, for tests: archive the classes that it loads.

    python -m tools.spark_classes .cache/spark/classes.jsa

`./run test` makes the archive once for each version of Java and Spark, and tests/conftest.py names it to Spark. Java
ignores an archive that does not fit.
"""

import argparse
import os
import shlex
import sys
import tempfile
from pathlib import Path

from headwater_spark.session import link_spark, local_session
from tools.toolchain import CACHE

ARCHIVE = CACHE / "spark" / "classes.jsa"
#: Optimising compilation and parallel collection cost short runs more than they save.
SHORT_RUNS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def options() -> str:
    """Return options for each Java of Spark in tests. Java does not print why it ignores an archive."""
    if not ARCHIVE.exists():
        return SHORT_RUNS
    return f"{SHORT_RUNS} -XX:SharedArchiveFile={shlex.quote(str(ARCHIVE))} -Xlog:disable"


def environment() -> dict[str, str]:
    """Return the variables with which Spark starts quickly."""
    found = {"SPARK_SUBMIT_OPTS": options()}
    home = CACHE / "spark" / "home"
    return found | ({"SPARK_HOME": str(home)} if link_spark(home) else {})


def make(archive: Path) -> None:
    """Run a query, Parquet and a function over Arrow batches, and write the classes that Java loaded for them."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    part = archive.with_suffix(".part")
    part.unlink(missing_ok=True)
    os.environ |= environment() | {"SPARK_SUBMIT_OPTS": f"{SHORT_RUNS} -XX:ArchiveClassesAtExit={part}"}
    session = local_session("classes", "local[1]")
    gateway = session.sparkContext._gateway
    with tempfile.TemporaryDirectory() as folder:
        sums = session.range(9).selectExpr("id % 3 key", "id").groupBy("key").sum("id")
        sums.write.parquet(f"{folder}/sums")
        read = session.read.parquet(f"{folder}/sums")
        read.mapInArrow(lambda batches: batches, "key long, sum long").collect()
        session.stop()
    java = gateway.proc  # type: ignore[union-attr]
    java.stdin.close()  # ends Java, which writes the archive
    # Java crashes with a part of an archive.
    if status := java.wait():
        raise RuntimeError(f"Java ended with exit status {status} before it wrote {part}")
    part.rename(archive)


def main() -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.spark_classes", description="Archive Spark's classes."
    )
    parser.add_argument("archive", type=Path, nargs="?", default=ARCHIVE, help="the file to write")
    make(parser.parse_args().archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
