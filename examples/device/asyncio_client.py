"""Receive commands and publish telemetry in two asyncio tasks; reconnecting is automatic."""

import asyncio
import gc

from headwater.mqtt.client import Client
from headwater.mqtt.keeper import Keeper
from headwater_board import aio
from headwater_board.tcp import Tcp


async def measure(client: aio.Client) -> None:
    while True:
        await client.publish(b"board-1/heap", b"%d" % gc.mem_free(), 1)
        await asyncio.sleep(1)


async def main() -> None:
    keeper = Keeper(Client(Tcp("broker.local"), b"board-1", clean_start=False))
    async with aio.Client(keeper) as client:
        await client.subscribe(b"board-1/commands", 1)
        task = asyncio.create_task(measure(client))
        async for message in client:
            print(message.topic, message.payload)
            if message.payload == b"stop":
                break
        task.cancel()


asyncio.run(main())
