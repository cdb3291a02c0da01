"""The clients that ``board`` measures, the tasks it gives them, and where their code is."""

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
    """One row: its module in ``device``, and what it was installed from.

    ``sources`` are top-level modules of the distribution and of what it needs; ours are in ``sdk`` and ``ports``.
    ``broker`` is whom it speaks to where that is not a canned peer, ``dialect`` what.
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
    """A row that is quoted, not measured: bytes as they were, rates as ratios to the floor of that measurement."""

    label: str
    mpy: int
    heap: int
    heap_per_message: Mapping[str, int]
    ratio: Mapping[str, float]


#: umqtt.simple cannot be installed from PyPI: its archive has no build metadata. Measured in November 2026, in the same
#: way, with the same interpreter, on a machine of the same kind.
QUOTED = Quoted(
    "umqtt.simple (quoted)",
    mpy=2364,
    heap=4800,
    heap_per_message={"publish 0": 128, "publish 1": 320, "receive 0": 320, "receive 1": 448},
    ratio={"publish 0 broker": 0.17, "receive 0": 0.09},
)


@dataclass(frozen=True)
class Task:
    """One column: what is done, with whom, and by which clients beside the floor and ours.

    ``canned`` is a canned peer (``canned.KINDS``); without one it is the client's ``broker``.
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
#: The columns of heap per message, and the task each is taken from.
HEAP_TASKS = {
    "publish 0": "pub Q0",
    "publish 1": "pub Q1",
    "publish 2": "pub Q2",
    "receive 0": "rx Q0",
    "receive 1": "rx Q1",
    "receive 2": "rx Q2",
}


def clients_of(task: Task, wanted: Sequence[str]) -> list[str]:
    """The clients of ``wanted`` that take part in a task, the floor first: the others are compared with it."""
    ours = ["floor", "headwater", "fmq"]
    if task.task == "receive":
        ours += ["headwater_copies"]
        if task.qos < 2 and not task.is_queued:
            ours += ["floor_512", "floor_64k"]
        if task.qos == 0:
            ours += ["floor_whole"]
    return [name for name in [*ours, *task.others] if name == "floor" or name in wanted]


class MissingError(Exception):
    """A client is not installed here."""


def installed(client: Client) -> metadata.Distribution:
    """The distribution, from the folder where ``./run bench`` puts the peers; raises MissingError."""
    for distribution in metadata.distributions(path=[str(CACHE / "peers")]):
        if distribution.metadata["Name"].lower().replace("_", "-") == client.distribution:
            return distribution
    raise MissingError(f"{client.label} is not installed here: ./run bench gets it")


def compiled(client: Client) -> list[Path]:
    """The folders with the client's .mpy files, for MicroPython's module path; raises MissingError."""
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
                # What is meant for other runtimes may not compile; it is not loaded here either.
                with contextlib.suppress(mpy.CompileError):
                    mpy.compile_file(source, made, relative.as_posix())
    return [target, DEVICE / "shims"]


def label_of(name: str) -> str:
    """The row's head, with the version of what was installed."""
    client = CLIENTS[name]
    return f"{client.label} {installed(client).version}" if client.distribution else client.label
