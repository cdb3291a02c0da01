"""The blocking FMQ client against the hub: a program with threads publishes, consumes and calls."""

import asyncio
from pathlib import Path

import pytest

from headwater_host.client.blocking import FmqClient
from headwater_host.client.fmq import Client, ConnectionOptions, encode
from headwater_host.errors import ArgumentError, FmqRequestError, NotConnectedError, TimedOutError
from headwater_host.hub.service import Hub
from tests.host.hub_client import config, hub_of

SECONDS = 200.0


async def test_a_program_with_threads(tmp_path: Path) -> None:
    def program(host: str, port: int) -> None:
        with FmqClient(host, port, identifier="b", timeout=SECONDS) as client:
            assert client.identifier == "b"
            client.register("jobs", 2)
            jobs = client.subscribe("jobs", group="g", condition="n < 2")
            client.consume(jobs, window=5, need_ack=True)
            for n in range(3):
                assert client.post("jobs", encode({"n": n}), 1, tags=["x"]).wait(SECONDS) == 0
            client.drain()
            first = client.get(SECONDS)
            second = client.get(SECONDS)
            assert sorted(m.value()["n"] for m in (first, second)) == [0, 1]
            client.reject(first)
            again = client.get(SECONDS)
            assert again.id == first.id
            client.ack(second)
            client.ack(again)
            with pytest.raises(TimedOutError):
                client.get(0.1)
            assert client.call("double", encode(21), SECONDS) == encode(42)
            with pytest.raises(FmqRequestError):
                client.call("nobody", b"", SECONDS)
            client.unsubscribe(jobs)
            client.unregister("jobs")
        with pytest.raises(NotConnectedError):
            client.publish("t")

    async def main(hub: Hub) -> None:
        host, port = hub.addresses[0]
        async with Client(host, port, timeout=SECONDS) as responder:
            await responder.serve("double")

            async def serve() -> None:
                async for call in responder.calls:
                    await call.reply(encode(2 * call.value()))

            serving = asyncio.create_task(serve())
            await asyncio.to_thread(program, host, port)
            serving.cancel()

    async with hub_of(config(tmp_path)) as hub:
        await asyncio.wait_for(main(hub), 2 * SECONDS)


def test_its_options_are_those_of_the_asyncio_client() -> None:
    with pytest.raises(ArgumentError, match="FMQ has no WebSocket"):
        FmqClient("nowhere", connection=ConnectionOptions(websocket="/mqtt"))
    with pytest.raises(TypeError, match="protocol"):
        FmqClient("nowhere", protocol="5.0")  # type: ignore[call-arg]
