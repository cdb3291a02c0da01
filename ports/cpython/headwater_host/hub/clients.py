"""What the hub knows of a client while it is connected, and, if its session is kept, while it is not."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headwater_host.hub.connection import Connection


class Will(NamedTuple):
    """What is published when the client vanishes."""

    topic: str
    qos: int
    retain: bool
    payload: bytes


@dataclass(eq=False)
class Client:
    """A client; one without a name is as many as it has connections."""

    name: str
    process: int
    user: str | None
    #: Whether its session outlives its connection.
    kept: bool
    connection: "Connection | None" = None
    will: Will | None = None
    #: What is done when the client is gone for good, by whose it is.
    ends: list[object] = field(default_factory=list)
