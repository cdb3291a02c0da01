"""MQTT and FMQ: the core's clients against mosquitto and the hub."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headwater.errors import E_WINDOW, HeadwaterError
from headwater.fmq.client import Client as FmqClient
from headwater.mqtt.client import Client
from headwater.mqtt.session import ClientSession
from headwater.mqtt.topic_aliases import OutgoingAliases
from headwater.mqtt.v5 import ClientV5
from headwater_host.hub.config import HubConfig, Listener
from headwater_host.hub.service import Hub
from tools.bench.wires.message import CLIENT_ID, TOPIC
from tools.bench.wires.meter import COUNT, SECONDS, Session
from tools.broker import HOST, Mosquitto

_MS = int(SECONDS * 1000)


class _Transport:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), SECONDS)
        self.socket.setblocking(False)
        self.close = self.socket.close

    def readinto(self, buf: bytearray | memoryview, n: int) -> int | None:
        with contextlib.suppress(BlockingIOError):
            return self.socket.recv_into(memoryview(buf)[:n])
        return None

    def write(self, buf: bytes | bytearray | memoryview, off: int, n: int) -> int | None:
        with contextlib.suppress(BlockingIOError):
            return self.socket.send(memoryview(buf)[off : off + n])
        return None


class Dialer:
    """Dial a port of this machine for one of the core's clients."""

    def __init__(self, port: int) -> None:
        self._port = port

    def open(self) -> _Transport:
        self._transport = _Transport(self._port)
        return self._transport

    def ticks_ms(self) -> int:
        return int(time.monotonic() * 1000)

    def wait(self, ms: int) -> None:
        select.select([self._transport.socket], [], [], ms / 1000)


# Room for a whole batch, and no PINGREQ in between.
_ROOM: dict[str, Any] = {"keep_alive": 0, "outbox_size": 1 << 17, "tx_size": 1 << 17, "slots": COUNT}


def _client(protocol: str, port: int, name: bytes) -> Client | FmqClient:
    dialer = Dialer(port)
    if protocol == "FMQ":
        return FmqClient(dialer, name, **_ROOM)
    if protocol == "MQTT 3.1.1":
        return Client(dialer, name, **_ROOM)
    aliases = OutgoingAliases(1) if protocol == "MQTT 5, topic alias" else None
    return Client(dialer, session=ClientSession(name, version=ClientV5(aliases_out=aliases), **_ROOM))


#: The protocols of ``session``.
MQTT = ("MQTT 3.1.1", "MQTT 5", "MQTT 5, topic alias")
PROTOCOLS = (*MQTT, "FMQ")


def session(protocol: str, payload: bytes, qos: int) -> Session:
    """Run a publisher's session with any of `PROTOCOLS`."""

    def run(port: int, singly: int, together: int) -> None:
        client = _client(protocol, port, CLIENT_ID)
        client.connect()
        for _ in range(singly):
            _publish(client, payload, qos)
            client.flush(_MS)
        for _ in range(together):
            _publish(client, payload, qos)
        client.flush(_MS)
        client.disconnect()

    return run


def _publish(client: Client | FmqClient, payload: bytes, qos: int) -> None:
    while (status := client.publish(TOPIC, payload, qos)) == E_WINDOW:
        client.wait(1)
    if status < 0:
        raise HeadwaterError(status)


@contextlib.contextmanager
def mosquitto() -> Iterator[int]:
    """Run mosquitto with one subscriber and yield its port; without one, MQTT 5.0's acknowledgement is longer."""
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        settings = {"log_type": "error", "max_inflight_messages": COUNT}
        with Mosquitto(Path(folder), settings=settings) as broker:
            reader = _client("MQTT 3.1.1", broker.port, b"reader")
            reader.session.clean_start = False
            reader.connect()
            reader.subscribe(TOPIC)
            # An answer to any packet sent after SUBSCRIBE shows that SUBSCRIBE was processed.
            reader.publish(b"subscribed", b"", 1)
            reader.flush(_MS)
            reader.disconnect()
            yield broker.port


@contextlib.contextmanager
def hub() -> Iterator[int]:
    """Run a hub with its storage on disk and yield its port."""
    started = threading.Event()
    found: list[Any] = []

    async def serve(path: Path) -> None:
        hub = Hub(HubConfig(path, listeners=(Listener(port=0),)))
        await hub.start()
        over = asyncio.Event()
        found.extend((int(hub.addresses[0][1]), asyncio.get_running_loop(), over))
        started.set()
        await over.wait()
        await hub.stop()

    def work(path: Path) -> None:
        try:
            asyncio.run(serve(path))
        finally:
            started.set()

    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        thread = threading.Thread(target=work, args=(Path(folder) / "hub.db",))
        thread.start()
        started.wait()
        if not found:
            raise ConnectionError("the hub did not start")
        port, loop, over = found
        try:
            yield port
        finally:
            loop.call_soon_threadsafe(over.set)
            thread.join()
