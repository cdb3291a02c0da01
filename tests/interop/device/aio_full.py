"""The asyncio face on a board, with more messages than its queue holds; ``settings.SCENARIO`` says how."""

import asyncio

import settings

from headwater.mqtt.client import Client
from headwater.mqtt.keeper import Keeper
from headwater_board import aio
from headwater_board.tcp import Tcp


def made(**options: object) -> Keeper:
    options.update(keep_alive=1, response_ms=1000, clean_start=options.get("clean_start", False), slots=4)
    if settings.V5:
        from headwater.mqtt.v5 import ClientV5

        options["version"] = ClientV5()
    client = Client(Tcp("127.0.0.1", settings.PORT), b"board", **options)
    return Keeper(client, first_ms=50, longest_ms=200)


async def until(true: object) -> None:
    while not true():
        await asyncio.sleep_ms(5)


async def echo() -> None:
    """Publish for each message that arrives while the queue is full, also behind a reconnect."""
    keeper = made()
    got = []
    async with aio.Client(keeper) as client:
        assert await client.subscribe(b"commands", 2) == 2
        print("ready")
        async for message in client:
            if message.payload in got:
                continue
            got.append(message.payload)
            if len(got) in (1, 10):
                await until(lambda: len(client._inbox) >= client.queue)
            if len(got) == 10:
                keeper.client.close()
            await client.publish(b"numbers", message.payload, 1)
            if len(got) == 60:
                break
    print("echoed", keeper.connections, got)


async def dropping() -> None:
    """Nobody iterates: at QoS 0 what does not fit is dropped, and answers arrive behind it."""
    keeper = made(rx_size=256)
    async with aio.Client(keeper, queue=4) as client:
        await client.subscribe(b"flood", 0)
        print("ready")
        await until(lambda: len(client._inbox) >= 4)
        # Until something is due the broker waits.
        assert client.dropped == 0
        for n in range(20):
            await client.publish(b"numbers", b"%d" % n, 1)
            assert 4 <= len(client._inbox) <= 4 + 256 // 50
        assert await client.subscribe(b"other", 1) == 1
        dropped = client.dropped
        taken = 0
        while taken + client.dropped < 400:
            await client.__anext__()
            taken += 1
        assert client.dropped == dropped
    print("dropped", dropped > 0, keeper.connections)


async def beyond() -> None:
    """The broker has no window, and more messages come than are held: the rest come on the next connection."""
    keeper = made()
    lost = []
    got = []
    keeper.on_offline = lost.append
    async with aio.Client(keeper, queue=2, unacknowledged=5) as client:
        await client.subscribe(b"flood", 1)
        other = Client(Tcp("127.0.0.1", settings.PORT), b"other", outbox_size=64, slots=1)
        told = []
        other.on_message = lambda message: told.append(1)
        other.connect()
        other.subscribe(b"flooded")
        while other.session.awaits():
            other.wait(20)
        print("ready")
        await until(lambda: other.poll() or told)
        # The acknowledgement lies behind all of them.
        await client.publish(b"numbers", b"", 1)
        most = len(client._inbox)
        assert not lost
        async for message in client:
            if message.payload not in got:
                got.append(message.payload)
            if len(got) == 50:
                break
    # As many as may wait, and what one read brings.
    print(
        "beyond",
        set(lost),
        7 <= most <= 7 + 512 // 50,
        [int(payload[:4]) for payload in got] == list(range(50)),
    )


async def anew() -> None:
    """What was not taken is lost with the session: the connection ends for it once, and the next one stays."""
    keeper = made(clean_start=True)
    async with aio.Client(keeper, queue=2, unacknowledged=5) as client:
        await client.subscribe(b"flood", 1)
        print("ready")
        await until(lambda: len(client._inbox) >= 2)
        while not client._missed:
            # The acknowledgement lies behind the messages that have arrived.
            await client.publish(b"numbers", b"", 1)
        while client._inbox:
            await client.__anext__()
        await until(lambda: keeper.connections > 1 and keeper.client.connected)
        for _ in range(20):
            await client.publish(b"numbers", b"", 1)
            await asyncio.sleep_ms(client.turn_ms)
    print("anew", keeper.connections)


asyncio.run(globals()[settings.SCENARIO]())
