"""The asyncio face on a board; ``settings.SCENARIO`` says what is to be done."""

import asyncio
import gc

import settings

from headwater.errors import HeadwaterError
from headwater.mqtt.client import Client
from headwater.mqtt.keeper import Keeper
from headwater.mqtt.manual_ack import ManualAck
from headwater_board import aio
from headwater_board.tcp import Tcp


def made(name: bytes = b"board", **options: object) -> Keeper:
    options.setdefault("clean_start", False)
    client = Client(
        Tcp("127.0.0.1", settings.PORT), name, keep_alive=1, response_ms=1000, slots=4, window=4, **options
    )
    return Keeper(client, first_ms=50, longest_ms=200, refused_ms=0, connect_ms=1500)


async def until(true: object) -> None:
    while not true():
        await asyncio.sleep_ms(5)


async def steady() -> None:
    """Every QoS there and back, over a broker that restarts: nobody but the keeper notices."""
    keeper = made()
    got = []
    sent = []
    ended = asyncio.Event()

    async def take() -> None:
        async for message in client:
            got.append((message.topic, message.payload, message.qos))
            if message.payload == b"stop":
                ended.set()

    async def give() -> None:
        n = 0
        while not ended.is_set():
            assert await client.publish(b"numbers", b"%d" % n, 1 + n % 2) > 0
            sent.append(n)
            n += 1
            if n % 20 == 0:
                print("published", n)

    keeper.on_online = lambda present: print("online", present)
    async with aio.Client(keeper) as client:
        assert await client.subscribe(b"commands/#", 2) == 2
        print("subscribed")
        taking = asyncio.create_task(take())
        await give()
    await taking
    print("stopped", len(sent), got)


async def cancelled() -> None:
    """The broker stands still: what is awaited can be given up, and comes about in the end."""
    keeper = made()
    delivered = []
    keeper.on_delivered = delivered.append
    async with aio.Client(keeper) as client:
        await client.online()
        print("freeze")
        await until(lambda: keeper.state != 3)
        given_up = 0
        for call in (
            client.publish(b"numbers", b"late", 1),
            client.subscribe(b"a/#", 1),
            client.publish(b"numbers", b"never", 0),
            client.online(),
        ):
            try:
                await asyncio.wait_for_ms(call, 60)
            except asyncio.TimeoutError:
                given_up += 1
        for n in range(6):
            try:
                await asyncio.wait_for_ms(client.publish(b"numbers", b"%d" % n, 1), 60)
            except asyncio.TimeoutError:
                given_up += 1
        print("given up", given_up, len(client._undelivered), len(client._asking))
        await client.online()
        await client.flush(20000)
        assert await client.subscribe(b"a/#", 2) == 2
        print("delivered", len(delivered))


async def refused() -> None:
    """What cannot come about is raised."""
    keeper = made()
    codes = []
    async with aio.Client(keeper) as client:
        for call in (
            client.publish(b"t", b"", 0),
            client.subscribe(b"t"),
            client.online(),
            client.flush(1000),
        ):
            try:
                await call
            except HeadwaterError as e:
                codes.append(e.code)
        for call in (client.publish(b"#", b"", 1), client.subscribe(b"a+"), client.unsubscribe(b"unknown")):
            try:
                await call
            except HeadwaterError as e:
                codes.append(e.code)
    try:
        await client.publish(b"t", b"")
    except HeadwaterError as e:
        codes.append(e.code)
    print("codes", codes)


async def slow() -> None:
    """A consumer that is slower than what arrives: the server waits, and nothing is lost."""
    keeper = made(rx_size=256)
    session = keeper.client.session
    most = count = 0
    async with aio.Client(keeper, queue=3) as client:
        await client.subscribe(b"flood", 1)
        print("ready")
        async for message in client:
            assert int(message.payload[:4]) == count, (message.payload, count)
            count += 1
            most = max(most, len(client._inbox))
            # Longer than the keep-alive allows for silence, in all.
            await asyncio.sleep_ms(15)
            if count == 200:
                break
    # As many as may wait, and what one receive buffer holds.
    print("slow", count, most <= 3 + 256 // 60, keeper.connections, session.duplicates)


async def acknowledged() -> None:
    """The program acknowledges; what it did not comes again on the next connection."""
    keeper = made()
    ManualAck(keeper.client.session)
    got = []
    async with aio.Client(keeper) as client:
        await client.subscribe(b"commands", 2)
        print("ready")
        async for message in client:
            got.append(message.payload)
            if len(got) == 2:
                break
            await client.acknowledge(message)
        keeper.client.close()
        async for message in client:
            got.append(message.payload)
            await client.acknowledge(message)
            break
        await client.flush(1000)
    print("acknowledged", got)


async def angry() -> None:
    """A handler that raises ends nothing."""
    keeper = made()
    seen = []
    done = asyncio.Event()

    def handler(message: object) -> None:
        if len(seen) == 0:
            seen.append(1)
            raise ValueError("no")
        done.set()

    asyncio.get_event_loop().set_exception_handler(lambda loop, context: print("said", context["exception"]))
    keeper.client.on_message = handler
    async with aio.Client(keeper) as client:
        await client.subscribe(b"t", 0)
        await client.publish(b"t", b"1")
        await client.publish(b"t", b"2")
        await done.wait()
    print("calm", keeper.connections)


async def heap() -> None:
    """Bytes of each operation, none of them collected meanwhile."""
    keeper = made(clean_start=True)
    other = Client(Tcp("127.0.0.1", settings.PORT), b"other", clean_start=True)
    other.connect()
    figures = {}
    payload = b"0123456789abcdef"

    taken = bytearray(1)

    def handler(message: object) -> None:
        taken[0] = 1

    async def idle(times: int) -> None:
        await asyncio.sleep_ms(20 * times)

    async def poll(times: int) -> None:
        for _ in range(times):
            keeper.publish(b"elsewhere", payload)
        await asyncio.sleep_ms(0)

    async def publish_0(times: int) -> None:
        for _ in range(times):
            await client.publish(b"elsewhere", payload)

    async def publish_1(times: int) -> None:
        for _ in range(times):
            await client.publish(b"elsewhere", payload, 1)

    async def iterate(times: int) -> None:
        for _ in range(times):
            other.publish(b"here", payload)
            await client.__anext__()

    async def handle(times: int) -> None:
        keeper.client.on_message = handler
        for _ in range(times):
            taken[0] = 0
            other.publish(b"here", payload)
            while not taken[0]:
                await asyncio.sleep_ms(1)

    async with aio.Client(keeper) as client:
        await client.subscribe(b"here")
        for name, operation in (
            ("idle", idle),
            ("poll", poll),
            ("publish_0", publish_0),
            ("publish_1", publish_1),
            ("iterate", iterate),
            ("handle", handle),
        ):
            await operation(1)
            gc.collect()
            gc.disable()
            begin = gc.mem_alloc()
            # As many as there is room for when nothing is collected.
            await operation(25)
            figures[name] = (gc.mem_alloc() - begin) // 25
            gc.enable()
    print("heap", figures)


asyncio.run(globals()[settings.SCENARIO]())
