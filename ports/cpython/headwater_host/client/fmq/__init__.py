"""The asyncio client of FMQ (``docs/protocols/fmq.md``)."""

from headwater_host.client.delivery import Delivery
from headwater_host.client.fmq.client import Client
from headwater_host.client.fmq.messages import Call, Message, Subscription
from headwater_host.client.options import ConnectionOptions, Limits, SessionOptions, WhenFull
from headwater_host.client.payload import Payload, Will
from headwater_host.client.reconnect import Reconnect
from headwater_host.client.route import Tls
from headwater_host.fmq.values import decode, encode
from headwater_host.topics import Topic

__all__ = [
    "Call",
    "Client",
    "ConnectionOptions",
    "Delivery",
    "Limits",
    "Message",
    "Payload",
    "Reconnect",
    "SessionOptions",
    "Subscription",
    "Tls",
    "Topic",
    "WhenFull",
    "Will",
    "decode",
    "encode",
]
