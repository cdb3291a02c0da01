"""The state of a published message, which ``post`` returns."""

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from headwater_host.errors import ClientError, PublishError, TimedOutError


class Delivery:
    """The state of an enqueued message, across all connections of its client.

    ``await delivery`` waits until the delivery is done and returns ``reason_code``, or raises ``error``. When the
    client has lost its connection and does not reconnect, it raises NotConnectedError, and the delivery is not done:
    the message stays in the session, and is sent when the client is entered again.
    """

    __slots__ = ("_callbacks", "_check", "_is_done", "_waiting", "error", "packet_id", "qos", "reason_code")

    def __init__(self, packet_id: int, qos: int, check: Callable[[], object]):
        #: 0 at QoS 0, and as long as the message waits in the backlog of ``when_full="drop_oldest"``.
        self.packet_id = packet_id
        self.qos = qos
        #: The server's reason code: 0, or a code of MQTT 5.0 or FMQ. None until the server has answered.
        self.reason_code: int | None = None
        #: Why the message was not delivered: PublishError (the server refused it) or QueueFullError (dropped).
        self.error: ClientError | None = None
        # Raises when the connection is over.
        self._check = check
        self._is_done = False
        self._callbacks: list[Callable[[Delivery], object]] | None = None
        self._waiting: list[asyncio.Future[None]] | None = None

    def done(self) -> bool:
        """Return whether the message was written to the connection (QoS 0), acknowledged (1, 2), refused or dropped."""
        return self._is_done

    def add_done_callback(self, callback: "Callable[[Delivery], object]") -> None:
        """Call ``callback(delivery)`` when the delivery is done, in a later turn of the event loop."""
        if self._is_done:
            asyncio.get_running_loop().call_soon(callback, self)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    async def wait(self, timeout: float | None = None) -> int:
        """Wait until the delivery is done, and return ``reason_code``.

        Raises ``error``, NotConnectedError, and after ``timeout`` seconds TimedOutError; the last two do not keep
        the message from being sent.
        """
        if not self._is_done:
            self._check()
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._waiting is None:
                self._waiting = []
            self._waiting.append(waiter)
            try:
                await asyncio.wait({waiter}, timeout=timeout)
            finally:
                if waiter.cancel():
                    self._waiting.remove(waiter)
            if waiter.cancelled():
                raise TimedOutError("the server did not answer in time")
            waiter.result()
        if self.error is not None:
            raise self.error.with_traceback(None)
        return self.reason_code or 0

    def __await__(self) -> Generator[Any, None, int]:
        return self.wait().__await__()

    def settle(self, reason_code: int, error: ClientError | None = None) -> None:
        """Complete the delivery; for the client."""
        self.reason_code = error.reason_code if isinstance(error, PublishError) else reason_code
        self.error = error
        self._is_done = True
        for waiter in self._waiting or ():
            if not waiter.done():
                waiter.set_result(None)
        if self._callbacks:
            loop = asyncio.get_running_loop()
            for callback in self._callbacks:
                loop.call_soon(callback, self)
        self._waiting = self._callbacks = None

    def interrupt(self, error: ClientError) -> None:
        """Raise ``error`` in every waiting call; for the client."""
        for waiter in self._waiting or ():
            if not waiter.done():
                waiter.set_exception(error)
        self._waiting = None

    def __repr__(self) -> str:
        state = "pending" if not self._is_done else "done" if self.error is None else f"failed: {self.error}"
        return f"Delivery(packet_id={self.packet_id}, qos={self.qos}, {state})"
