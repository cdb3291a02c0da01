"""Subscribe, unsubscribe, and restore lost subscriptions.

Filters with the same properties share a packet: at most ``MOST`` filters, within the server's maximum packet size. The
server's answer to each filter is recorded when it arrives, even when no call waits for it any more.

Some servers close the connection instead of refusing a filter. After a reconnect, the filters that were unanswered are
therefore sent one at a time, each after the answer to the previous one, and the suspect last. A filter that has ended
``ENOUGH`` connections in a row counts as refused.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headwater import errors, reasons
from headwater.mqtt import spec
from headwater_host.arguments import check_whole
from headwater_host.client.base import BaseClient
from headwater_host.client.connection import TICK
from headwater_host.client.mqtt.filters import Filters, filters_of
from headwater_host.client.mqtt.messages import Message
from headwater_host.client.mqtt.options import SessionOptions
from headwater_host.client.mqtt.session import HostClientSession
from headwater_host.client.route import Route
from headwater_host.errors import (
    ArgumentError,
    ClientError,
    NotConnectedError,
    SubscribeError,
    TimedOutError,
    UnsubscribeError,
)
from headwater_host.mqtt_properties import Properties
from headwater_host.topics import filter_bytes

#: Filters in a packet: the limit of AWS IoT Core.
MOST = 8
#: A filter that has ended this number of connections is left out of the next one.
ENOUGH = 3
# Requests that the session lets wait for their answers at a time.
_REQUESTS = 8
_REFUSED = spec.SUBSCRIBE_FAILED
_UNSUBSCRIBE = -1


@dataclass(eq=False)
class _Filter:
    """A filter of a SUBSCRIBE or UNSUBSCRIBE, and the broker's answer."""

    name: str
    pattern: bytes
    #: QoS and options, or -1 to unsubscribe; and the properties of its packet.
    options: int
    block: bytes
    #: True if to subscribe again when the broker has lost the session.
    again: bool = False
    #: The broker's reason code, None until it arrives, and its reason string.
    code: int | None = None
    why: str = ""
    #: Why it was not sent.
    error: ArgumentError | None = None
    #: True if a connection has ended before the answer; how many in a row since then.
    alone: bool = False
    ended: int = 0

    @property
    def is_granted(self) -> bool:
        """True if the broker has granted it."""
        return self.code is not None and self.code < _REFUSED

    def refuse(self, why: str, error: ArgumentError | None = None) -> None:
        """Count as refused without an answer of the broker."""
        self.code = _REFUSED
        self.why = why
        self.error = error
        self.ended = 0


