"""Fixtures of several files.

A test that is a coroutine function runs on an event loop of its own (see tests/conftest.py), where ``hub`` is entered:
``async def test_...(hub: Hub)``. A hub with other settings: ``async with hub_of(config(tmp_path, ...)) as hub``.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from headwater_host.hub.service import Hub
from headwater_mq.forward import Forward
from tests.host.gateway_peers import PtyLine
from tests.host.hub_client import config, hub_of
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


@pytest.fixture
def hub(tmp_path: Path) -> AbstractAsyncContextManager[Hub]:
    """A hub with the settings that nobody changes. Its storage is ``tmp_path / "hub.db"``."""
    return hub_of(config(tmp_path))
