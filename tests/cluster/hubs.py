"""Several hubs on one PostgreSQL database, in one event loop."""

import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

from headwater_host.client.fmq import Client, ConnectionOptions, Reconnect
from headwater_host.hub.cluster.member import Member
from headwater_host.hub.config import ClusterConfig, HubConfig, Listener
from headwater_host.hub.service import Hub
from tests.waiting import until

SECONDS = 60.0


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def member_config(url: str, port: int, lease: float = 2.0, standby: str = "none", **more: Any) -> HubConfig:
    cluster = ClusterConfig(f"127.0.0.1:{port}", lease, standby)
    return HubConfig(storage=url, listeners=(Listener(port=port),), cluster=cluster, **more)


@contextlib.asynccontextmanager
async def hubs(url: str, n: int, lease: float = 2.0, **more: Any) -> AsyncIterator[list[Hub]]:
    started = [Hub(member_config(url, free_port(), lease, **more)) for _ in range(n)]
    try:
        for hub in started:
            await hub.start()
        yield started
    finally:
        for hub in reversed(started):
            await hub.stop()


def leading(started: list[Hub]) -> list[Hub]:
    """The hubs whose broker may send something."""
    return [hub for hub in started if member_of(hub).broker and member_of(hub).leads()]


async def leader_of(started: list[Hub]) -> Hub:
    """The one that leads, once the others know it."""
    await until(lambda: len(leading(started)) == 1, seconds=SECONDS)
    (leader,) = leading(started)
    where = member_of(leader).lease.advertise
    others = [hub for hub in started if hub is not leader]
    await until(
        lambda: all(member_of(hub).leader == where and member_of(hub).store for hub in others),
        seconds=SECONDS,
    )
    return leader


def client_of(started: list[Hub], name: str, **more: Any) -> Client:
    """A client that knows all hubs and reconnects quickly."""
    first, *others = [hub.addresses[0] for hub in started]
    return Client(
        *first,
        identifier=name,
        timeout=SECONDS,
        reconnect=Reconnect(first=0.1, longest=0.5, at_start=True),
        connection=ConnectionOptions(more_servers=others),
        **more,
    )


def member_of(hub: Hub) -> Member:
    """The hub's part in the cluster."""
    assert isinstance(hub.member, Member)
    return hub.member


def stored(hub: Hub, topic: str) -> list[bytes]:
    """The payloads of a topic, as a leader has them."""
    store = hub.broker.store
    queues = range(len(store.topics[topic].queues)) if topic in store.topics else ()
    return [message.payload for queue in queues for message in store.read(topic, queue, 0, 10**6)]
