"""The common configuration of the host's MQTT and FMQ sessions, made from a client's options."""

from dataclasses import dataclass

from headwater_host.arguments import string_field
from headwater_host.client.options import ConnectionOptions, Limits, SessionOptions
from headwater_host.client.outbox import GrowingOutbox
from headwater_host.client.payload import Will, payload_bytes
from headwater_host.errors import ArgumentError
from headwater_host.topics import topic_bytes

# The least size of the transmit buffer, in bytes.
_TX = 1 << 16


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """The client, and the sizes of its session.

    - ``slots``: messages that may be unacknowledged or waiting, ``window`` of them sent.
    - ``response_ms``: how long the server may take to answer.
    - ``will``: topic, payload, QoS and RETAIN.
    - ``outbox``: may outlive the process (``headwater_host.client.store``).
    """

    client_id: bytes = b""
    user: bytes | None = None
    password: bytes | None = None
    keep_alive: int = 60
    clean_start: bool = True
    slots: int = 1024
    window: int = 20
    response_ms: int = 10000
    will: tuple[bytes, bytes, int, bool] | None = None
    outbox: GrowingOutbox | None = None

    @property
    def login(self) -> tuple[bytes, int, bool, bytes | None, bytes | None]:
        """The first arguments of both sessions of the core."""
        return self.client_id, self.keep_alive, self.clean_start, self.user, self.password

    def tx_size(self, more: int = 0) -> int:
        """Return the size of a transmit buffer that holds the first packet, with ``more`` bytes besides the strings."""
        strings = (self.client_id, self.user or b"", self.password or b"", *(self.will or ())[:2])
        return _TX + more + sum(map(len, strings))

    def make_outbox(self) -> GrowingOutbox:
        """Return the outbox, one in memory by default."""
        return self.outbox or GrowingOutbox(_TX, self.slots)


def session_config(
    identifier: str,
    username: str | None,
    password: str | bytes | None,
    will: Will | None,
    connection: ConnectionOptions,
    session: SessionOptions,
    limits: Limits,
    in_flight: int,
    timeout: float,
    outbox: GrowingOutbox | None,
) -> SessionConfig:
    """Return the configuration of a client's session. Raises ArgumentError.

    ``in_flight`` is the default of ``Limits.in_flight``.
    """
    if will is not None and not isinstance(will, Will):
        raise ArgumentError(f"will={will!r}: a Will, such as Will(topic, payload)")
    return SessionConfig(
        client_id=string_field("identifier", identifier) or b"",
        user=string_field("username", username),
        password=string_field("password", password),
        keep_alive=connection.keepalive,
        clean_start=session.clean_start,
        slots=limits.queued_outgoing,
        window=in_flight if limits.in_flight is None else limits.in_flight,
        response_ms=int(timeout * 1000),
        will=None
        if will is None
        else (topic_bytes(will.topic), bytes(payload_bytes(will.payload)), will.qos, will.retain),
        outbox=outbox,
    )
