"""The hub's own remote procedure for its operator's commands (``headwater hub status``, ``promote``)."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from headwater.mqtt import spec5
from headwater_host.hub import frames
from headwater_host.hub.connection import Connection
from headwater_host.hub.errors import RefusedError, StorageError

#: Its name.
REPLICATION = "$hub/replication"


class Administration:
    """Answers calls: a JSON object in and out. Clients need to be allowed SLAVEOF.

    ``status`` returns what is answered, once what a command of ``commands`` has changed is stored (``written``).
    """

    def __init__(
        self,
        status: Callable[[], dict[str, Any]],
        written: Callable[[Callable[[], None]], object],
        make_id: Callable[[], bytes],
        commands: Mapping[str, Callable[..., None]] | None = None,
    ):
        self._status = status
        self._written = written
        self._make_id = make_id
        self._commands = {"status": lambda: None, **(commands or {})}

    def on_call(self, connection: Connection, ident: bytes, arguments: bytes) -> None:
        """Answer a call. Raises RefusedError."""
        connection.check_any("SLAVEOF")
        try:
            asked = json.loads(arguments or b"{}")
            self._commands[asked.pop("command", "status")](**asked)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise RefusedError(spec5.PAYLOAD_FORMAT_INVALID, f"not a command: {error!r}") from error
        except StorageError as error:
            raise RefusedError(spec5.IMPLEMENTATION_SPECIFIC_ERROR, str(error)) from error
        self._written(partial(self._respond, connection, ident))

    def _respond(self, connection: Connection, ident: bytes) -> None:
        body = frames.message(None, (), json.dumps(self._status()).encode())
        connection.send(frames.response(self._make_id(), ident, body))
