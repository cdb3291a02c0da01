"""Who looks on while a hub works: whoever embeds it may keep what passes, and have answers wait for that."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headwater_host.hub.connection import Connection


class Observer(Protocol):
    """Called in the event loop's thread, in the order in which things happen."""

    def published(self, connection: "Connection | None", frame: bytes) -> None:
        """A PUBLISH was taken, whether its id is new or known. Without a connection: a will, as the hub sends it."""

    def registered(self, connection: "Connection", frame: bytes) -> None:
        """A REGISTER was taken, whether its topic is new or not."""

    def broke(self, connection: "Connection", data: bytes) -> None:
        """A client that was accepted has sent what is no frame; ``data`` begins with that, and is all that is there."""

    def failing(self) -> str:
        """Why nothing that was seen can be kept just now, "" when it can."""

    def behind(self, done: Callable[[], None]) -> Callable[[], None]:
        """What to call in the place of ``done``, which is an answer: that then comes when all that was seen so far is
        kept. In the order of the calls."""
