"""The host's FMQ client against the hub, over real sockets."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from headwater.fmq import spec
from headwater_host.client.fmq import Client, Message, SessionOptions, decode, encode
from headwater_host.errors import (
    ArgumentError,
    FmqConsumerError,
    FmqRequestError,
    PublishError,
    SubscribeError,
)
from headwater_host.hub.service import Hub
from headwater_host.hub.storage import Limits
from tests.host.hub_client import config, hub_of, until
from tests.interop.fmq_peers import PROCESS, Line, scripted

SECONDS = 200.0


def client(hub: Hub, name: str = "c", **more: Any) -> Client:
    host, port = hub.addresses[0]
    return Client(host, port, identifier=name, timeout=SECONDS, **more)


def run(tmp_path: Path, test: Callable[[Hub], Coroutine[Any, Any, None]], **more: Any) -> None:
    async def main() -> None:
        async with hub_of(config(tmp_path, **more)) as hub:
            await asyncio.wait_for(test(hub), 2 * SECONDS)

    asyncio.run(main())


async def taken(c: Client, n: int) -> list[Message]:
    return [await asyncio.wait_for(c.messages.__anext__(), SECONDS) for _ in range(n)]


def test_messages_come_by_themselves_at_every_qos_with_tags(tmp_path: Path) -> None:
    async def test(hub: Hub) -> None:
        async with client(hub) as c:
            subscription = await c.subscribe("boards/+/t", tags=["x"])
            for qos in (0, 1, 2):
                await c.publish("boards/1/t", encode({"n": qos}), qos, tags=["y", "x"])
                await c.publish("boards/1/t", b"not for us", qos, tags="y")
            got = await taken(c, 3)
            assert [(m.topic, m.value(), m.qos, m.tags) for m in got] == [
                ("boards/1/t", {"n": qos}, qos, ("y", "x")) for qos in (0, 1, 2)
            ]
            assert len({m.id for m in got}) == 3
            assert all(m.subscription is None for m in got)
            await c.unsubscribe(subscription)
            await c.publish("boards/1/t", b"", 1, tags="x")
            await c.subscribe("end")
            await c.publish("end", b"", 1)
            assert [m.topic for m in await taken(c, 1)] == ["end"]

    run(tmp_path, test)


def test_a_group_shares_and_what_is_rejected_comes_again(tmp_path: Path) -> None:
    async def test(hub: Hub) -> None:
        async with client(hub, "p") as p, client(hub, "a") as a:
            await p.register("jobs", 2)
            jobs = await a.subscribe("jobs", group="g", condition="n < 5")
            await a.consume(jobs, window=2, need_ack=True)
            for n in range(10):
                await p.post("jobs", encode({"n": n}), 1)
            await p.drain()
            (first,) = await taken(a, 1)
            await first.reject()
            got: list[int] = []
            while len(got) < 5:
                (message,) = await taken(a, 1)
                assert message.subscription is jobs
                got.append(message.value()["n"])
                await message.ack()
                await message.ack()
            assert sorted(got) == [0, 1, 2, 3, 4]

    run(tmp_path, test)


class WorkError(Exception):
    """What a program may raise."""


@pytest.mark.parametrize(
    "how, counted", [("returns", 0), ("is cancelled", 0), ("raises", 3)], ids=["end", "cancelled", "error"]
)
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "kept"])
def test_what_a_consumer_leaves_at_its_end_has_not_failed(
    tmp_path: Path, how: str, counted: int, clean: bool
) -> None:
    """With one try, what counts as one is dead."""

    async def test(hub: Hub) -> None:
        async with client(hub, "p") as p:
            for n in range(4):
                await p.publish("jobs", b"%d" % n, 1)
        a = client(hub, "a", session=SessionOptions(clean_start=clean))

        async def work() -> None:
            async with a:
                await a.consume(await a.subscribe("jobs", group="g"), window=4, need_ack=True)
                (message, *_) = await taken(a, 4)
                await message.ack()
                if how == "raises":
                    raise WorkError
                if how == "is cancelled":
                    task.cancel()
                    await asyncio.sleep(SECONDS)

        task = asyncio.ensure_future(work())
        await asyncio.wait({task})
        assert task.cancelled() == (how == "is cancelled")
        await until(lambda: not hub.broker.connections)
        assert hub.broker.store.dead == counted
        async with client(hub, "b") as b:
            await b.publish("jobs", b"4", 1)
            await b.consume(await b.subscribe("jobs", group="g"), window=8, need_ack=True)
            got = await taken(b, 4 - counted)
            assert [m.payload for m in got] == [b"%d" % n for n in range(1 + counted, 5)]

    run(tmp_path, test, limits=Limits(tries=1))


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "kept"])
def test_a_client_that_is_entered_again_goes_on_with_consuming(tmp_path: Path, clean: bool) -> None:
    async def test(hub: Hub) -> None:
        a = client(hub, "a", session=SessionOptions(clean_start=clean), reconnect=True)
        async with a, client(hub, "p") as p:
            await a.consume(await a.subscribe("jobs", group="g"), window=4, need_ack=True)
            await p.publish("jobs", b"0", 1)
            await taken(a, 1)
        async with a:
            (message,) = await taken(a, 1)
            assert message.payload == b"0"
            await message.ack()
        await until(lambda: not hub.broker.store.topics["jobs"].count)

    run(tmp_path, test)


def test_a_hub_that_does_not_answer_is_not_waited_for_longer_than_the_timeout() -> None:
    async def main() -> None:
        async def hub(line: Line) -> None:
            await line.accept()
            head, ident = await line.frame()
            assert head >> 4 == spec.SUBSCRIBE
            line.say(spec.ACK << 4, ident, 0, PROCESS << 32 | 1)
            await line.ended()

        async with scripted(hub) as where, Client(*where, identifier="c", timeout=0.2) as c:
            await c.consume(await c.subscribe("jobs", group="g"), need_ack=True)

    asyncio.run(asyncio.wait_for(main(), SECONDS))


def test_one_message(tmp_path: Path) -> None:
    async def test(hub: Hub) -> None:
        async with client(hub) as c:
            await c.publish("jobs", b"one", 1)
            message = await c.consume_once("jobs", group="g", need_ack=True)
            assert message is not None
            assert (message.topic, message.payload) == ("jobs", b"one")
            await message.ack()
            # The same again goes to nobody: nothing waits for the group.
            waiting = asyncio.create_task(c.consume_once("jobs", group="g", need_ack=True))
            await c.publish("jobs", b"two", 1)
            message = await waiting
            assert message is not None
            assert message.payload == b"two"

    run(tmp_path, test)


def test_calls(tmp_path: Path) -> None:
    async def test(hub: Hub) -> None:
        async with client(hub, "server") as server, client(hub, "caller") as caller:
            with pytest.raises(FmqRequestError, match="0x10") as none:
                await caller.call("sum", b"")
            assert none.value.reason_code == 0x10
            await server.serve("sum")

            async def work() -> None:
                async for call in server.calls:
                    await call.reply(encode(sum(call.value())))

            working = asyncio.create_task(work())
            results = await asyncio.gather(*(caller.call("sum", encode([n, 1])) for n in range(50)))
            assert [decode(result) for result in results] == [n + 1 for n in range(50)]
            # Larger than any buffer that is there at first.
            await server.serve("sum")
            big = list(range(60000))
            assert decode(await caller.call("sum", encode(big))) == sum(big)
            working.cancel()

    run(tmp_path, test)


def test_refusals_say_why(tmp_path: Path) -> None:
    async def test(hub: Hub) -> None:
        async with client(hub) as c:
            await c.register("jobs", 3)
            await c.register("jobs", 3)
            for request in (c.register("jobs", 2), c.unregister("none")):
                with pytest.raises(FmqRequestError) as refused:
                    await request
                assert refused.value.reason_code >= 0x80
            with pytest.raises(SubscribeError) as bad:
                await c.subscribe("jobs", condition="n <")
            assert bad.value.reason_code == 0x8F
            delivery = await c.post("none", b"", 1)
            with pytest.raises(PublishError, match="there is no topic") as caught:
                await delivery
            assert delivery.reason_code == caught.value.reason_code
            delivery = c.post_nowait("jobs", b"", 2)
            assert await delivery == delivery.reason_code == 0
            with pytest.raises(PublishError, match="there is no topic"):
                await c.publish("nowhere", b"", 1)
            for wrong in (c.publish("a/#", b"", 1), c.publish("", b"", 0), c.register("+"), c.call("#")):
                with pytest.raises(ArgumentError):
                    await wrong

    run(tmp_path, test, auto_register=False)


def test_a_consumer_that_the_hub_ends_says_so_in_its_place(tmp_path: Path) -> None:
    async def test(hub: Hub) -> None:
        async with client(hub) as c:
            jobs = await c.subscribe("jobs", group="g")
            await c.consume(jobs)
            await c.publish("jobs", b"last", 1)
            assert [m.payload for m in await taken(c, 1)] == [b"last"]
            await c.unregister("jobs")
            with pytest.raises(FmqConsumerError) as ended:
                await taken(c, 1)
            assert (ended.value.topic, ended.value.reason_code) == ("jobs", 0x8F)
            await c.subscribe("news")
            await c.publish("news", b"on", 1)
            assert [m.payload for m in await taken(c, 1)] == [b"on"]

    run(tmp_path, test)


def test_what_is_between_hubs_is_refused_clearly(tmp_path: Path) -> None:
    async def test(hub: Hub) -> None:
        asked: list[Callable[[Client], Coroutine[Any, Any, Any]]] = [
            lambda c: c.elect(("10.0.0.1", 7760), 7),
            lambda c: c.slave_of(("10.0.0.1", 7760), ("fe80::1", 7760)),
            lambda c: c.slaves(),
        ]
        for ask in asked:
            async with client(hub) as c:
                with pytest.raises(FmqRequestError) as refused:
                    await ask(c)
                assert refused.value.reason_code == 0x82

    run(tmp_path, test)
