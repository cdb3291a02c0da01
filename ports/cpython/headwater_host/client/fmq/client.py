"""The asyncio FMQ client.

    async with Client("fmq://hub.local", identifier="reader", session=SessionOptions(clean_start=False)) as client:
        jobs = await client.subscribe("jobs/#", group="workers")
        await client.consume(jobs, window=50, need_ack=True)
        async for message in client.messages:
            print(message.topic, message.value())
            await client.publish("seen", encode({"topic": message.topic}), qos=1)
            await message.ack()

``encode`` and ``decode`` (``headwater_host.fmq.values``) convert values of FMQ; ``publish`` takes bytes. The session
lives in the client object: entering the client again resumes it, and with ``reconnect`` the client does so itself.
"""

import asyncio
import logging
import ssl
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from headwater.fmq.calls import call, consume_once
from headwater.fmq.queues import consume as begin_to_consume
from headwater.mqtt import spec5
from headwater_host.client.base import check_client, open_store, routes_of
from headwater_host.client.fmq.messages import Message, Subscription, texts
from headwater_host.client.fmq.options import encoded_tags, split_url, text_bytes
from headwater_host.client.fmq.session import MAX_BODY, RECEIVE_WINDOW, HostSession
from headwater_host.client.fmq.subscriptions import SERVED, Subscribing
from headwater_host.client.options import ConnectionOptions, Limits, SessionOptions
from headwater_host.client.payload import Payload, Will, payload_bytes
from headwater_host.client.reconnect import Reconnect
from headwater_host.client.route import Route, Tls
from headwater_host.client.session_config import session_config
from headwater_host.errors import (
    ArgumentError,
    ClientError,
    FmqConsumerError,
    FmqRequestError,
    PublishError,
    SubscribeError,
)
from headwater_host.mqtt_properties import Properties
from headwater_host.topics import Topic, filter_bytes, topic_bytes

if TYPE_CHECKING:
    from types import TracebackType

PORT = 7760
TLS_PORT = 7761
#: The default of ``Limits.in_flight``.
IN_FLIGHT = 1024
# A consumer's default window, and the limit for all windows: the rest is for pushed and single messages.
_WINDOW = 64
_WINDOWS = RECEIVE_WINDOW - 96


