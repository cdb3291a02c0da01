"""One Spark session for all tests that need Java: two cores, loopback only."""

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.conftest import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """Spark, as ``headwater pipeline`` starts it."""
    require("java")
    from headwater_spark.session import local_session

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = local_session(
        "headwater tests",
        "local[2]",
        {
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "1g",
        },
    )
    yield session
    session.stop()
