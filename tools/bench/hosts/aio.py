"""The asyncio clients, each with its best documented way to keep many messages in flight."""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import Any

from tools.bench.hosts.job import HOST, MARK, TOPIC, WINDOWS, Incoming, Job, Outgoing

# Concurrent calls by QoS, where a call ends with the acknowledgement. mosquitto's window at QoS 2 is 20.
_GATHER = (100, 100, 20)


class AsyncBench:
    """One client in one task.

    `publish` returns when everything is acknowledged, at QoS 0 when the broker has read it; `receive` returns after
    the last message. `connect` subscribes for `receive`.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.client: Any = None

    async def connect(self) -> None:
        raise NotImplementedError

    async def publish(self, outgoing: Outgoing) -> None:
        raise NotImplementedError

    async def receive(self, incoming: Incoming) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


class Headwater(AsyncBench):
    """`post` waits for room only, `drain` for the acknowledgements."""

    async def connect(self) -> None:
        from headwater_host.client.mqtt import Client, Limits

        self.client = Client(HOST, self.job.port, limits=Limits(in_flight=WINDOWS[self.job.qos]))
        await self.client.__aenter__()
        if self.job.task == "receive":
            await self.client.subscribe(TOPIC, self.job.qos)

    async def publish(self, outgoing: Outgoing) -> None:
        post = self.client.post
        qos = self.job.qos
        for body in outgoing:
            await post(TOPIC, body, qos)
        await (self.client.drain() if qos else self.client.publish(MARK, b"", 1))

    async def receive(self, incoming: Incoming) -> None:
        async for message in self.client.messages:
            if incoming.take(message.payload):
                break

    async def close(self) -> None:
        await self.client.__aexit__(None, None, None)


class Aiomqtt(AsyncBench):
    """`publish` ends with the acknowledgement, so 100 run at a time."""

    async def connect(self) -> None:
        import aiomqtt

        logging.getLogger("mqtt").setLevel(logging.ERROR)
        self.client = aiomqtt.Client(HOST, self.job.port, max_inflight_messages=WINDOWS[self.job.qos])
        await self.client.__aenter__()
        if self.job.task == "receive":
            await self.client.subscribe(TOPIC, self.job.qos)

    async def publish(self, outgoing: Outgoing) -> None:
        send = self.client.publish
        await _gather(outgoing, _GATHER[self.job.qos], lambda body: send(TOPIC, body, self.job.qos))
        if self.job.qos == 0:
            await send(MARK, b"", 1)

    async def receive(self, incoming: Incoming) -> None:
        async for message in self.client.messages:
            if incoming.take(message.payload):
                break

    async def close(self) -> None:
        await self.client.__aexit__(None, None, None)


class Gmqtt(AsyncBench):
    """`publish` returns at once; its store shows when all messages are acknowledged.

    The loop must run regularly. At QoS 2 the program must wait, because gmqtt has no window and mosquitto
    disconnects.
    """

    async def connect(self) -> None:
        import gmqtt

        logging.getLogger("gmqtt").setLevel(logging.ERROR)
        self.client = gmqtt.Client(None)
        self.subscribed = asyncio.Event()
        self.over = asyncio.Event()
        self.client.on_message = self._on_message
        self.client.on_subscribe = lambda *_: self.subscribed.set()
        await self.client.connect(HOST, self.job.port, version=gmqtt.constants.MQTTv311)
        if self.job.task == "receive":
            self.client.subscribe(TOPIC, self.job.qos)
            await self.subscribed.wait()

    async def publish(self, outgoing: Outgoing) -> None:
        send = self.client.publish
        qos = self.job.qos
        bodies = iter(outgoing)
        while group := list(islice(bodies, _GATHER[qos])):
            for body in group:
                send(TOPIC, body, qos)
            await (self.client._persistent_storage.wait_empty() if qos == 2 else asyncio.sleep(0))
        if qos == 0:
            send(MARK, b"", 1)
        await self.client._persistent_storage.wait_empty()

    def _on_message(self, client: object, topic: str, body: bytes, qos: int, properties: object) -> int:
        if self.incoming.take(body):
            self.over.set()
        return 0

    async def receive(self, incoming: Incoming) -> None:
        self.incoming = incoming
        await self.over.wait()

    async def close(self) -> None:
        await self.client.disconnect()


class Amqtt(AsyncBench):
    """`publish` ends with the acknowledgement, so 100 run at a time."""

    async def connect(self) -> None:
        from amqtt.client import MQTTClient

        logging.disable(logging.WARNING)
        self.client = MQTTClient(config={"auto_reconnect": False})
        await self.client.connect(f"mqtt://{HOST}:{self.job.port}/")
        if self.job.task == "receive":
            await self.client.subscribe([(TOPIC, self.job.qos)])

    async def publish(self, outgoing: Outgoing) -> None:
        send = self.client.publish
        await _gather(outgoing, _GATHER[self.job.qos], lambda body: send(TOPIC, body, self.job.qos))
        if self.job.qos == 0:
            await send(MARK, b"", 1)

    async def receive(self, incoming: Incoming) -> None:
        while True:
            message = await self.client.deliver_message()
            if incoming.take(message.data):
                return

    async def close(self) -> None:
        await self.client.disconnect()


class Mqttium(AsyncBench):
    """`publish` returns a receipt that completes with the acknowledgement; a callback gets messages."""

    async def connect(self) -> None:
        from mqttium.api import AsyncClient

        receiving = self.job.task == "receive"
        self.client = AsyncClient(
            "bench-host",
            message_delivery="callback" if receiving else "iterator",
            max_outbound_inflight=WINDOWS[self.job.qos],
        )
        self.over = asyncio.Event()
        if receiving:
            self.client.on_message = self._on_message
        await self.client.connect(HOST, self.job.port)
        if receiving:
            await self.client.subscribe(TOPIC, qos=self.job.qos)

    async def publish(self, outgoing: Outgoing) -> None:
        send = self.client.publish
        qos = self.job.qos
        receipts = [await send(TOPIC, body, qos=qos) for body in outgoing]
        if qos == 0:
            receipts = [await send(MARK, b"", qos=1)]
        for receipt in receipts:
            await receipt.wait()

    def _on_message(self, message: Any) -> None:
        if self.incoming.take(message.payload):
            self.over.set()

    async def receive(self, incoming: Incoming) -> None:
        self.incoming = incoming
        await self.over.wait()

    async def close(self) -> None:
        await self.client.disconnect()


async def _gather(outgoing: Outgoing, count: int, send: Any) -> None:
    bodies = iter(outgoing)
    while group := list(islice(bodies, count)):
        await asyncio.gather(*map(send, group))
