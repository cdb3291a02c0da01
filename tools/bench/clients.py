"""The clients and tasks of `board`, and where their code is."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tools import mpy
from tools.bench.dialects import FMQ, MQTT, Dialect
from tools.toolchain import CACHE

DEVICE = Path(__file__).with_name("device")


@dataclass(frozen=True)
class Client:
    """One row: its module in `device` and its distribution.

    `sources` are top-level modules of the distribution and of its requirements; headwater's are in `sdk` and
    `ports`. `broker` is its peer unless that is canned, `dialect` its protocol.
    """

    label: str
    distribution: str = ""
    sources: Sequence[str] = ()
    is_floor: bool = False
    broker: str = "mosquitto"
    dialect: Dialect = MQTT


CLIENTS: Mapping[str, Client] = {
    "floor": Client("raw socket (floor)", is_floor=True),
    "floor_whole": Client("raw socket, one read a packet", is_floor=True),
    "floor_512": Client("raw socket, reads of 512 bytes", is_floor=True),
    "floor_64k": Client("raw socket, reads of 64 KB", is_floor=True),
    "headwater": Client("headwater"),
    "headwater_copies": Client("headwater, handler copies"),
    "fmq": Client("headwater, FMQ", broker="hub", dialect=FMQ),
    "chumicro": Client(
        "chumicro-mqtt",
        "chumicro-mqtt",
        ("chumicro_mqtt", "chumicro_sockets", "chumicro_timing", "chumicro_config", "chumicro_compat"),
    ),
    "aiomqttc": Client("aiomqttc", "aiomqttc", ("aiomqttc",)),
    "minimqtt": Client(
        "MiniMQTT",
        "adafruit-circuitpython-minimqtt",
        ("adafruit_minimqtt", "adafruit_connection_manager", "adafruit_ticks"),
    ),
}


@dataclass(frozen=True)
class Quoted:
    """A row quoted from an earlier measurement: bytes, and ratios to that measurement's floor."""

    label: str
    mpy: int
    heap: int
    heap_per_message: Mapping[str, int]
    ratio: Mapping[str, float]


#: umqtt.simple's archive on PyPI has no build metadata, so pip cannot install it. Measured in November 2026 with the
#: same method, interpreter and kind of machine.
QUOTED = Quoted(
    "umqtt.simple (quoted)",
    mpy=2364,
    heap=4800,
    heap_per_message={"publish 0": 128, "publish 1": 320, "receive 0": 320, "receive 1": 448},
    ratio={"publish 0 broker": 0.17, "receive 0": 0.09},
)


@dataclass(frozen=True)
class Task:
    """One column: what is measured, against which peer, and with which clients besides the floor and headwater.

    `canned` is a canned peer (`canned.KINDS`); without it, the peer is the client's `broker`.
    """

    key: str
    title: str
    task: str
    qos: int
    canned: str = ""
    window: int = 1
    others: Sequence[str] = ()
    is_queued: bool = False


_PEERS = ("chumicro", "aiomqttc", "minimqtt")
_PIPELINE = ("chumicro", "aiomqttc")
TASKS: Sequence[Task] = (
    Task("publish 0", "QoS 0, canned peer", "publish", 0, "sink", 1, _PEERS),
    Task("publish 0 broker", "QoS 0, mosquitto", "publish", 0, others=_PEERS),
    Task("publish 1", "QoS 1, window 1", "publish", 1, others=_PEERS),
    Task("publish 1 pipelined", "QoS 1, window 16", "publish", 1, "", 16, _PIPELINE),
    Task("publish 1 canned", "QoS 1, window 16, canned peer", "publish", 1, "acks", 16, _PIPELINE),
    Task("publish 2", "QoS 2, window 1", "publish", 2),
    Task("publish 2 pipelined", "QoS 2, window 16", "publish", 2, window=16),
    Task("receive 0", "QoS 0, canned peer", "receive", 0, "flood0", 1, _PEERS),
    Task("receive 1", "QoS 1, canned peer", "receive", 1, "flood1", 1, _PEERS),
    Task("receive 1 queued", "QoS 1, mosquitto", "receive", 1, others=_PEERS, is_queued=True),
    Task("receive 2", "QoS 2, canned peer", "receive", 2, "handshakes"),
)
#: Columns of heap per message, and the task of each.
HEAP_TASKS = {
    "publish 0": "pub Q0",
    "publish 1": "pub Q1",
    "publish 2": "pub Q2",
    "receive 0": "rx Q0",
    "receive 1": "rx Q1",
    "receive 2": "rx Q2",
}


def clients_of(task: Task, wanted: Sequence[str]) -> list[str]:
    """Return the clients among `wanted` that take part in a task, starting with the floor."""
    ours = ["floor", "headwater", "fmq"]
    if task.task == "receive":
        ours += ["headwater_copies"]
        if task.qos < 2 and not task.is_queued:
            ours += ["floor_512", "floor_64k"]
        if task.qos == 0:
            ours += ["floor_whole"]
    return [name for name in [*ours, *task.others] if name == "floor" or name in wanted]


class MissingError(Exception):
    """A client is not installed."""


def installed(client: Client) -> metadata.Distribution:
    """Return the distribution installed by `./run bench`. Raises MissingError."""
    for distribution in metadata.distributions(path=[str(CACHE / "peers")]):
        if distribution.metadata["Name"].lower().replace("_", "-") == client.distribution:
            return distribution
    raise MissingError(f"{client.label} is not installed: ./run bench installs it")


def compiled(client: Client) -> list[Path]:
    """Return the folders of the client's .mpy files for MicroPython's module path. Raises MissingError."""
    if client.is_floor:
        return []
    if not client.distribution:
        return [mpy.compiled(mpy.SDK), mpy.compiled(mpy.BOARD_PORT)]
    root = CACHE / "peers"
    target = CACHE / "bench" / f"{client.distribution}-{installed(client).version}"
    for name in client.sources:
        files = sorted((root / name).rglob("*.py")) if (root / name).is_dir() else [root / f"{name}.py"]
        for source in files:
            relative = source.relative_to(root)
            made = target / relative.with_suffix(".mpy")
            if not made.exists():
                # Modules for other runtimes may not compile and are not loaded.
                with contextlib.suppress(mpy.CompileError):
                    mpy.compile_file(source, made, relative.as_posix())
    return [target, DEVICE / "shims"]


def label_of(name: str) -> str:
    """Return the row's label with the installed version."""
    client = CLIENTS[name]
    return f"{client.label} {installed(client).version}" if client.distribution else client.label
