"""An asyncio client of FMQ, with the face of ``headwater_host.aio`` where the ideas are the same.

    async with Client("fmq://hub.local", client_id="reader", clean=False) as client:
        jobs = await client.subscribe("jobs/#", group="workers")
        await client.consume(jobs, window=50, need_ack=True)
        async for message in client.messages:
            print(message.topic, message.value())
            await client.publish("seen", encode({"topic": message.topic}), qos=1)
            await message.ack()

``encode`` and ``decode`` (``headwater_host.fmq.values``) are for payloads that are values of FMQ; ``publish`` takes
bytes. The session lives in the client object, as MQTT's does: entering it again goes on with it, and with
``reconnect`` the client does that by itself.
"""

import asyncio
import logging
import re
import secrets
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from headwater import errors
from headwater.fmq import spec
from headwater.fmq.encode import tag_list
from headwater.reasons import describe
from headwater_host.backlog import Backlog
from headwater_host.calls import Answers, Inbox
from headwater_host.connection import HOLD_APPLICATION, TICK
from headwater_host.errors import (
    FmqConsumerError,
    FmqRequestError,
    MqttArgumentError,
    MqttConnectionError,
    MqttDisconnectedError,
    MqttError,
    MqttFullError,
    MqttProtocolError,
    MqttPublishError,
    MqttReentrantError,
    MqttRefusedError,
    MqttStoreError,
    MqttSubscribeError,
    MqttTimeoutError,
    MqttTlsError,
)
from headwater_host.fmq import address
from headwater_host.fmq.messages import Call, Message, Subscription, texts
from headwater_host.fmq.session import MAX_BODY, HostSession
from headwater_host.fmq.values import decode, decode_at, encode
from headwater_host.keeping import Keeping
from headwater_host.messages import Payload, TooLarge, Will, payload_bytes
from headwater_host.outgoing import POLICIES, Outgoing
from headwater_host.reconnect import Reconnect
from headwater_host.route import Route, Tls
from headwater_host.topics import Topic, filter_bytes, topic_bytes, topic_of
from headwater_host.versions import field

if TYPE_CHECKING:
    from os import PathLike

    from headwater.fmq.decode import Frame
    from headwater_host.fmq.store import FmqOutbox

__all__ = [
    "Call",
    "Client",
    "FmqConsumerError",
    "FmqRequestError",
    "Message",
    "MqttArgumentError",
    "MqttConnectionError",
    "MqttDisconnectedError",
    "MqttError",
    "MqttFullError",
    "MqttProtocolError",
    "MqttPublishError",
    "MqttReentrantError",
    "MqttRefusedError",
    "MqttStoreError",
    "MqttSubscribeError",
    "MqttTimeoutError",
    "MqttTlsError",
    "Reconnect",
    "Subscription",
    "Tls",
    "Topic",
    "Will",
    "decode",
    "encode",
]

PORT = 7760
TLS_PORT = 7761
#: What a responder subscribes to.
SERVED = "$rpc/"
_REPLY = b"$rpc/reply"
_NO_MATCH = 0x10
# The largest window, and the usual one.
_WINDOW = 200
_USUAL = 64
_URL = re.compile(
    r"(fmqs?)://(?:([^/@]*)@)?(?:\[([^\]@]+)\]|([^:/@\[\]\s]+))(?::([0-9]{1,5}))?/?",
)


class _Answer(NamedTuple):
    """What the hub says to a request: 0 or a reason code, and why; the body of its ACK."""

    code: int
    why: str
    body: bytes


