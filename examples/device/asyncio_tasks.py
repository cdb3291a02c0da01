"""Three asyncio tasks: a sensor, a display, and the network. None of them waits for another."""

import asyncio

from machine import ADC, Pin

from headwater.mqtt.client import Client
from headwater.mqtt.keeper import ONLINE, Keeper
from headwater_board import aio
from headwater_board.tcp import Tcp
from headwater_board.wifi import Wifi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A pin of the first analog-to-digital converter: 26 to 28 on RP2, 32 to 39 on ESP32.
PIN = 26

keeper = Keeper(
    Client(Tcp("broker.local"), b"board-1", clean_start=False),
    network=Wifi([("workshop", "correct horse")]),
)
state: "dict[str, Any]" = {"level": 0, "text": "hello"}


async def sense() -> None:
    """Measure ten times a second."""
    adc = ADC(Pin(PIN))
    while True:
        state["level"] = adc.read_u16()
        await asyncio.sleep_ms(100)


async def display() -> None:
    """Show what there is, connected or not. Print stands for a display's driver."""
    while True:
        print(state["text"], state["level"], "online" if keeper.state == ONLINE else "offline")
        await asyncio.sleep_ms(500)


async def talk() -> None:
    """Publish the level every second, and show the texts that arrive."""
    async with aio.Client(keeper) as client:
        await client.subscribe(b"board-1/text", 1)
        publishing = asyncio.create_task(publish(client))
        async for message in client:
            state["text"] = str(message.payload, "utf-8")
        publishing.cancel()


async def publish(client: aio.Client) -> None:
    """Publish the level every second."""
    while True:
        await client.publish(b"board-1/level", b"%d" % state["level"], 1)
        await asyncio.sleep_ms(1000)


async def main() -> None:
    """Run the tasks."""
    await asyncio.gather(sense(), display(), talk())


asyncio.run(main())
