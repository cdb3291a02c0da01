"""One Spark session for all tests that need Java: two cores, loopback only."""

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.conftest import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: For a test that needs Spark, in s: its start and its first job take half a minute where little else runs, and a test
#: that is cut short takes those behind it with it.
_LONG_S = 400


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_LONG_S))


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


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests need not survive a power cut, and syncs take most of the time of small tables."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
