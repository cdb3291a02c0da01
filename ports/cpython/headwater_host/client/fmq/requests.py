"""Requests and their answers."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from headwater import errors
from headwater.fmq import spec
from headwater.fmq.queues import register, unregister
from headwater.reasons import describe
from headwater_host.client.base import BaseClient
from headwater_host.client.connection import TICK
from headwater_host.client.fmq.messages import Message
from headwater_host.client.fmq.session import HostSession
from headwater_host.errors import (
    ArgumentError,
    ClientError,
    FmqRequestError,
    NotConnectedError,
    TimedOutError,
)
from headwater_host.fmq import address
from headwater_host.fmq.values import decode_at
from headwater_host.topics import topic_bytes


class Answer(NamedTuple):
    """The hub's answer to a request: 0 or a reason code, the explanation, and the body of the ACK."""

    code: int
    why: str
    body: bytes


class Requests(BaseClient[bytes | None, Message, "Answer | Message"]):
    """The part of the FMQ client that sends requests."""

    session: HostSession

    # -- topics ----------------------------------------------------------------------------------------------------

    async def register(self, topic: str, queues: int = 1, *, timeout: float | None = None) -> None:
        """Create a topic with at least ``queues`` queues. Raises FmqRequestError if it has more."""
        name = topic_bytes(topic)
        await self._ask(f"to register {topic!r}", lambda: register(self.session, name, queues), timeout)

    async def unregister(self, topic: str, *, timeout: float | None = None) -> None:
        """Delete a topic and its messages, and end its consumers.

        Raises FmqRequestError if there is no such topic, and NotConnectedError: then it may have been deleted.
        """
        name = topic_bytes(topic)
        await self._ask(
            f"to unregister {topic!r}", lambda: unregister(self.session, name), timeout, again=False
        )

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
        """Send ELECT, as hubs do. Returns None if the hub agrees, otherwise its own address and version."""
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
        """Send SLAVEOF: announce that ``own`` is a slave of ``master``."""
        values = (address.encode(master), address.encode(own))
        await self._ask(
            "a slave", lambda: self.session.request(spec.SLAVEOF << 4, values), timeout, again=False
        )

    async def slaves(self, *, timeout: float | None = None) -> list[address.Address]:
        """Send SLAVEOF with REG, and return the hub's slaves."""
        head = spec.SLAVEOF << 4 | spec.REG
        answer = await self._ask(
            "to list its slaves", lambda: self.session.request(head, ()), timeout, again=False
        )
        body = answer.body
        return address.decode_all(body, decode_at(body, 0, len(body))[1]) if body else []

    # -- requests --------------------------------------------------------------------------------------------------

    async def _ask(
        self, what: str, send: Callable[[], int], timeout: float | None, again: bool = True
    ) -> Answer:
        answer = await self._request(send, self._deadline(timeout), again=again)
        if answer.code:
            raise FmqRequestError(what, answer.code, answer.why)
        return answer

    async def _request(
        self, send: Callable[[], int], deadline: float, *, again: bool = True, once: bool = False
    ) -> Answer:
        """Send a request; with ``again`` repeat it after a lost connection, unless ``once`` (while connecting)."""
        while True:
            try:
                answer = await self._sent(send, deadline, once)
                assert isinstance(answer, Answer)
                return answer
            except NotConnectedError:
                if once or not again or not self._kept:
                    raise

    async def _once(self, send: Callable[[], int], timeout: float | None) -> Answer | Message:
        return await self._sent(send, self._deadline(timeout))

    async def _sent(self, send: Callable[[], int], deadline: float, once: bool = False) -> Answer | Message:
        """Send a request when the client is connected and has room for it. Returns the answer."""
        while True:
            if not once:
                await self._reached(deadline)
            connection = self._current()
            if connection is None:
                raise self._error.with_traceback(None)
            connection.flush()
            status = send()
            if status == errors.E_AGAIN:
                # There is no room until other requests are answered.
                if asyncio.get_running_loop().time() >= deadline:
                    raise TimedOutError("the hub did not answer in time; it was not sent", status)
                await asyncio.sleep(TICK)
                continue
            if status < 0:
                raise self._not_sent(status)
            connection.push()
            self._read_on()
            return await self._answers.wait(status, deadline)

    def _not_sent(self, status: int) -> ClientError:
        if status == errors.E_UNKNOWN_ID:
            return ArgumentError("not sent: the subscription has ended", status)
        text = f"not sent: {describe(status, self.session.REASONS)}"
        if errors.blame(status) == errors.CALLER or status == errors.E_TOO_LARGE:
            return ArgumentError(text, status)
        return ClientError(text, status)
