"""AUTH: authenticate a client and resume or begin its session (docs/protocols/fmq.md, sections 3 and 4)."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from headwater.fmq.frames import Frame
from headwater.mqtt import spec5
from headwater_host.hub import frames, requests
from headwater_host.hub.clients import Client, Clients, Will
from headwater_host.hub.connection import Connection, Shared
from headwater_host.hub.errors import RefusedError
from headwater_host.hub.leadership import refusal
from headwater_host.hub.publish import check_size
from headwater_host.hub.registry import check_ours
from headwater_host.hub.replication.line import SLAVE
from headwater_host.hub.users import Users
from headwater_host.hub.wills import HUB, Wills

#: Characters of the longest client id.
LONGEST_ID = 256
#: A silent client is disconnected after this multiple of its keep-alive (MQTT 5.0, 3.1.2.10).
_PATIENCE = 1.5
#: The longest keep-alive, in seconds: a lifetime. Longer ones count as this one.
_LONGEST_KEEP_ALIVE = 1 << 32


@dataclass
class Login:
    """The handler of AUTH."""

    shared: Shared
    users: Users
    clients: Clients
    wills: Wills
    #: Returns why logins are refused at present, or "".
    refusal: Callable[[Connection], str]
    #: Calls back when everything so far is stored.
    after: Callable[[Callable[[], None]], None]
    #: Called when a client's AUTH has been answered, before its next frame is taken.
    accepted: Callable[[Client], None]
    #: Returns the leader's address for a client that a slave cannot serve, "" if none is known, None to go on.
    moved: Callable[[bool], str | None] = lambda writes: None

    def on_auth(self, connection: Connection, f: Frame, ident: bytes) -> None:
        """Begin a login. Nothing else is taken from the connection until it is answered."""
        if connection.auth_id:
            raise RefusedError(spec5.PROTOCOL_ERROR, "a connection sends AUTH once")
        connection.auth_id = ident
        unable = self.refusal(connection)
        if unable:
            self._refuse(connection, spec5.QUOTA_EXCEEDED, unable)
            return
        request, payload = requests.auth(f)
        moved = self.moved(not request.clean or request.topic is not None)
        if moved is not None:
            self._refuse(connection, *refusal(moved))
            return
        connection.hold()
        connection.login = self.shared.begin(self._login(connection, ident, request, payload))

    def _refuse(self, connection: Connection, reason: int, text: str) -> None:
        self.shared.refused.add(1, "AUTH")
        connection.close(reason, text)

    async def _login(
        self, connection: Connection, ident: bytes, request: requests.Auth, payload: bytes
    ) -> None:
        try:
            if request.user is not None or request.password is not None:
                password = (request.password or "").encode()
                if not await self.users.verify(request.user or "", password, connection.peer):
                    raise RefusedError(
                        spec5.BAD_USER_NAME_OR_PASSWORD, "the user name or the password is wrong"
                    )
            connection.login = None
            if connection.closed is None:
                self._accept(connection, ident, request, payload)
        except RefusedError as error:
            connection.login = None
            self._refuse(connection, error.reason, str(error))
        except asyncio.CancelledError:
            connection.abort()
            raise

    def _accept(self, connection: Connection, ident: bytes, request: requests.Auth, payload: bytes) -> None:
        name, user = request.name, request.user
        if name.startswith(SLAVE):
            self._accept_slave(connection, ident, request)
            return
        _check_id(name, clean=request.clean)
        will = None
        if request.topic is not None:
            check_ours(request.topic)
            self.shared.access.check("PUBLISH", request.topic, user, connection.peer)
            check_size(len(request.topic.encode()) + len(payload), self.shared.limits.frame)
            will = Will(request.topic, request.qos, request.retain, payload)
        client, present = self.clients.claim(name, user, clean=request.clean)
        client.connection = connection
        self.wills.keep(client, will)
        connection.client = client
        connection.user = user
        connection.patience = min(request.keep_alive, _LONGEST_KEEP_ALIVE) * _PATIENCE
        connection.trust()
        if will is not None:
            connection.weigh()
        self.clients.accept(client)
        self.after(partial(self._answer, connection, ident, client, present))

    def _accept_slave(self, connection: Connection, ident: bytes, request: requests.Auth) -> None:
        """Accept another hub. Nothing is stored for it: what is stored may wait for slaves."""
        self.shared.access.check("SLAVEOF", None, request.user, connection.peer)
        client = connection.client = Client("", 0, request.user, kept=False)
        client.connection = connection
        connection.user = request.user
        connection.patience = request.keep_alive * _PATIENCE
        connection.trust()
        self._answer(connection, ident, client, False)

    def _answer(self, connection: Connection, ident: bytes, client: Client, present: bool) -> None:
        connection.send(frames.accepted(ident, client.process, present, time.time_ns()))
        if connection.closed is None:
            connection.ready = True
            self.accepted(client)
            connection.release()


def _check_id(name: str, *, clean: bool) -> None:
    """Raise RefusedError when a client may not have this client id."""
    if len(name) > LONGEST_ID or not name.isprintable():
        text = f"a client id is printable text of at most {LONGEST_ID} characters"
    elif name == HUB:
        text = "this client id is the hub's own"
    elif not name and not clean:
        text = "a session that is kept needs a client id"
    else:
        return
    raise RefusedError(spec5.CLIENT_IDENTIFIER_NOT_VALID, text)
