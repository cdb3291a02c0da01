"""A Spark session for one machine, and what any session needs so that its Python workers run this code."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_LOGGING = Path(__file__).with_name("log4j2.properties")


def local_session(
    name: str, master: str = "local[*]", settings: dict[str, str] | None = None
) -> SparkSession:
    """A session that listens on the loopback interface only, without a web interface and with few words.

    ``settings`` go above the ones here. When a session is there already, it is that one.
    """
    from pyspark.sql import SparkSession

    # The workers must run the interpreter that has this package, not whichever is first on PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # Before the JVM starts, or it says a dozen lines that mean nothing.
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    }
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        defaults |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in (defaults | (settings or {})).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
