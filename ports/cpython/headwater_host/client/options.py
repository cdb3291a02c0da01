"""Options of the clients, a dataclass for each concern. A wrong value raises ArgumentError.

``Reconnect`` is in ``headwater_host.client.reconnect``, ``Tls`` in ``headwater_host.client.route``. The MQTT client has
``SessionOptions`` and ``Limits`` of its own, with more fields (``headwater_host.client.mqtt.options``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from headwater_host.arguments import check_whole
from headwater_host.errors import ArgumentError

if TYPE_CHECKING:
    from os import PathLike

    from headwater_host.client.store import SqliteOutbox

#: What happens to a message for which there is no room: see ``Limits``.
WhenFull: TypeAlias = Literal["block", "refuse", "drop_oldest"]
_WHEN_FULL = get_args(WhenFull)
#: A host, or a host with its port.
Server: TypeAlias = str | tuple[str, int | None]
#: The outbox has a packet id for each message, and some ids are reserved for requests.
MOST_QUEUED = 65280
_NO_BOUND = 1 << 62


def check_options(name: str, value: object, kind: type) -> None:
    """Raise ArgumentError unless ``value`` is a ``kind``."""
    if not isinstance(value, kind):
        raise ArgumentError(f"{name}={value!r}: a {kind.__name__}, such as {kind.__name__}()")


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """Options of a client's connection.

    - ``keepalive``: the keep-alive interval in seconds, 0 for none.
    - ``more_servers``: hosts, or hosts with ports, to try in turn when the first server cannot be reached.
    - ``websocket``: the path, such as ``"/mqtt"``, if the broker speaks MQTT over WebSocket. FMQ has no WebSocket.
    """

    keepalive: int = 60
    more_servers: Sequence[Server] = ()
    websocket: str | None = None

    def __post_init__(self) -> None:
        check_whole("keepalive", self.keepalive, 0, 65535)


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """The session of a client: what the server keeps, what the client stores, and who acknowledges.

    - ``clean_start``: False if the server is to keep the session while the client is disconnected. Needs an identifier.
    - ``store``: the path of a file that keeps unacknowledged messages when the process ends or power fails, or an open
      store (``headwater_host.client.store``). Needs an identifier, and a file for each.
    - ``auto_ack``: False if the program acknowledges received QoS 1 and 2 messages by ``message.ack()``.
    """

    clean_start: bool = True
    store: "SqliteOutbox | str | PathLike[str] | None" = None
    auto_ack: bool = True


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of a client's queues and packets.

    - ``queued_incoming``: when ``messages`` holds this many, reading pauses until half of them are taken; None for no
      limit. Messages that the last read returned are queued as well. While a message or request of the client is
      unanswered, reading continues: further QoS 1 and 2 messages are queued and acknowledged when they are taken; QoS 0
      messages are dropped and counted in ``dropped_incoming``.
    - ``queued_outgoing``: how many QoS 1 and 2 messages may be unacknowledged or waiting, 1 to 65280.
    - ``in_flight``: how many of them are sent without an acknowledgement; by default 20 with MQTT and 1024 with FMQ.
      mosquitto closes a connection with more than 20 at QoS 2.
    - ``packet_size``: the largest packet to receive, in bytes. By default MQTT's largest packet; 16 MiB with FMQ, where
      it is the largest body and at least 64 KiB.
    - ``when_full``: how to publish a message when there is no room for it, or at QoS 0 no connection. "block": the call
      waits. "refuse": the call raises QueueFullError or NotConnectedError. "drop_oldest": the message is queued at
      every QoS; when ``queued_outgoing`` unsent messages are queued, the oldest is dropped and counted in ``dropped``.
    """

    queued_incoming: int | None = 10_000
    queued_outgoing: int = 1024
    in_flight: int | None = None
    packet_size: int | None = None
    when_full: WhenFull = "block"

    def __post_init__(self) -> None:
        if self.queued_incoming is not None:
            check_whole("queued_incoming", self.queued_incoming, 0, _NO_BOUND)
        check_whole("queued_outgoing", self.queued_outgoing, 1, MOST_QUEUED)
        if self.in_flight is not None:
            check_whole("in_flight", self.in_flight, 1, 1 << 30)
        if self.packet_size is not None:
            check_whole("packet_size", self.packet_size, 1, _NO_BOUND)
        if self.when_full not in _WHEN_FULL:
            raise ArgumentError(f"when_full={self.when_full!r}: one of {', '.join(map(repr, _WHEN_FULL))}")
