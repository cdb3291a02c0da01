"""What all tests share: the tools they need, a real broker, and the report of what was missing.

A tool that is missing skips a test on a user's machine, with the reason, and fails it where ``CI`` is set.
"""

import asyncio
import inspect
import itertools
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests import object_store
from tools import spark_classes, toolchain
from tools.broker import Mosquitto
from tools.postgres import PostgreSql
from tools.rabbitmq import RabbitMq
from tools.toolchain import ROOT

_MARKER = "needs_"
#: Folders with tests that share a Spark session or a board, and the parameter by which these tests are known. One
#: process runs all of them, beginning with the run; any process runs the other files.
_TOGETHER = {"tests/spark/": "spark: ", "tests/hil/": ""}
#: Files whose tests share nothing that takes long to make, so that any process may run any of them.
_APART = frozenset(
    {
        "tests/alloc/test_alloc.py",
        "tests/hil/test_board_life.py",
        "tests/hil/test_updates.py",
        "tests/hil/test_virtual_board.py",
        "tests/host/test_board_command.py",
        "tests/host/test_mip.py",
        "tests/interop/test_board_examples.py",
        "tests/interop/test_wifi_board.py",
    }
)
#: The same, with tests that take up to a minute: they begin first, so that the run does not end with one of them.
_LONG = frozenset(
    {
        "tests/cluster/test_history.py",
        "tests/cluster/test_processes.py",
        "tests/cluster/test_sites.py",
        "tests/cluster/test_slave_of_cluster.py",
        "tests/cluster/test_upgrade.py",
        "tests/host/test_hub_kill.py",
        "tests/host/test_hub_silent_database.py",
        "tests/host/test_hub_site_commands.py",
        "tests/host/test_hub_storage_kill.py",
        "tests/host/test_portable.py",
        "tests/interop/test_readme.py",
        "tests/spark/test_clusters.py",
        "tests/spark/test_examples.py",
        "tests/spark/test_growth.py",
        "tests/spark/test_hub_source.py",
        "tests/spark/test_kills.py",
        "tests/spark/test_pipeline_stream.py",
        "tests/spark/test_stream_kill.py",
        "tests/spark/test_tables_on_s3.py",
    }
)


def _missing(name: str) -> str:
    tool = toolchain.TOOLS[name]
    return f"{name} ({tool.what}) is missing: {tool.get}"


def require(name: str) -> Path:
    """The path of a tool of ``tools.toolchain``; skips the test when it is not there."""
    path = toolchain.find(name)
    if path is None:
        pytest.skip(_missing(name))
    return path


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail skipped tests in CI, which tests no real board and has everything else."""
    report = yield
    in_ci = os.environ.get("CI", "").lower() in {"1", "true", "yes"}
    if report.skipped and in_ci and not item.config.getoption("--board"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which is a failure in CI: {report.longrepr}"
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--board",
        metavar="PORT",
        help="run the hardware tests on the board at this serial port (/dev/ttyACM0; several with commas between)",
    )


class _Failures:
    """Names what fails when it does: with several processes there are only dots, and a long run may be cut short."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self.reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.reporter.ensure_newline()
            self.reporter.write_line(f"{report.when} failed: {report.nodeid}")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    # It would hide a flush that a command forgets.
    os.environ.pop("PYTHONUNBUFFERED", None)
    for name, value in spark_classes.environment().items():
        os.environ.setdefault(name, value)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell's script starts it so in the background: the commands that tests interrupt would never end.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and config.getoption("numprocesses", None):
        config.pluginmanager.register(_Failures(reporter))


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """Twice as many processes as there are processors: tests wait for half of their time."""
    count = yield
    return count if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else count * 2


@cache
def _group(nodeid: str) -> str:
    """The tests that one process runs: a test, a file, or a folder's tests that share what is dear."""
    file, _, test = nodeid.partition("::")
    for folder, parameter in _TOGETHER.items():
        if file.startswith(folder) and file not in _APART and parameter in _parameters(file, test):
            return folder
    return nodeid if file in _APART | _LONG else file


