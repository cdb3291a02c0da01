"""The asyncio face on a board, and a broker of MQTT 5.0 that refuses messages."""

import asyncio

import settings

from headwater.errors import HeadwaterError
from headwater.mqtt.client import Client
from headwater.mqtt.keeper import Keeper
from headwater.mqtt.v5 import ClientV5
from headwater_board import aio
from headwater_board.tcp import Tcp


async def denied() -> None:
    """A broker of 5.0 refuses messages: each is raised once, and the packet id's next message is delivered."""
    client = Client(Tcp("127.0.0.1", settings.PORT), b"board", clean_start=False, slots=1, version=ClientV5())
    seen = []
    client.session.v5.on_refused = lambda packet_id, code: seen.append(code)
    codes = []
    async with aio.Client(Keeper(client, first_ms=50, longest_ms=200)) as face:
        for topic, qos in ((b"denied", 1), (b"numbers", 1), (b"denied", 2), (b"denied", 1), (b"numbers", 2)):
            try:
                codes.append(await face.publish(topic, b"x", qos))
            except HeadwaterError as e:
                codes.append((e.code, e.detail))
        # Two that wait for one slot: the second has the id of the first, which was refused.
        for topics in ((b"denied", b"numbers"), (b"numbers", b"denied")):
            both = await asyncio.gather(
                *[face.publish(topic, b"x", 1) for topic in topics], return_exceptions=True
            )
            codes.append([one.code if isinstance(one, HeadwaterError) else one for one in both])
    print("codes", [codes, seen, face._undelivered])


asyncio.run(denied())
