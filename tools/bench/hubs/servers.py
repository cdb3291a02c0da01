"""The servers, each with its durable setting: docs/benchmarks.md says what each setting promises."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tools import toolchain
from tools.bench.hubs.wires import RECEIVE_WINDOW, Fmq, FmqGroup, Mqtt, Redis, RedisWait, Wire
from tools.broker import HOST, Amqtt, Broker, BrokerError, Mosquitto
from tools.postgres import PostgreSql
from tools.rabbitmq import RabbitMq, RabbitMqCluster


class HeadwaterHub(Broker):
    """The hub, as ``headwater hub`` starts it."""

    name = "headwater hub"

    def command(self) -> list[str]:
        storage = str(self.directory / "hub.db")
        return [sys.executable, "-m", "headwater_host", "hub", "--port", str(self.port), "--storage", storage]


class HeadwaterPostgres(HeadwaterHub):
    """The hub on a PostgreSQL of its own."""

    #: Whether commits wait for a standby.
    standby = False

    def __init__(self, directory: Path, port: int | None = None) -> None:
        """Raises BrokerError when PostgreSQL is not installed."""
        super().__init__(directory, port)
        _program("postgresql")
        self._databases: list[PostgreSql] = []

    @property
    def pids(self) -> list[int]:
        return [*super().pids, *(pid for database in self._databases for pid in database.pids)]

    def command(self) -> list[str]:
        return [*super().command()[:-1], self._databases[0].url()]

    def start(self) -> None:
        primary = PostgreSql()
        self._databases = [primary]
        try:
            primary.start()
            if self.standby:
                self._databases.append(primary.standby("standby"))
                primary.require("standby")
            super().start()
        except BaseException:
            self.kill()
            raise

    def _end(self, how: signal.Signals) -> None:
        super()._end(how)
        databases, self._databases = self._databases, []
        for database in databases:
            database.remove()


class HeadwaterPostgresStandby(HeadwaterPostgres):
    """The hub on a PostgreSQL with a synchronous standby."""

    standby = True


class RedisServer(Broker):
    """Debian's redis-server: the append-only file synced before each answer, and no snapshots."""

    name = "redis-server"

    def __init__(self, directory: Path, port: int | None = None) -> None:
        """Raises BrokerError when it is not installed."""
        super().__init__(directory, port)
        self._program = _program("redis")

    def command(self) -> list[str]:
        settings = {
            "port": self.port,
            "bind": HOST,
            "dir": self.directory.resolve(),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
        }
        return [
            self._program,
            *(text for name, value in settings.items() for text in (f"--{name}", str(value))),
        ]


class RedisWithReplica(RedisServer):
    """A Redis server and its replica, both with the settings above."""

    def __init__(self, directory: Path, port: int | None = None) -> None:
        """Raises BrokerError when it is not installed."""
        super().__init__(directory, port)
        self._replica: RedisServer | None = None

    @property
    def pids(self) -> list[int]:
        return [*super().pids, *(self._replica.pids if self._replica else [])]

    def start(self) -> None:
        super().start()
        self._replica = replica = RedisServer(self.directory / "replica")
        try:
            replica.start()
            with socket.create_connection((HOST, replica.port), timeout=10) as control:
                control.sendall(b"REPLICAOF %b %d\r\n" % (HOST.encode(), self.port))
            deadline = time.monotonic() + self.start_s
            with socket.create_connection((HOST, self.port), timeout=10) as control:
                said = b""
                while b"state=online" not in said:
                    if time.monotonic() > deadline:
                        raise BrokerError(f"the replica is not online: {said!r}")
                    control.sendall(b"INFO replication\r\n")
                    said = control.recv(1 << 16)
                    time.sleep(0.02)
        except BaseException:
            self.kill()
            raise

    def _end(self, how: signal.Signals) -> None:
        replica, self._replica = self._replica, None
        if replica is not None:
            replica._end(how)
        super()._end(how)


