"""An asyncio client of FMQ, with the face of ``headwater_host.client.mqtt`` where the ideas are the same.

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
import secrets
import ssl
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING

from headwater_host.arguments import check_whole, seconds_of, servers_of
from headwater_host.client.backlog import Backlog
from headwater_host.client.delivery import Delivery
from headwater_host.client.fmq.messages import Message, Subscription, texts
from headwater_host.client.fmq.options import encoded_tags, open_store, taken_apart, text_bytes, will_size
from headwater_host.client.fmq.receiving import SERVED, Receiving
from headwater_host.client.fmq.session import MAX_BODY, RECEIVE_WINDOW, HostSession
from headwater_host.client.mqtt.versions import field
from headwater_host.client.payload import Payload, Will, payload_bytes
from headwater_host.client.receive_path import TooLarge
from headwater_host.client.reconnect import Reconnect, policy_of
from headwater_host.client.route import Route, Tls
from headwater_host.client.send_path import SendPath, check_limits
from headwater_host.errors import (
    ArgumentError,
    ClientError,
    FmqConsumerError,
    FmqRequestError,
    PublishError,
    SubscribeError,
)
from headwater_host.topics import Topic, filter_bytes, topic_bytes

if TYPE_CHECKING:
    from os import PathLike
    from types import TracebackType

    from headwater_host.client.fmq.store import FmqOutbox

PORT = 7760
TLS_PORT = 7761
_NO_MATCH = 0x10
_NO_SUBSCRIPTION = 0x11
# A consumer's window, unless told; that of all of them: beside them come what the hub pushes, and single messages.
_WINDOW = 64
_WINDOWS = RECEIVE_WINDOW - 96


class Client(Receiving):
    """A connection to a hub, from ``async with`` to its end, and the session that outlives it.

    - ``host``: a name or an address; or ``fmq://[USER[:PASSWORD]@]HOST[:PORT]``, with TLS ``fmqs://``. ``port``: 7760,
      with TLS 7761. ``more_servers`` are names or addresses, with ports.
    - ``client_id``: without one, a random one is made. A kept session (``clean=False``) and a store need one.
    - ``user`` and ``password``: what AUTH says. ``will``: what the hub publishes when the connection is lost.
    - ``timeout``: seconds that connecting, and each call, may take. ``keep_alive``: seconds, 0 for none.
    - ``store``: the path of a file that keeps what is unacknowledged, and what ids are made of, over the end of the
      process and of the machine's power; or an ``FmqOutbox`` (``headwater_host.client.fmq.store``).
    - ``max_packet_size``: longer messages are skipped: acknowledged, and logged as a warning. Less than 64 KiB is
      64 KiB.
    - ``max_inflight_messages``: how many messages at QoS 1 and 2 may be under way.
    - ``auto_ack=False``: QoS 1 and 2 messages that come by themselves are acknowledged by ``message.ack()`` only, as
      those of consumers with ``need_ack`` always are.
    - ``tls``, ``max_queued_incoming_messages``, ``max_queued_outgoing_messages``, ``when_full``, ``reconnect`` are
      those of MQTT's client (``headwater_host.client.mqtt``).

    ``messages`` has what arrives, ``calls`` what others call that we ``serve``. Errors are those of MQTT's client as
    well, ``ClientError`` and its subclasses (``headwater_host.errors``): for requests FmqRequestError, and
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
        more_servers: Sequence[tuple[str, int | None] | str] = (),
        logger: logging.Logger | None = None,
    ):
        if "://" in str(host):
            secure, host, url_port, url_user, url_password = taken_apart(str(host))
            tls = (tls or True) if secure else tls
            port = port if port is not None else url_port
            user = url_user if user is None else user
            password = url_password if password is None else password
        if not clean and not client_id:
            raise ArgumentError("a session that the hub is to keep needs a client id")
        check_whole("keep_alive", keep_alive, 0, 65535)
        check_whole("max_packet_size", max_packet_size, 1, 1 << 62)
        policy = policy_of(reconnect)
        if max_queued_incoming_messages is not None:
            check_whole("max_queued_incoming_messages", max_queued_incoming_messages, 0, 1 << 62)
        check_limits(timeout, max_queued_outgoing_messages, max_inflight_messages, when_full)
        usual = TLS_PORT if tls else PORT
        routes = [Route(name, number or usual, tls) for name, number in servers_of(host, port, more_servers)]
        self.host = host
        self.port = routes[0].port
        self.client_id = "headwater-" + secrets.token_hex(6) if client_id is None else client_id
        box = open_store(store, client_id, max_queued_outgoing_messages)
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
            room=will_size(will),
            outbox=box,
        )
        if will and session.set_will(
            topic_bytes(will.topic), bytes(payload_bytes(will.payload)), will.qos, will.retain
        ):
            raise ArgumentError("a will's QoS is 0, 1 or 2")
        super().__init__(
            session,
            routes,
            policy,
            timeout,
            logger or logging.getLogger("headwater.mqtt.client"),
        )
        session.auto_ack = auto_ack
        session.on_refused = self._on_refused
        session.sink = TooLarge(self.logger)
        self._outgoing: SendPath[bytes | None] = SendPath(
            session,
            self._current,
            self._reached,
            self._read_on,
            Backlog() if box is None else box.backlog,
            max_queued_outgoing_messages,
            when_full,
            self.logger,
        )
        session.on_delivered = self._outgoing.delivered
        self._receive_by(max_queued_incoming_messages)

    # -- the connection --------------------------------------------------------------------------------------------

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        """Say goodbye, so that the will is not published, and close. Before that consumers end: what was not
        acknowledged goes to the group again. After an error it does so as well, and counts as a try."""
        try:
            if kind is None or not issubclass(kind, Exception):
                await self._give_back()
        finally:
            await super().__aexit__(kind, error, trace)

    def _on_begin(self, session_present: bool) -> None:
        self._forget_repeated(session_present)
        if self.connection is not None:
            self.connection.on_writable = self._outgoing.begin
        self._outgoing.begin()

    def _farewell(self) -> None:
        self.session.disconnect()

    def _on_interrupted(self, error: ClientError) -> None:
        self._outgoing.interrupt(error)
        self._forget_requests(error)

    def _on_over(self, error: ClientError) -> None:
        self._outgoing.end(error)
        self._forget_requests(error)
        if self._policy is None:
            self._subscriptions.clear()
        self.messages.end()
        self.calls.end()

    def _on_tick(self, now: float) -> None:
        self._answers.expire(now)
        self._outgoing.answers.expire(now)
        self._incoming.look()

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
    ) -> Coroutine[None, None, object]:
        """Publish; returns when the message is handed to the connection (QoS 0), or stored by the hub (1, 2).

        ``tags`` are what subscriptions can filter by. Raises PublishError when the hub refuses the message, at
        QoS 1 and 2; it is not retransmitted. Otherwise like ``headwater_host.client.mqtt.Client.publish``.
        """
        return self._outgoing.publish(
            topic, payload, qos, retain, seconds_of(timeout, self.timeout), encoded_tags(tags)
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
    ) -> Coroutine[None, None, Delivery]:
        """As ``publish``, but returns when the message is enqueued, at every QoS: its state, as of MQTT's client.

        What the hub refuses is logged as well.
        """
        return self._outgoing.post(
            topic, payload, qos, retain, seconds_of(timeout, self.timeout), encoded_tags(tags)
        )

    def post_nowait(
        self,
        topic: str,
        payload: Payload = None,
        qos: int = 0,
        retain: bool = False,
        *,
        tags: Sequence[str] = (),
    ) -> Delivery:
        """As of ``headwater_host.client.mqtt.Client.post_nowait``."""
        return self._outgoing.post_nowait(topic, payload, qos, retain, encoded_tags(tags))

    async def drain(self, timeout: float | None = None) -> None:
        """Wait until no message of ours is unacknowledged.

        Raises TimedOutError, and NotConnectedError: then the messages wait for the next connection.
        """
        await self._outgoing.drain(seconds_of(timeout, self.timeout))

    @property
    def dropped(self) -> int:
        """How many messages were dropped, never sent, with ``when_full="drop_oldest"``."""
        return self._outgoing.dropped

    @property
    def dropped_incoming(self) -> int:
        """How many messages were dropped that need no acknowledgement, because ``max_queued_incoming_messages``
        waited."""
        return self._incoming.dropped

    def _on_refused(self, number: int, code: int) -> None:
        error = PublishError(code, self.session.why())
        self.logger.warning("%s", error)
        if number:
            self._outgoing.delivered(number, error=error)

    # -- topics and subscriptions ----------------------------------------------------------------------------------

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
        SubscribeError when the hub refuses, ArgumentError, TimedOutError, NotConnectedError.
        """
        filter_bytes(topic)
        wanted = Subscription(topic, texts(tags), condition, group)
        key = topic, group
        self._wanted[key] += 1
        try:
            await self._subscribe(wanted, self._deadline(timeout))
            return self._subscriptions.setdefault(key, wanted)
        finally:
            self._wanted[key] -= 1
            if not self._wanted[key]:
                del self._wanted[key]
            self._take_back(wanted)

    async def _subscribe(self, wanted: Subscription, deadline: float, once: bool = False) -> None:
        values = (
            text_bytes(wanted.topic),
            tuple(text_bytes(tag) for tag in wanted.tags),
            text_bytes(wanted.condition),
            text_bytes(wanted.group),
        )

        def send() -> int:
            number = self.session.subscribe(*values)
            if number > 0:
                self._subscribing[number] = wanted
            return number

        answer = await self._request(send, deadline, once=once)
        if answer.code:
            raise SubscribeError(wanted.topic, answer.code, answer.why)

    async def _subscribe_again(self, session_present: bool) -> None:
        deadline = self._deadline(None)
        # Some may be taken back meanwhile.
        for key, subscription in list(self._subscriptions.items()):
            if key in self._subscriptions and not self.session.has(subscription.number):
                try:
                    await self._subscribe(subscription, deadline, once=True)
                except SubscribeError as error:
                    if not self._kept:
                        raise
                    # It is asked for again on the next connection.
                    self._report_refusal(error)
                    if subscription.consumed:
                        subscription.consumed = None
                        self.messages.put_error(
                            FmqConsumerError(error.topic, error.reason_code, error.reason_string)
                        )
                    continue
            if subscription.consumed:
                self._begin_to_consume(subscription)

    async def unsubscribe(self, subscription: Subscription, *, timeout: float | None = None) -> None:
        """Take a subscription back; its consumer ends. Raises as ``register``; ArgumentError: it is not there."""
        session = self.session
        was_there = self._subscriptions.pop((subscription.topic, subscription.group), None)
        subscription.consumed = None
        try:
            answer = await self._request(
                lambda: session.unsubscribe(subscription.number), self._deadline(timeout)
            )
        except ArgumentError:
            # It may have ended with its session, while there was no connection.
            if not was_there:
                raise
            return
        if answer.code not in (0, _NO_SUBSCRIPTION):
            raise FmqRequestError(f"to unsubscribe from {subscription.topic!r}", answer.code, answer.why)
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
        window = window or (_WINDOW if need_ack else 0)
        others = sum(
            one.consumed[0]
            for one in self._subscriptions.values()
            if one is not subscription and one.consumed and one.consumed[1]
        )
        if not 0 <= window <= (_WINDOWS - others if need_ack else 1 << 29):
            raise ArgumentError(f"the windows of all consumers are together up to {_WINDOWS} messages")
        connection = await self._reached(self._deadline(timeout))
        subscription.consumed = (window, need_ack)
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

    async def _give_back(self) -> None:
        """End the consumers that acknowledge, if there is a connection."""
        session, deadline = self.session, self._deadline(None)
        numbers = [one.number for one in self._subscriptions.values() if one.consumed and one.consumed[1]]
        # The program has not ended them: they begin again with the next connection.
        self._consuming.clear()
        asked = (self._sent(partial(session.unsubscribe, number), deadline, once=True) for number in numbers)
        for failed in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(failed, ClientError):
                self.logger.debug("a consumer was not ended: %s", failed)

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
        and is lost without. Raises FmqRequestError, TimedOutError, NotConnectedError.
        """
        query = (
            filter_bytes(topic),
            tuple(map(text_bytes, texts(tags))),
            text_bytes(condition),
            text_bytes(group),
        )
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
        TimedOutError, and NotConnectedError: then the call may have been served, and is not made again.
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