class Subscribing(BaseClient[Properties | None, Message, None]):
    """The part of the MQTT client that subscribes."""

    session: HostClientSession

    def __init__(
        self,
        session: HostClientSession,
        routes: Sequence[Route],
        identifier: str,
        options: SessionOptions,
        *rest: Any,
    ):
        super().__init__(session, routes, identifier, options, *rest)
        session.on_answers = self._on_answers
        # Unanswered filters, by packet identifier.
        self._asked: dict[int, Sequence[_Filter]] = {}
        self._begin_requests()
        # Filters that are granted, or to be requested on the next connection.
        self._subscriptions = {
            name: _Filter(
                name, filter_bytes(name), _level(level), session.block_of(None, spec.SUBSCRIBE), True
            )
            for name, level in filters_of(options.subscriptions)
        }

    def _on_interrupted(self, error: ClientError) -> None:
        self._lose_answers()
        super()._on_interrupted(error)

    def _on_over(self, error: ClientError) -> None:
        self._lose_answers()
        super()._on_over(error)
        self._begin_requests()

    async def subscribe(
        self,
        topic: Filters,
        qos: int = 0,
        *,
        timeout: float | None = None,
        options: int = 0,
        properties: Properties | None = None,
    ) -> tuple[int, ...]:
        """Subscribe to one or several filters, each at ``qos`` or its own QoS; return the broker's code for each.

        With MQTT 5.0, ``options`` (``headwater.mqtt.spec5``: NO_LOCAL and so on; 3.8.3.1) hold for each filter, and
        ``properties`` may have a ``subscription_identifier``.

        Raises SubscribeError when the server refuses a filter: the error's ``codes`` are the answers to all
        filters, and ``granted`` has those that it did not refuse. ArgumentError when a filter is wrong or exceeds a
        limit of the server: nothing was sent. TimedOutError, NotConnectedError.
        """
        wanted = filters_of(topic, qos)
        check_whole("options", options, 0, 0xFF)
        if options and self.session.v5 is None:
            raise ArgumentError("options of a subscription need MQTT 5.0")
        block = self.session.block_of(properties, spec.SUBSCRIBE)
        again = self._policy is not None
        asked = [
            _Filter(name, filter_bytes(name), _level(level) | options, block, again) for name, level in wanted
        ]
        return await self._ask_for(asked, self._deadline(timeout), SubscribeError)

    async def unsubscribe(
        self,
        topic: str | Sequence[str],
        *,
        timeout: float | None = None,
        properties: Properties | None = None,
    ) -> tuple[int, ...]:
        """Unsubscribe from one or several filters; return the server's reason code for each, before MQTT 5.0 always 0.

        Raises UnsubscribeError when the server refuses a filter. Other errors: see ``subscribe``.
        """
        names = [name for name, _ in filters_of(topic)]
        block = self.session.block_of(properties, spec.UNSUBSCRIBE)
        asked = [_Filter(name, filter_bytes(name), _UNSUBSCRIBE, block) for name in names]
        return await self._ask_for(asked, self._deadline(timeout), UnsubscribeError)

    @property
    def granted(self) -> dict[str, int]:
        """By filter, the QoS that the server has granted."""
        return {name: one.code or 0 for name, one in self._subscriptions.items() if one.is_granted}

    async def _subscribe_again(self, session_present: bool) -> None:
        asked = []
        for name, one in list(self._subscriptions.items()):
            if not session_present and not one.again:
                del self._subscriptions[name]
            elif not session_present or not one.is_granted:
                one.code = one.error = None
                asked.append(one)
        try:
            await self._send_all(asked, self._deadline(None), once=True)
        except ClientError:
            self._lose_answers()
            raise
        refused = [one for one in asked if not one.is_granted]
        for one in refused:
            error = SubscribeError(one.name, one.code or 0, one.why)
            if not self._kept:
                raise error
            self._report_refusal(error)

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _ask_for(
        self,
        asked: list[_Filter],
        deadline: float,
        refusal: type[SubscribeError] | type[UnsubscribeError],
    ) -> tuple[int, ...]:
        await self._reached(deadline)
        for one in asked:
            self.session.check_request(one.pattern, one.options, one.block)
        await self._send_all(asked, deadline)
        codes = tuple(one.code or 0 for one in asked)
        for one, code in zip(asked, codes, strict=True):
            if one.error is not None:
                raise one.error
            if code >= _REFUSED:
                raise refusal(one.name, code, one.why, codes)
        return codes

    async def _send_all(self, asked: list[_Filter], deadline: float, once: bool = False) -> None:
        """Send the filters until each is answered; with ``once``, which connecting sets, over this connection only."""
        packets: dict[bytes, list[list[_Filter]]] = {}
        for one in asked:
            if not one.alone:
                of_block = packets.setdefault(one.block, [[]])
                if len(of_block[-1]) == MOST:
                    of_block.append([])
                of_block[-1].append(one)
        together = (
            self._send(packet, deadline, once) for of_block in packets.values() for packet in of_block
        )
        # Each packet is completed, even when another one fails.
        for outcome in await asyncio.gather(*together, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        await self._send([one for one in asked if one.alone], deadline, once)

    async def _send(self, filters: list[_Filter], deadline: float, once: bool) -> None:
        while rest := [one for one in filters if one.code is None]:
            rest.sort(key=lambda one: (one.alone, one.ended))
            first = rest[0]
            if first.ended >= ENOUGH:
                first.refuse("the connection ended each time it was asked for")
                continue
            if not once:
                # Before taking a place: subscribing again while connecting may need it.
                await self._reached(deadline)
            places = self._singly if first.alone and not once else self._places
            packet = [first] if first.alone else [one for one in rest if not one.alone]
            async with places:
                try:
                    await self._send_packet(packet, deadline, once)
                except ArgumentError as error:
                    first.refuse(str(error), error)

    async def _send_packet(self, filters: list[_Filter], deadline: float, once: bool) -> None:
        connection = self._current()
        if connection is None and once:
            raise self._error.with_traceback(None)
        if connection is None or (self._opening is not None and not once):
            return
        connection.flush()
        status, count = self.session.ask([(one.pattern, one.options) for one in filters], filters[0].block)
        if status == errors.E_AGAIN:
            # Requests whose calls have timed out still wait for their answers.
            if asyncio.get_running_loop().time() >= deadline:
                raise TimedOutError("the server did not answer in time; it was not sent", status)
            await asyncio.sleep(TICK)
            return
        if status < 0:
            raise ClientError(f"not sent: {reasons.describe(status)}", status)
        self._asked[status] = filters[:count]
        connection.push()
        self._read_on()
        try:
            await self._answers.wait(status, deadline)
        except NotConnectedError:
            if once or not self._kept:
                raise

    def _on_answers(self, packet_id: int, codes: bytes, why: str) -> None:
        asked = self._asked.pop(packet_id, ())
        for one, code in zip(asked, codes or bytes(len(asked)), strict=True):
            one.code = code
            one.why = why
            one.alone = False
            one.ended = 0
            if one.is_granted and one.options == _UNSUBSCRIBE:
                self._subscriptions.pop(one.name, None)
            elif one.is_granted:
                self._subscriptions[one.name] = one
        self._answers.settle(packet_id, None)

    def _lose_answers(self) -> None:
        """Mark what is unanswered at the end of a connection: no answer will arrive."""
        for asked in self._asked.values():
            for one in asked:
                one.ended += one.alone
                one.alone = True
        self._asked.clear()

    def _begin_requests(self) -> None:
        """Make the semaphores for the next event loop."""
        self._places = asyncio.Semaphore(_REQUESTS)
        self._singly = asyncio.Semaphore(1)


def _level(qos: object) -> int:
    if not isinstance(qos, int) or qos not in (0, 1, 2):
        raise ArgumentError(f"QoS is 0, 1 or 2, not {qos!r}", errors.E_QOS)
    return qos
