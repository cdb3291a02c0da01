"""AUTH: who a client is, and which session it goes on with (docs/protocols/fmq.md, sections 3 and 4)."""

import asyncio
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater.fmq.frames import Frame
from headwater_host.fmq.values import decode_at
from headwater_host.hub import frames
from headwater_host.hub.clients import Client, Will
from headwater_host.hub.errors import (
    BAD_USER_NAME_OR_PASSWORD,
    CLIENT_IDENTIFIER_NOT_VALID,
    PROTOCOL_ERROR,
    QUOTA_EXCEEDED,
    SESSION_TAKEN_OVER,
    RefusedError,
)
from headwater_host.hub.publish import HUB, check_ours, check_size

if TYPE_CHECKING:
    from headwater_host.hub.broker import Broker
    from headwater_host.hub.connection import Connection

#: Characters of a client id at most.
LONGEST_ID = 256
#: A client is given up after so many times its keep-alive (MQTT 5.0, 3.1.2.10).
_PATIENCE = 1.5
#: A longer keep-alive counts as this one: a lifetime, in seconds.
_LONGEST_KEEP_ALIVE = 1 << 32
#: Fields in front of the will's payload.
_WILL = 8


class Request(NamedTuple):
    """What AUTH says."""

    name: str = ""
    user: str | None = None
    password: str | None = None
    keep_alive: int = 0
    clean: bool = True
    topic: str | None = None
    qos: int = 0
    retain: bool = False


def on_auth(broker: "Broker", connection: "Connection", f: Frame, ident: bytes) -> None:
    """AUTH has come; nothing else is taken until it is answered."""
    if connection.auth_id:
        raise RefusedError(PROTOCOL_ERROR, "there is one AUTH on a connection")
    connection.auth_id = ident
    refusal = broker.refusal(connection)
    if refusal:
        broker.refused.add(1, "AUTH")
        connection.close(QUOTA_EXCEEDED, refusal)
        return
    buf = bytes(f.buf)
    fields: list[Any] = [decode_at(buf, f.at[n], f.end)[0] for n in range(min(f.count, _WILL))]
    request = Request(*fields)
    payload = buf[f.at[_WILL] : f.end] if f.count > _WILL else b""
    connection.hold()
    connection.login = broker.begin(_login(broker, connection, ident, request, payload))


async def _login(
    broker: "Broker", connection: "Connection", ident: bytes, request: Request, payload: bytes
) -> None:
    try:
        if request.user is not None or request.password is not None:
            password = (request.password or "").encode()
            known = await broker.users.verify(request.user or "", password, connection.peer)
            if not known:
                raise RefusedError(
                    BAD_USER_NAME_OR_PASSWORD, "there is no such user, or the password is wrong"
                )
        connection.login = None
        if connection.closed is None:
            _accept(broker, connection, ident, request, payload)
    except RefusedError as error:
        connection.login = None
        broker.refused.add(1, "AUTH")
        connection.close(error.reason, str(error))
    except asyncio.CancelledError:
        connection.abort()
        raise


def _accept(
    broker: "Broker", connection: "Connection", ident: bytes, request: Request, payload: bytes
) -> None:
    name, user = request.name, request.user
    if len(name) > LONGEST_ID or not name.isprintable():
        raise RefusedError(
            CLIENT_IDENTIFIER_NOT_VALID, f"a client id is text of at most {LONGEST_ID} characters"
        )
    if name == HUB:
        raise RefusedError(CLIENT_IDENTIFIER_NOT_VALID, "this client id is the hub's own")
    if not name and not request.clean:
        raise RefusedError(CLIENT_IDENTIFIER_NOT_VALID, "a session that is kept needs a client id")
    will = None
    if request.topic is not None:
        check_ours(request.topic)
        broker.access.check("PUBLISH", request.topic, user, connection.peer)
        check_size(broker, len(request.topic.encode()) + len(payload))
        will = Will(request.topic, request.qos, request.retain, payload)
    client, present = _client(broker, request)
    client.connection = connection
    broker.keep_will(client, will)
    connection.client = client
    connection.user = user
    connection.patience = min(request.keep_alive, _LONGEST_KEEP_ALIVE) * _PATIENCE
    connection.trust()
    if will is not None:
        connection.weigh()
    if name:
        broker.clients[name] = client
    if client.kept:
        broker.store.sessions.save(name, {"user": user})

    def answer() -> None:
        connection.send(frames.accepted(ident, client.process, present, time.time_ns()))
        if connection.closed is None:
            connection.ready = True
            broker.calls.back(client)
            if client.pusher is not None:
                client.pusher.resume()
            connection.release()

    broker.store.after(answer)


def _client(broker: "Broker", request: Request) -> tuple[Client, bool]:
    """The client that a request is from, and whether it goes on with a session."""
    name, user = request.name, request.user
    before = broker.clients.get(name)
    if before is not None:
        if before.user != user:
            # The session of somebody else, or the connection, is nobody's to take.
            raise RefusedError(CLIENT_IDENTIFIER_NOT_VALID, "this client id is another user's")
        if before.connection is not None:
            before.connection.close(SESSION_TAKEN_OVER, "another connection has this client id")
        before = broker.clients.get(name)
    if before is not None:
        if before.kept and not request.clean:
            broker.away.pop(name, None)
            return before, True
        broker.end(before)
    sessions = broker.store.sessions
    limit = broker.config.clients.sessions
    if not request.clean and len(sessions) >= limit:
        raise RefusedError(QUOTA_EXCEEDED, f"there are {len(sessions)} sessions already")
    if name and name not in sessions.clients and len(sessions.clients) >= limit:
        _forget_one(broker)
    return Client(name, sessions.process(name), user, not request.clean), False


def _forget_one(broker: "Broker") -> None:
    """Forget the process number of the oldest client that has neither a connection nor a session, to make room."""
    sessions = broker.store.sessions
    oldest = next((name for name in sessions.clients if name not in broker.clients), None)
    if oldest is None:
        raise RefusedError(QUOTA_EXCEEDED, f"there are {len(sessions.clients)} clients already")
    sessions.forget(oldest)