def _program(name: str) -> str:
    program = toolchain.find(name)
    if program is None:
        raise BrokerError(f"{name} is not installed: {toolchain.TOOLS[name].get}")
    return str(program)


def _mosquitto(folder: Path) -> Broker:
    settings: dict[str, object] = {
        "persistence": "true",
        "persistence_location": f"{folder.resolve()}/",
        "max_inflight_messages": RECEIVE_WINDOW,
        "log_type": "error",
    }
    return Mosquitto(folder, settings=settings)


def _rabbitmq(folder: Path) -> Broker:
    settings = {"mqtt.prefetch": RECEIVE_WINDOW, "log.console.level": "error"}
    return RabbitMq(folder, settings=settings)


def _quorum(folder: Path) -> Broker:
    return RabbitMqCluster(folder, settings={"mqtt.prefetch": RECEIVE_WINDOW, "log.console.level": "error"})


def _said(command: Sequence[str], pattern: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(pattern, done.stdout)
    return found[1] if found else "?"


def _debian(package: str) -> str:
    return _said(["dpkg-query", "-W", "-f", "${Version}", package], r"(?:\d+:)?([\d.]+)")


@dataclass(frozen=True)
class Server:
    """A process that is measured, and its version; ``slow``: it takes too long to start for each measurement."""

    start: Callable[[Path], Broker]
    version: Callable[[], str] = lambda: ""
    slow: bool = False


SERVERS = {
    "headwater": Server(HeadwaterHub),
    "postgresql": Server(HeadwaterPostgres, slow=True),
    "standby": Server(HeadwaterPostgresStandby, slow=True),
    "amqtt": Server(Amqtt, lambda: metadata.version("amqtt")),
    "mosquitto": Server(_mosquitto, lambda: _said([_program("mosquitto"), "-h"], r"version (\S+)")),
    "rabbitmq": Server(_rabbitmq, lambda: _debian("rabbitmq-server"), slow=True),
    "quorum": Server(_quorum, lambda: _debian("rabbitmq-server"), slow=True),
    "redis": Server(RedisServer, lambda: _said([_program("redis"), "--version"], r"v=(\S+)")),
    "replica": Server(RedisWithReplica, lambda: _said([_program("redis"), "--version"], r"v=(\S+)")),
}


@dataclass(frozen=True)
class Row:
    """A row of the tables: a server, spoken to in one way, at these QoS."""

    label: str
    server: str
    wire: type[Wire]
    qos: Sequence[int] = (0, 1, 2)


ROWS = {
    "headwater": Row("headwater hub, subscription", "headwater", Fmq),
    "group": Row("headwater hub, consumer group", "headwater", FmqGroup),
    "postgresql": Row("headwater hub on PostgreSQL", "postgresql", FmqGroup, (1, 2)),
    "standby": Row("headwater hub on PostgreSQL, synchronous standby", "standby", FmqGroup, (1, 2)),
    "amqtt": Row("amqtt (in memory)", "amqtt", Mqtt),
    "mosquitto": Row("mosquitto", "mosquitto", Mqtt),
    "rabbitmq": Row("RabbitMQ (MQTT plugin)", "rabbitmq", Mqtt, (0, 1)),
    "quorum": Row("RabbitMQ, quorum queues on 3 nodes", "quorum", Mqtt, (1,)),
    "redis": Row("Redis Streams", "redis", Redis, (1,)),
    "replica": Row("Redis Streams, WAIT for 1 replica", "replica", RedisWait, (1,)),
}


def processor_seconds(*pids: int) -> float:
    """What processes, their threads and their child processes have used."""
    used = 0.0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                used += int((task / "schedstat").read_text().split()[0]) / 1e9
                used += processor_seconds(*map(int, (task / "children").read_text().split()))
    return used


def syncs_per_second(folder: Path, count: int = 200) -> float:
    """How often in a second this disk takes 4 KiB so that they stay."""
    with (folder / "sync").open("wb", buffering=0) as file:
        began = time.perf_counter()
        for _ in range(count):
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
        return count / (time.perf_counter() - began)
