"""What the tests of TLS and WebSocket on a computer share."""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headwater_host.client.mqtt import Client
from tests.waiting import take
from tools.broker import HOST, Mosquitto, free_port

StartBroker = Callable[..., Mosquitto]
#: In the words of more than one OpenSSL.
UNKNOWN = r"self-signed certificate in certificate chain|unable to get local issuer"


@dataclass
class Web:
    """A broker's WebSocket listener."""

    broker: Mosquitto
    port: int


def serve_websocket(start: StartBroker, **settings: object) -> Web:
    """mosquitto 2.0.11 wants another listener beside that one."""
    port = free_port()
    broker = start(settings={"listener ": f"{port} {HOST}", "protocol": "websockets", **settings})
    deadline = time.monotonic() + 200
    while True:
        try:
            socket.create_connection((HOST, port)).close()
        except OSError:
            assert time.monotonic() < deadline, broker.log_text()
            time.sleep(0.01)
        else:
            return Web(broker, port)


async def exchange(
    client: Client, sizes: Sequence[int] = (0, 125, 126, 65536, 3_000_000), many: int = 500
) -> None:
    """Each QoS there and back, messages of every size, many at a time."""
    async with client:
        await client.subscribe("exchange/#", qos=2)
        sent = [os.urandom(size) for size in sizes]
        for qos in range(3):
            await asyncio.gather(*(client.publish(f"exchange/{qos}", data, qos) for data in sent))
            assert [m.payload for m in await take(client, len(sent))] == sent
        await asyncio.gather(*(client.publish("exchange/many", n, 1) for n in range(many)))
        assert [int(m.payload) for m in await take(client, many)] == list(range(many))


def connect(port: int, host: str = HOST, **options: Any) -> None:
    async def scenario() -> None:
        async with Client(host, port, **options):
            pass

    asyncio.run(scenario())


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that listens and says nothing."""
    while await reader.read(65536):
        pass
