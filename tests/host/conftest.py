"""What tests of several files ask for."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater_mq.forward import Forward
from tests.host.gateway_peers import PtyLine
from tests.host.mq_run import Run
from tests.host.mq_uplink import fill, opened


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    """SQLite's, in memory."""
    connection = sqlite3.connect(":memory:")
    yield connection
    connection.close()


@pytest.fixture
def mq(tmp_path: Path) -> Run:
    """``headwater mq`` on a queue of its own, which put makes."""
    return Run(tmp_path)


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Forward]:
    """Messages on their way, in a file."""
    found = opened(tmp_path / "mq.db")
    fill(found)
    yield found
    found.close()


@pytest.fixture
def line(tmp_path: Path) -> Iterator[PtyLine]:
    """A serial line with a board's end, which is unplugged afterwards."""
    line = PtyLine(tmp_path / "ttyBOARD")
    yield line
    line.unplug()