class Client(Keeping):
    """A connection to a hub, from ``async with`` to its end, and the session that outlives it.

    - ``host``: a name or an address; or ``fmq://[USER[:PASSWORD]@]HOST[:PORT]``, with TLS ``fmqs://``. ``port``: 7760,
      with TLS 7761. ``more_servers`` are names or addresses, with ports.
    - ``client_id``: without one, a random one is made. A kept session (``clean=False``) and a store need one.
    - ``user`` and ``password``: what AUTH says. ``will``: what the hub publishes when the connection is lost.
    - ``timeout``: seconds that connecting, and each call, may take. ``keep_alive``: seconds, 0 for none.
    - ``store``: the path of a file that keeps what is unacknowledged, and what ids are made of, over the end of the
      process and of the machine's power; or an ``FmqOutbox`` (``headwater_host.fmq.store``).
    - ``max_packet_size``: longer messages are skipped: acknowledged, and logged as a warning.
    - ``max_inflight_messages``: how many messages at QoS 1 and 2 may be under way.
    - ``auto_ack=False``: QoS 1 and 2 messages that come by themselves are acknowledged by ``message.ack()`` only, as
      those of consumers with ``need_ack`` always are.
    - ``tls``, ``max_queued_incoming_messages``, ``max_queued_outgoing_messages``, ``when_full``, ``reconnect`` are
      those of MQTT's client (``headwater_host.aio``).

    ``messages`` has what arrives, ``calls`` what others call that we ``serve``. Errors are those of MQTT's client as
    well, ``MqttError`` and its subclasses (``headwater_host.errors``): for requests FmqRequestError, and
    FmqConsumerError. Not for use from several threads.
    """

    session: HostSession

    def __init__(
        self,
        host: str,
        port: int | None = None,
        *,
        tls: Tls | ssl.SSLContext | bool | None = None,
        client_id: str | None = None,
        user: str | None = None,
        password: str | bytes | None = None,
        will: Will | None = None,
        clean: bool = True,
        keep_alive: int = 60,
        timeout: float = 10,
        max_queued_incoming_messages: int | None = 10_000,
        max_queued_outgoing_messages: int = 1024,
        max_inflight_messages: int = 1024,
        when_full: str = "block",
        max_packet_size: int = MAX_BODY,
        auto_ack: bool = True,
        store: "FmqOutbox | str | PathLike[str] | None" = None,
        reconnect: Reconnect | bool | None = None,
        more_servers: Sequence[tuple[str, int | None]] = (),
        logger: logging.Logger | None = None,
    ):
        if "://" in host:
            secure, host, url_port, url_user, url_password = _taken_apart(host)
            tls = (tls or True) if secure else tls
            port = port if port is not None else url_port
            user = url_user if user is None else user
            password = url_password if password is None else password
        if not clean and not client_id:
            raise MqttArgumentError("a session that the hub is to keep needs a client id")
        if not 0 <= keep_alive <= 65535:
            raise MqttArgumentError("keep_alive is 0 to 65535 seconds")
        if timeout <= 0:
            raise MqttArgumentError("timeout is a number of seconds above 0")
        if not 0 < max_queued_outgoing_messages <= 65280 or max_inflight_messages < 1:
            raise MqttArgumentError(
                "1 to 65280 messages can wait to go out, and at least one can be in flight"
            )
        if when_full not in POLICIES:
            raise MqttArgumentError(f"when_full is one of {', '.join(POLICIES)}, not {when_full!r}")
        usual = TLS_PORT if tls else PORT
        routes = [Route(name, number or usual, tls) for name, number in [(host, port), *more_servers]]
        self.host = host
        self.port = routes[0].port
        self.client_id = "headwater-" + secrets.token_hex(6) if client_id is None else client_id
        box = _open_store(store, client_id, max_queued_outgoing_messages)
        session = HostSession(
            field("client id", self.client_id) or b"",
            keep_alive=keep_alive,
            clean=clean,
            user=field("user", user),
            password=field("password", password),
            max_body=max_packet_size,
            slots=max_queued_outgoing_messages,
            window=max_inflight_messages,
            response_ms=int(timeout * 1000),
            room=_will_size(will),
            outbox=box,
        )
        if will and session.set_will(
            topic_bytes(will.topic), bytes(payload_bytes(will.payload)), will.qos, will.retain
        ):
            raise MqttArgumentError("a will's QoS is 0, 1 or 2")
        super().__init__(
            session,
            routes,
            Reconnect() if reconnect is True else reconnect or None,
            timeout,
            logger or logging.getLogger("headwater.client"),
        )
        session.auto_ack = auto_ack
        session.on_message = self._on_message
        session.on_call = self._on_call
        session.on_result = self._on_result
        session.on_answer = self._on_answer
        session.on_refused = self._on_refused
        session.sink = TooLarge(self.logger)
        self._outgoing: Outgoing[bytes | None] = Outgoing(
            session,
            self._current,
            self._reached,
            self._release_for_answer,
            Backlog() if box is None else box.backlog,
            max_queued_outgoing_messages,
            when_full,
            self.logger,
        )
        session.on_delivered = self._outgoing.delivered
        self._limit = max_queued_incoming_messages
        self._answers: Answers[_Answer | Message] = Answers()
        #: By filter and group, what is subscribed to, and asked for again when the hub has forgotten it.
        self._subscriptions: dict[tuple[str, str], Subscription] = {}
        # By the session's numbers: of subscriptions that are consumed, and of the requests that began that.
        self._consumed: dict[int, Subscription] = {}
        self._consuming: dict[int, Subscription] = {}
        self.messages: Inbox[Message] = Inbox(
            self._current, max_queued_incoming_messages, self._hold_or_release
        )
        self.calls: Inbox[Call] = Inbox(self._current, max_queued_incoming_messages, self._hold_or_release)

    # -- the connection --------------------------------------------------------------------------------------------

    def _on_begin(self, session_present: bool) -> None:
        # What is not acknowledged comes again, at QoS 2 under the id that is known.
        epoch = self.session.epoch
        self.messages.forget(
            lambda m: (
                not m.acknowledged
                and m.epoch != epoch
                and (m.subscription is not None or (session_present and m.qos == 1))
            )
        )
        self.calls.forget(lambda call: True)
        if not session_present:
            for subscription in self._subscriptions.values():
                subscription.number = 0
        if self.connection is not None:
            self.connection.on_writable = self._outgoing.begin
        self._outgoing.begin()

    def _farewell(self) -> None:
        self.session.disconnect()

    def _on_interrupted(self, error: MqttError) -> None:
        self._outgoing.interrupt(error)
        self._answers.fail(error)
        self._consuming.clear()

    def _on_over(self, error: MqttError) -> None:
        self._outgoing.end(error)
        self._answers.fail(error)
        self._consuming.clear()
        if self._policy is None:
            self._subscriptions.clear()
        self.messages.end()
        self.calls.end()

    def _on_tick(self, now: float) -> None:
        self._answers.expire(now)
        self._outgoing.answers.expire(now)
        self._hold_or_release()

    def _acknowledged(self) -> int:
        return self._outgoing.acknowledged

    # -- publishing ------------------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        payload: Payload = None,
        qos: int = 0,
        retain: bool = False,
        *,
        tags: Sequence[str] = (),
        timeout: float | None = None,
    ) -> Coroutine[None, None, None]:
        """Publish; returns when the message is handed to the connection (QoS 0), or stored by the hub (1, 2).

        As ``headwater_host.aio.Client.publish``. ``tags`` are what subscriptions can ask for. Raises MqttPublishError
        when the hub refuses the message, at QoS 1 and 2; it is not sent again.
        """
        return self._outgoing.publish(
            topic, payload, qos, retain, self.timeout if timeout is None else timeout, _tag_list(tags)
        )

    def post(
        self,
        topic: str,
        payload: Payload = None,
        qos: int = 0,
        retain: bool = False,
        *,
        tags: Sequence[str] = (),
        timeout: float | None = None,
    ) -> Coroutine[None, None, None]:
        """As ``publish``, but returns when the message is handed in, at every QoS: so that many are under way.

        ``drain`` waits for their acknowledgements. What the hub refuses is logged.
        """
        return self._outgoing.post(
            topic, payload, qos, retain, self.timeout if timeout is None else timeout, _tag_list(tags)
        )

    async def drain(self, timeout: float | None = None) -> None:
        """Wait until no message of ours is unacknowledged.

        Raises MqttTimeoutError, and MqttConnectionError: then the messages wait for the next connection.
        """
        await self._outgoing.drain(self.timeout if timeout is None else timeout)

    @property
    def dropped(self) -> int:
        """How many messages were dropped, never sent, with ``when_full="drop_oldest"``."""
        return self._outgoing.dropped

    def _on_refused(self, number: int, code: int) -> None:
        error = MqttPublishError(code, self.session.why())
        self.logger.warning("%s", error)
        if number:
            self._outgoing.answers.refuse(number, error)
            self._outgoing.delivered(number)

    # -- topics and subscriptions ----------------------------------------------------------------------------------

    async def register(self, topic: str, queues: int = 1, *, timeout: float | None = None) -> None:
        """Let there be a topic with so many queues. Raises FmqRequestError: it is there with more."""
        name = topic_bytes(topic)
        await self._ask(f"to register {topic!r}", lambda: self.session.register(name, queues), timeout)

    async def unregister(self, topic: str, *, timeout: float | None = None) -> None:
        """Let a topic be no more; its consumers end. Raises FmqRequestError: there is none."""
        name = topic_bytes(topic)
        await self._ask(f"to unregister {topic!r}", lambda: self.session.unregister(name), timeout)

    async def subscribe(
        self,
        topic: str,
        *,
        tags: Sequence[str] = (),
        condition: str = "",
        group: str = "",
        timeout: float | None = None,
    ) -> Subscription:
        """Subscribe to a filter (docs/protocols/fmq.md, section 4): to messages that have all ``tags``, and for which
        ``condition`` is true. Without a ``group`` they come to ``messages``; with one, ``consume`` begins.

        The same filter for the same group is one subscription, with the newest tags and condition. Raises
        MqttSubscribeError when the hub refuses, MqttArgumentError, MqttTimeoutError, MqttConnectionError.
        """
        filter_bytes(topic)
        wanted = Subscription(topic, texts(tags), condition, group)
        await self._subscribe(wanted, self._deadline(timeout))
        known = self._subscriptions.setdefault((topic, group), wanted)
        if known is not wanted:
            known.tags, known.condition, known.number = wanted.tags, wanted.condition, wanted.number
            if known.consumed:
                self._consumed[known.number] = known
        return known

    async def _subscribe(self, wanted: Subscription, deadline: float, once: bool = False) -> None:
        values = (
            _text(wanted.topic),
            tuple(_text(tag) for tag in wanted.tags),
            _text(wanted.condition),
            _text(wanted.group),
        )
        number = 0

        def send() -> int:
            nonlocal number
            number = self.session.subscribe(*values)
            return number

        answer = await self._request(send, deadline, once=once)
        if answer.code:
            raise MqttSubscribeError(wanted.topic, answer.code, answer.why)
        wanted.number = number

    async def _subscribe_again(self, session_present: bool) -> None:
        deadline = self._deadline(None)
        for subscription in self._subscriptions.values():
            if not subscription.number:
                await self._subscribe(subscription, deadline, once=True)
            if subscription.consumed:
                self._begin_to_consume(subscription)

    async def unsubscribe(self, subscription: Subscription, *, timeout: float | None = None) -> None:
        """Take a subscription back; its consumer ends. Raises as ``register``."""
        self._subscriptions.pop((subscription.topic, subscription.group), None)
        subscription.consumed = None
        await self._ask(
            f"to unsubscribe from {subscription.topic!r}",
            lambda: self.session.unsubscribe(subscription.number),
            timeout,
        )
        self._consumed.pop(subscription.number, None)

    # -- consuming -------------------------------------------------------------------------------------------------

    async def consume(
        self,
        subscription: Subscription,
        *,
        window: int = 0,
        need_ack: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Let messages of a subscription with a group come to ``messages``, on this connection and those that follow.

        With ``need_ack`` each is to be acknowledged (``message.ack``), and at most ``window`` of them come before that;
        what is not acknowledged goes to the group again. When the hub ends it, ``messages`` raises FmqConsumerError,
        once, where its messages end.
        """
        if not 0 <= window <= _WINDOW:
            raise MqttArgumentError(f"a window is up to {_WINDOW} messages, 0 for what is usual")
        connection = await self._reached(self._deadline(timeout))
        subscription.consumed = (window or (_USUAL if need_ack else 0), need_ack)
        connection.flush()
        self._begin_to_consume(subscription)

    def _begin_to_consume(self, subscription: Subscription) -> None:
        assert subscription.consumed is not None
        status = self.session.consume(subscription.number, *subscription.consumed)
        if status < 0:
            subscription.consumed = None
            raise self._not_sent(status)
        for number in [n for n, one in self._consuming.items() if one is subscription]:
            # The hub ends it, because of this one.
            del self._consuming[number]
        self._consumed[subscription.number] = self._consuming[status] = subscription
        if self.connection is not None:
            self.connection.push()

    async def consume_once(
        self,
        topic: str,
        *,
        tags: Sequence[str] = (),
        condition: str = "",
        group: str = "",
        need_ack: bool = False,
        timeout: float = 60,
    ) -> Message | None:
        """One message of a filter, for a group; None when none comes within the hub's limit, 30 s unless it is set
        otherwise.

        A message that comes after ``timeout``, or after this was cancelled, goes to the group again with ``need_ack``,
        and is lost without. Raises FmqRequestError, MqttTimeoutError, MqttConnectionError.
        """
        query = (filter_bytes(topic), tuple(map(_text, texts(tags))), _text(condition), _text(group))
        answer = await self._once(lambda: self.session.consume_once(*query, need_ack=need_ack), timeout)
        if isinstance(answer, Message):
            answer.topic = answer.topic or Topic(topic)
            return answer
        if answer.code == _NO_MATCH:
            return None
        raise FmqRequestError(f"to let one message of {topic!r} be consumed", answer.code, answer.why)

    # -- calls -----------------------------------------------------------------------------------------------------

    async def call(self, topic: str, arguments: Payload = None, timeout: float | None = None) -> bytes:
        """Call whoever serves a topic: the result.

        Raises FmqRequestError (``reason_code`` 0x10: nobody serves it; 0x83: who does has not answered in time),
        MqttTimeoutError, and MqttConnectionError: then the call may have been served, and is not made again.
        """
        name = topic_bytes(topic)
        data = bytes(payload_bytes(arguments))
        answer = await self._once(lambda: self.session.call(name, data), timeout)
        if isinstance(answer, Message):
            return answer.payload
        raise FmqRequestError(f"the call of {topic!r}", answer.code, answer.why)

    async def serve(self, topic: str, *, timeout: float | None = None) -> Subscription:
        """Serve a topic: what others call comes to ``calls``, until ``unsubscribe``."""
        return await self.subscribe(SERVED + topic, timeout=timeout)

    async def _reply(self, call: Call, result: Payload) -> None:
        data = call.id + bytes(payload_bytes(result))
        connection = self._current()
        if connection is None or call.epoch != self.session.epoch:
            raise MqttConnectionError("the connection over which the call came is over", errors.E_OFFLINE)
        connection.write(self.session.frame_of(_REPLY, data, False))
        if connection.paused:
            await connection.writable(self.timeout)

    # -- between hubs ----------------------------------------------------------------------------------------------

    async def elect(
        self,
        candidate: address.Address,
        version: int,
        *,
        vote: bool = False,
        approve: bool = False,
        timeout: float | None = None,
    ) -> tuple[address.Address, int] | None:
        """ELECT, as hubs ask each other: None when the hub agrees, otherwise its own address and version."""
        head = spec.ELECT << 4 | (spec.VOTE if vote else 0) | (spec.APPROVE if approve else 0)
        data = address.encode(candidate)
        answer = await self._ask(
            "to elect", lambda: self.session.request(head, (data, version)), timeout, again=False
        )
        if len(answer.body) < 2:
            return None
        where, at = address.decode(answer.body, 0)
        return where, decode_at(answer.body, at, len(answer.body))[0]

    async def slave_of(
        self, master: address.Address, own: address.Address, *, timeout: float | None = None
    ) -> None:
        """SLAVEOF: say that we are a slave of this hub."""
        values = (address.encode(master), address.encode(own))
        await self._ask(
            "a slave", lambda: self.session.request(spec.SLAVEOF << 4, values), timeout, again=False
        )

    async def slaves(self, *, timeout: float | None = None) -> list[address.Address]:
        """SLAVEOF with REG: the hub's slaves."""
        head = spec.SLAVEOF << 4 | spec.REG
        answer = await self._ask(
            "to list its slaves", lambda: self.session.request(head, ()), timeout, again=False
        )
        body = answer.body
        return address.decode_all(body, decode_at(body, 0, len(body))[1]) if body else []

    # -- requests --------------------------------------------------------------------------------------------------

    def _deadline(self, timeout: float | None) -> float:
        return asyncio.get_running_loop().time() + (self.timeout if timeout is None else timeout)

    async def _ask(
        self, what: str, send: Callable[[], int], timeout: float | None, again: bool = True
    ) -> _Answer:
        answer = await self._request(send, self._deadline(timeout), again=again)
        if answer.code:
            raise FmqRequestError(what, answer.code, answer.why)
        return answer

    async def _request(
        self, send: Callable[[], int], deadline: float, *, again: bool = True, once: bool = False
    ) -> _Answer:
        """Ask, and ask ``again`` when the answer got lost with its connection; ``once``: who connects does not."""
        while True:
            try:
                answer = await self._sent(send, deadline, once)
                assert isinstance(answer, _Answer)
                return answer
            except MqttConnectionError:
                if once or not again or not self._kept:
                    raise

    async def _once(self, send: Callable[[], int], timeout: float | None) -> _Answer | Message:
        return await self._sent(send, self._deadline(timeout))

    async def _sent(self, send: Callable[[], int], deadline: float, once: bool = False) -> _Answer | Message:
        """Send a request when there is a connection, and room: its answer."""
        while True:
            if not once:
                await self._reached(deadline)
            connection = self._current()
            if connection is None:
                raise self._error.with_traceback(None)
            connection.flush()
            status = send()
            if status == errors.E_AGAIN:
                # The answers to others have to come first.
                if asyncio.get_running_loop().time() >= deadline:
                    raise MqttTimeoutError("the hub did not answer in time; it was not sent", status)
                await asyncio.sleep(TICK)
                continue
            if status < 0:
                raise self._not_sent(status)
            connection.push()
            self._release_for_answer()
            return await self._answers.wait(status, deadline)

    def _not_sent(self, status: int) -> MqttError:
        text = f"not sent: {describe(status, self.session.REASONS)}"
        if errors.blame(status) == errors.CALLER or status == errors.E_TOO_LARGE:
            return MqttArgumentError(text, status)
        return MqttError(text, status)

    def _on_answer(self, number: int, code: int) -> None:
        f = self.session.frame
        why = self.session.why() if code else ""
        subscription = self._consuming.pop(number, None)
        if subscription is not None:
            subscription.consumed = None
            if code:
                self.messages.put_error(FmqConsumerError(subscription.topic, code, why))
        self._answers.settle(number, _Answer(code, why, bytes(f.buf[f.body : f.end])))

    # -- receiving -------------------------------------------------------------------------------------------------

    def _on_message(self, f: "Frame") -> None:
        self.messages.put(self._message(f))

    def _message(self, f: "Frame") -> Message:
        session = self.session
        view = memoryview(f.buf)
        subscription = self._consumed.get(session.source) if session.source else None
        is_pushed = f.head >> 4 == spec.PUBLISH
        topic = Topic("")
        if f.topic_end > f.topic_at and f.has_topic():
            topic = topic_of(bytes(view[f.topic_at : f.topic_end]))
        elif subscription is not None:
            topic = Topic(subscription.topic)
        tags: tuple[str, ...] = ()
        if f.payload_at - f.tags_at > 1:
            block = bytes(view[f.tags_at : f.payload_at])
            tags = tuple(decode_at(block, 0, len(block))[0])
        return Message(
            topic,
            bytes(view[f.payload_at : f.end]),
            tags,
            bytes(view[f.id_at : f.id_end]),
            f.head & 15 if is_pushed else 0,
            session.epoch,
            subscription,
            session.receipt,
            self._acknowledge if session.receipt and not session.auto_ack else None,
        )

    def _on_call(self, f: "Frame") -> None:
        view = memoryview(f.buf)
        topic = bytes(view[f.topic_at : f.topic_end]) if f.has_topic() else b""
        self.calls.put(
            Call(
                topic_of(topic.removeprefix(SERVED.encode())),
                bytes(view[f.payload_at : f.end]),
                bytes(view[f.id_at : f.id_end]),
                self.session.epoch,
                self._reply,
            )
        )

    def _on_result(self, number: int, f: "Frame") -> None:
        message = self._message(f)
        if not self._answers.settle(number, message) and message.receipt:
            # Nobody waits for it any more: somebody else may have it.
            asyncio.get_running_loop().call_soon(self.session.reject, message.receipt, 0x80)

    async def _acknowledge(self, message: Message, code: int) -> None:
        session = self.session
        connection = self.connection
        if message.epoch != session.epoch and message.qos != 2:
            return
        if connection is not None:
            # There must be room for the answer.
            connection.flush()
        if code and message.subscription is not None:
            session.reject(message.receipt, code)
        else:
            session.acknowledge(message.receipt)
        if connection is not None:
            connection.push()
            if connection.paused:
                await connection.writable(self.timeout)

    def _hold_or_release(self) -> None:
        connection = self.connection
        if connection is None or self._limit is None:
            return
        waiting = max(len(self.messages), len(self.calls))
        if waiting <= self._limit // 2:
            connection.release(HOLD_APPLICATION)
        elif waiting > self._limit and not self._outgoing.is_awaited and not self._answers:
            connection.hold(HOLD_APPLICATION)

    def _release_for_answer(self) -> None:
        """An answer stands behind the messages that are not being read."""
        if self.connection is not None:
            self.connection.release(HOLD_APPLICATION)


def _taken_apart(url: str) -> tuple[bool, str, int | None, str | None, str | None]:
    """Whether it is TLS, host, port, user and password of a URL."""
    found = _URL.fullmatch(url)
    port = int(found[5]) if found and found[5] else None
    if not found or (port is not None and not 1 <= port <= 65535):
        # Not what was given: there may be a password in it.
        raise MqttArgumentError("a hub's URL is fmq://[USER[:PASSWORD]@]HOST[:PORT], with TLS fmqs://")
    name, colon, secret = (found[2] or "").partition(":")
    return (
        found[1] == "fmqs",
        found[3] or found[4],
        port,
        unquote(name) or None,
        unquote(secret) if colon else None,
    )


def _open_store(
    store: "FmqOutbox | str | PathLike[str] | None", client_id: str | None, slots: int
) -> "FmqOutbox | None":
    if store is None:
        return None
    from headwater_host.fmq.store import FmqOutbox

    if not client_id:
        raise MqttArgumentError("a store needs the client id whose messages it keeps")
    if not isinstance(store, FmqOutbox):
        return FmqOutbox(store, client_id, slots=slots)
    if store.identifier != client_id:
        raise MqttArgumentError(f"the store is of the client {store.identifier!r}")
    return store


def _will_size(will: Will | None) -> int:
    if will is None:
        return 0
    if will.properties:
        raise MqttArgumentError("a will has no properties in FMQ")
    return len(topic_bytes(will.topic)) + len(payload_bytes(will.payload))


def _tag_list(tags: Sequence[str]) -> bytes | None:
    return tag_list([_text(tag) for tag in texts(tags)]) if tags else None


def _text(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise MqttArgumentError(f"{value!r} cannot be written in UTF-8") from None
    except AttributeError:
        raise MqttArgumentError(f"a text is needed, not {type(value).__name__}") from None
