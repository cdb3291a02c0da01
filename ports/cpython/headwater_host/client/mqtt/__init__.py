"""The asyncio client of MQTT 3.1, 3.1.1 and 5.0."""

from headwater_host.client.delivery import Delivery
from headwater_host.client.mqtt.client import Client
from headwater_host.client.mqtt.messages import Message
from headwater_host.client.mqtt.options import Limits, SessionOptions, Version
from headwater_host.client.options import ConnectionOptions, WhenFull
from headwater_host.client.payload import Payload, Will
from headwater_host.client.reconnect import Reconnect
from headwater_host.client.route import Tls
from headwater_host.mqtt_properties import Properties
from headwater_host.topics import Topic, Wildcard

__all__ = [
    "Client",
    "ConnectionOptions",
    "Delivery",
    "Limits",
    "Message",
    "Payload",
    "Properties",
    "Reconnect",
    "SessionOptions",
    "Tls",
    "Topic",
    "Version",
    "WhenFull",
    "Wildcard",
    "Will",
]
