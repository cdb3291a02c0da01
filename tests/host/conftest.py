"""What tests of several files ask for."""

import sqlite3
from collections.abc import Iterator

import pytest


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    """SQLite's, in memory."""
    connection = sqlite3.connect(":memory:")
    yield connection
    connection.close()
