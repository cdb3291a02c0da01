"""Fixtures of several files.

A test that is a coroutine function runs on an event loop of its own (see tests/conftest.py), where ``hub`` and
``store`` are entered: ``async def test_...(hub: Hub)``. ``@pytest.mark.settings(...)`` gives them other settings.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from headwater_host.hub.service import Hub
from headwater_host.hub.storage import Store
from headwater_mq.forward import Forward
from headwater_mq.manager import QueueManager
from headwater_mq.queue import Queue
from tests.host.gateway_peers import PtyLine
from tests.host.hub_client import config, hub_of
from tests.host.hub_storage import Place, store_at
from tests.host.mq_log import Log, logging_to
from tests.host.mq_queue import ALL, queue_manager
from tests.host.mq_recorder import Recorder
from tests.host.mq_run import Run
from tests.host.mq_uplink import fill, opened, queues


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
def log(tmp_path: Path) -> Iterator[Log]:
    """A capture log that is written, for what a gateway puts into a queue of IBM MQ's kind."""
    with logging_to(tmp_path) as found:
        yield found


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[QueueManager]:
    """A local queue manager with the queue Q."""
    with queue_manager(tmp_path, "Q") as found:
        yield found


@pytest.fixture
def queue(manager: QueueManager) -> Iterator[Queue]:
    """Q, open for everything."""
    with Queue(manager, "Q", ALL) as found:
        yield found


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Forward]:
    """Messages on their way, in a file."""
    found = opened(tmp_path / "mq.db")
    fill(found)
    yield found
    found.close()


@pytest.fixture
def recorder() -> Recorder:
    """IBM's client with the queues of an uplink."""
    return Recorder(queues())


@pytest.fixture
def line(tmp_path: Path) -> Iterator[PtyLine]:
    """A serial line with a board's end, which is unplugged afterwards."""
    line = PtyLine(tmp_path / "ttyBOARD")
    yield line
    line.unplug()


@pytest.fixture
def hub(request: pytest.FixtureRequest, tmp_path: Path) -> AbstractAsyncContextManager[Hub]:
    """A hub whose storage is ``tmp_path / "hub.db"``."""
    given, named = settings_of(request)
    return hub_of(config(tmp_path, *given, **named))


@pytest.fixture
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Place:
    """Where a hub's storage is: ``tmp_path / "hub.db"``, or with ``BOTH_ENGINES`` also an empty database."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return tmp_path / "hub.db"
    # A busy machine may not answer in the time that an event loop waits.
    monkeypatch.setattr("headwater_host.hub.storage.postgres.READ_S", 60)
    return str(request.getfixturevalue("database"))


@pytest.fixture
def store(request: pytest.FixtureRequest, place: Place) -> AbstractAsyncContextManager[Store]:
    """A hub's storage at ``place``."""
    given, named = settings_of(request)
    return store_at(place, *given, **named)


def settings_of(request: pytest.FixtureRequest) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the test's marker ``settings``."""
    marker = request.node.get_closest_marker("settings")
    return (marker.args, marker.kwargs) if marker else ((), {})