class Client(Subscribing):
    """An FMQ client: a connection for the time of ``async with``, and a session that outlives it.

    - ``host``: a name, an address, or ``fmq://[USER[:PASSWORD]@]HOST[:PORT]``, with TLS ``fmqs://``. ``port``: 7760,
      with TLS 7761.
    - ``tls``: True to trust the CA certificates of the operating system, or a ``Tls``, or an ``ssl.SSLContext``.
    - ``identifier``: the client identifier; None for a random one.
    - ``username``, ``password``: the credentials.
    - ``will``: the message that the hub publishes if the client disconnects unexpectedly.
    - ``timeout``: how many seconds connecting, and each call, may take.
    - ``reconnect``: True, or a ``Reconnect``, to reconnect automatically. Subscriptions and consumers continue.
    - ``connection``: keep-alive, further hubs.
    - ``session``: whether the hub keeps the session, the store, who acknowledges. With ``auto_ack=False`` messages that
      the hub pushes are acknowledged by ``message.ack()``, as messages of consumers with ``need_ack`` always are.
    - ``limits``: bounds of queues and messages, and what happens when there is no room.
    - ``logger``: by default the logger "headwater.client".

    ``messages`` has the received messages, ``calls`` the calls of topics that this client serves. Errors are
    ``ClientError`` and its subclasses (``headwater_host.errors``). A client must not be used from several threads.
    """

    FOLLOWS = True

    session: HostSession

    def __init__(
        self,
        host: str,
        port: int | None = None,
        *,
        tls: Tls | ssl.SSLContext | bool | None = None,
        identifier: str | None = None,
        username: str | None = None,
        password: str | bytes | None = None,
        will: Will | None = None,
        timeout: float = 10,
        reconnect: Reconnect | bool | None = None,
        connection: ConnectionOptions = ConnectionOptions(),
        session: SessionOptions = SessionOptions(),
        limits: Limits = Limits(),
        logger: logging.Logger | None = None,
    ):
        if "://" in str(host):
            secure, host, url_port, url_user, url_password = split_url(str(host))
            tls = (tls or True) if secure else tls
            port = port if port is not None else url_port
            username = url_user if username is None else username
            password = url_password if password is None else password
        name = check_client(connection, session, limits, (SessionOptions, Limits), identifier, timeout)
        if connection.websocket is not None:
            raise ArgumentError("FMQ has no WebSocket: leave out websocket")
        usual = TLS_PORT if tls else PORT
        routes = routes_of(host, port, connection, lambda h, p: Route(h, p or usual, tls))
        store = open_store(session, identifier, "fmq", limits.queued_outgoing)
        config = session_config(
            name, username, password, will, connection, session, limits, IN_FLIGHT, timeout, store
        )
        if will is not None and will.properties:
            raise ArgumentError("a will has no properties in FMQ")
        made = HostSession(config, max_body=MAX_BODY if limits.packet_size is None else limits.packet_size)
        super().__init__(made, routes, name, session, limits, timeout, reconnect, store, logger)
        made.on_refused = self._on_refused

    # -- the connection --------------------------------------------------------------------------------------------

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        """End the consumers, send DISCONNECT, so that the will is not published, and close.

        Unacknowledged messages go back to their group. After an exception they do so when the connection ends, which
        counts as a delivery attempt.
        """
        try:
            if kind is None or not issubclass(kind, Exception):
                await self._give_back()
        finally:
            await super().__aexit__(kind, error, trace)

    def _farewell(self) -> None:
        self.session.disconnect()

    # -- publishing ------------------------------------------------------------------------------------------------

    def _extra(self, properties: Properties | None, tags: Sequence[str]) -> bytes | None:
        if properties:
            raise ArgumentError("properties need MQTT 5.0")
        return encoded_tags(tags)

    def _on_refused(self, number: int, code: int) -> None:
        error = PublishError(code, self.session.why())
        self.logger.warning("%s", error)
        if number:
            self._send_path.delivered(number, error=error)

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
        """Subscribe to messages that match a filter, have all ``tags``, and for which ``condition`` is true.

        Without a ``group`` the hub pushes them to ``messages``; with one, call ``consume``. The same filter with the
        same group is one subscription, with the latest tags and condition (docs/protocols/fmq.md, section 4).

        Raises SubscribeError when the hub refuses, ArgumentError, TimedOutError, NotConnectedError.
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
            self._drop_unwanted(wanted)

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
        # Subscriptions may end meanwhile.
        for key, subscription in list(self._subscriptions.items()):
            if key in self._subscriptions and not self.session.has(subscription.number):
                try:
                    await self._subscribe(subscription, deadline, once=True)
                except SubscribeError as error:
                    if not self._kept:
                        raise
                    # It is requested again on the next connection.
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
        """End a subscription and its consumer. Raises FmqRequestError, ArgumentError if there is no such subscription,
        TimedOutError, NotConnectedError."""
        session = self.session
        was_there = self._subscriptions.pop((subscription.topic, subscription.group), None)
        subscription.consumed = None
        try:
            answer = await self._request(
                lambda: session.unsubscribe(subscription.number), self._deadline(timeout)
            )
        except ArgumentError:
            # It may have ended with its session while the client was offline.
            if not was_there:
                raise
            return
        if answer.code not in (0, spec5.NO_SUBSCRIPTION_EXISTED):
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
        """Receive the messages of a subscription with a group, over this connection and later ones.

        With ``need_ack`` each is acknowledged by ``message.ack()``, and the hub sends at most ``window`` before
        that; it redelivers unacknowledged messages to the group. When the hub ends the consumer, ``messages`` raises
        FmqConsumerError once, after the consumer's messages.
        """
        window = window or (_WINDOW if need_ack else 0)
        others = sum(
            one.consumed[0]
            for one in self._subscriptions.values()
            if one is not subscription and one.consumed and one.consumed[1]
        )
        if not 0 <= window <= (_WINDOWS - others if need_ack else 1 << 29):
            raise ArgumentError(f"window={window}: all consumers together have at most {_WINDOWS} messages")
        connection = await self._reached(self._deadline(timeout))
        subscription.consumed = (window, need_ack)
        connection.flush()
        self._begin_to_consume(subscription)

    def _begin_to_consume(self, subscription: Subscription) -> None:
        assert subscription.consumed is not None
        status = begin_to_consume(self.session, subscription.number, *subscription.consumed)
        if status < 0:
            subscription.consumed = None
            raise self._not_sent(status)
        for number in [n for n, one in self._consuming.items() if one is subscription]:
            # The hub ends it because of the new consumer.
            del self._consuming[number]
        self._consumed[subscription.number] = self._consuming[status] = subscription
        if self.connection is not None:
            self.connection.push()

    async def _give_back(self) -> None:
        """End the consumers that acknowledge, if the client is connected."""
        session, deadline = self.session, self._deadline(None)
        numbers = [one.number for one in self._subscriptions.values() if one.consumed and one.consumed[1]]
        # The program has not ended them, so they begin again with the next connection.
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
        """Return one message of a filter, for a group, or None when the hub's limit has passed, by default 30 s.

        A message that arrives after ``timeout``, or after the call was cancelled, goes back to the group with
        ``need_ack``, and is lost without. Raises FmqRequestError, TimedOutError, NotConnectedError.
        """
        query = (
            filter_bytes(topic),
            tuple(map(text_bytes, texts(tags))),
            text_bytes(condition),
            text_bytes(group),
        )
        answer = await self._once(lambda: consume_once(self.session, *query, need_ack=need_ack), timeout)
        if isinstance(answer, Message):
            answer.topic = answer.topic or Topic(topic)
            return answer
        if answer.code == spec5.NO_MATCHING_SUBSCRIBERS:
            return None
        raise FmqRequestError(f"to deliver one message of {topic!r}", answer.code, answer.why)

    # -- calls -----------------------------------------------------------------------------------------------------

    async def call(self, topic: str, arguments: Payload = None, timeout: float | None = None) -> bytes:
        """Call the remote procedure ``topic``, and return its result.

        Raises FmqRequestError (``reason_code`` 0x10: no responder; 0x83: the responder did not answer in time),
        TimedOutError, and NotConnectedError: then the call may have been executed, and is not repeated.
        """
        name = topic_bytes(topic)
        data = bytes(payload_bytes(arguments))
        answer = await self._once(lambda: call(self.session, name, data), timeout)
        if isinstance(answer, Message):
            return answer.payload
        raise FmqRequestError(f"the call of {topic!r}", answer.code, answer.why)

    async def serve(self, topic: str, *, timeout: float | None = None) -> Subscription:
        """Provide the remote procedure ``topic``: its calls arrive in ``calls`` until ``unsubscribe``."""
        return await self.subscribe(SERVED + topic, timeout=timeout)