def _parameters(file: str, test: str) -> str:
    name = test.partition("[")[0].rpartition("::")[2]
    found = re.search(rf"^ *(?:async )?def {name}\((.*?)\) ->", (ROOT / file).read_text(), re.M | re.S)
    return found[1] if found else ""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the groups of tests for several processes: what is shared, long tests, then from many tests to few."""
    if not hasattr(config, "workerinput"):
        return
    groups = {item: _group(item.nodeid) for item in items}
    sizes = Counter(groups.values())

    def order(item: pytest.Item) -> tuple[bool, bool, int]:
        group = groups[item]
        return group not in _TOGETHER, item.nodeid.partition("::")[0] not in _LONG, -sizes[group]

    items.sort(key=order)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand the processes whole groups of tests, in the order of `pytest_collection_modifyitems`.

    So what a file's or a folder's tests share is made once. (The groups of xdist 3.8 do nothing with pytest 9.2.)
    """
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False
    scheduling = LoadScopeScheduling(config, log)
    assert hasattr(scheduling, "_split_scope"), "this xdist forms its groups in another way"
    scheduling._split_scope = _group
    return scheduling


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers():
        if mark.name.startswith(_MARKER):
            require(mark.name.removeprefix(_MARKER))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run ``async def test_...`` on an event loop of its own.

    A fixture that returns an asynchronous context manager (``hub`` of ``tests/host``) is entered on that loop, and the
    test gets what it yields.
    """
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    async def run() -> None:
        async with AsyncExitStack() as stack:
            for name, value in arguments.items():
                if isinstance(value, AbstractAsyncContextManager):
                    arguments[name] = await stack.enter_async_context(value)
            await test(**arguments)

    asyncio.run(run())
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # From the reports, because the tests may have run in other processes.
    reports = [
        str(r.longrepr)
        for kind in ("skipped", "failed", "error")
        for r in terminalreporter.stats.get(kind, ())
    ]
    counts = {name: sum(_missing(name) in report for report in reports) for name in toolchain.TOOLS}
    if any(counts.values()):
        terminalreporter.section("tools that were missing")
        for name, count in sorted(counts.items()):
            tool = toolchain.TOOLS[name]
            if count:
                terminalreporter.write_line(f"{name} ({tool.what}), wanted by {count} tests: {tool.get}")


@pytest.fixture(scope="session")
def micropython() -> Path:
    """MicroPython's unix build (64-bit)."""
    return require("micropython")


@pytest.fixture(scope="session")
def wasm() -> Path:
    """The folder of the npm package with the 32-bit MicroPython; run it with node."""
    return require("wasm")


@pytest.fixture(scope="session")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Mosquitto]]:
    """Starts a mosquitto for each call: ``mosquitto(persistence=True, settings={"max_inflight_messages": 5})``.

    The broker runs when the call returns and is killed when the tests end, or stopped earlier by ``with`` or ``stop``.
    """
    require("mosquitto")
    with ExitStack() as running:

        def start(
            *,
            port: int | None = None,
            persistence: bool = False,
            settings: Mapping[str, object] | None = None,
        ) -> Mosquitto:
            broker = Mosquitto(
                tmp_path_factory.mktemp("mosquitto"), port, persistence=persistence, settings=settings
            )
            running.callback(broker.kill)  # its state is no longer read, and `stop` takes 0.1 s
            broker.start()
            return broker

        yield start


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    """RabbitMQ with its MQTT plugin, running: one for all tests, because it takes its time to start."""
    require("rabbitmq")
    with RabbitMq(tmp_path_factory.mktemp("rabbitmq")) as broker:
        yield broker


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Callable[..., PostgreSql]]:
    """Starts a PostgreSQL server for each call: ``postgresql(settings={"fsync": "off"})``.

    The server runs when the call returns and is removed when the tests end.
    """
    require("postgresql")
    with ExitStack() as running:

        def start(settings: Mapping[str, object] | None = None) -> PostgreSql:
            server = PostgreSql(settings=settings)
            running.callback(server.remove)
            server.start()
            return server

        yield start


@pytest.fixture(scope="session")
def _object_store() -> Iterator[object_store.ObjectStore]:
    pytest.importorskip("moto", reason="moto is missing: ./run setup")
    with object_store.running() as server:
        yield server


@pytest.fixture
def bucket(_object_store: object_store.ObjectStore) -> object_store.Bucket:
    """An empty bucket of a server with S3's interface, which all tests share."""
    return _object_store.bucket()


@pytest.fixture(scope="session")
def _databases(postgresql: Callable[..., PostgreSql]) -> Callable[[], str]:
    server: PostgreSql = postgresql()
    numbers = itertools.count(1)
    return lambda: server.create(f"test_{next(numbers)}")


@pytest.fixture
def database(_databases: Callable[[], str]) -> str:
    """The URL of an empty database, on a server that all tests share."""
    return _databases()
