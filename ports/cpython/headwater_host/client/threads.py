"""A client for threads: an asyncio client that runs on an event loop in a thread of its own.

``blocking(method)`` turns a coroutine method of the asyncio client into a method that waits for it, with the same
parameters, types and docstring, so the blocking client repeats no signature.
"""

import _thread
import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from headwater import errors
from headwater_host.client import delivery as asyncio_delivery
from headwater_host.client.base import BaseClient, Received
from headwater_host.errors import (
    ClientError,
    NotConnectedError,
    ReentrantError,
    SubscribeError,
    TimedOutError,
)
from headwater_host.timeouts import within

_T = TypeVar("_T")
_P = ParamSpec("_P")
_C = TypeVar("_C", bound=BaseClient[Any, Any, Any])
_M = TypeVar("_M", bound=Received)
_Self = TypeVar("_Self", bound="ThreadedClient[Any, Any]")
# How many messages are taken out of the loop's thread at a time: a change of threads costs more than a message.
_BATCH = 256


def blocking(
    method: Callable[Concatenate[_C, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate["ThreadedClient[Any, Any]", _P], _T]:
    """Return a method that calls ``method`` on the loop's thread and waits for its result."""

    @functools.wraps(method)
    def call(self: "ThreadedClient[Any, Any]", /, *args: _P.args, **options: _P.kwargs) -> _T:
        return self._run(method(self._client, *args, **options))

    return call


def posting(
    method: Callable[
        Concatenate[_C, _P],
        "Coroutine[Any, Any, asyncio_delivery.Delivery] | asyncio_delivery.Delivery",
    ],
) -> "Callable[Concatenate[ThreadedClient[Any, Any], _P], Delivery]":
    """Make a method that returns a delivery blocking (see ``blocking``)."""

    async def deliver(client: _C, *args: _P.args, **options: _P.kwargs) -> asyncio_delivery.Delivery:
        found = method(client, *args, **options)
        return found if isinstance(found, asyncio_delivery.Delivery) else await found

    @functools.wraps(method)
    def call(self: "ThreadedClient[Any, Any]", /, *args: _P.args, **options: _P.kwargs) -> Delivery:
        return Delivery(self, self._run(deliver(self._client, *args, **options)))

    return call


def constructor(
    make: Callable[_P, _C],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, _P], None]]:
    """Give an ``__init__`` the parameters of the asyncio client ``make``."""

    def decorate(_: Callable[..., None]) -> Callable[Concatenate[Any, _P], None]:
        @functools.wraps(make.__init__)
        def construct(self: "ThreadedClient[Any, Any]", /, *args: _P.args, **options: _P.kwargs) -> None:
            self._prepare(make(*args, **options))

        return construct

    return decorate


class Delivery:
    """The state of a posted message: ``headwater_host.client.delivery.Delivery`` for threads."""

    __slots__ = ("_client", "_delivery")

    def __init__(self, client: "ThreadedClient[Any, Any]", delivery: asyncio_delivery.Delivery):
        self._client = client
        self._delivery = delivery

    @property
    def packet_id(self) -> int:
        """The packet identifier; 0 at QoS 0, and while the message waits in a backlog."""
        return self._delivery.packet_id

    @property
    def qos(self) -> int:
        """The message's QoS."""
        return self._delivery.qos

    @property
    def reason_code(self) -> int | None:
        """The server's reason code: 0, or a code of MQTT 5.0 or FMQ. None until the server has answered."""
        return self._delivery.reason_code

    @property
    def error(self) -> ClientError | None:
        """Why the message was not delivered: PublishError or QueueFullError."""
        return self._delivery.error

    def done(self) -> bool:
        """Return whether the message was written to the connection (QoS 0), acknowledged (1, 2), refused or dropped."""
        return self._delivery.done()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the delivery is done, and return ``reason_code``.

        Raises ``error``, NotConnectedError, and after ``timeout`` seconds TimedOutError; the last two do not keep
        the message from being sent.
        """
        if not self._delivery.done():
            return self._client._run(self._delivery.wait(timeout))
        if self._delivery.error is not None:
            raise self._delivery.error.with_traceback(None)
        return self._delivery.reason_code or 0

    def add_done_callback(self, callback: "Callable[[Delivery], object]") -> None:
        """Call ``callback(delivery)`` when the delivery is done, in the thread of ``on_connection``."""
        self._client._follow(self._delivery, partial(callback, self))

    def __repr__(self) -> str:
        return repr(self._delivery)


class ThreadedClient(Generic[_C, _M]):
    """A blocking client; ``_C`` is the asyncio client, ``_M`` its message.

    Handlers are attributes, to be set before the client connects. They may call the client, and their exceptions are
    logged.
    """

    #: Called as ``on_message(client, message)`` for each message, one at a time, in a thread of its own; ``get`` and
    #: ``messages`` then return nothing.
    on_message: "Callable[[Any, _M], object] | None" = None
    #: Called in another thread: with None for each connection, the first one included, and with the error when the
    #: connection is lost.
    on_connection: "Callable[[ClientError | None], object] | None" = None
    #: Called in the same thread with the error when the server refuses a subscription after a reconnect.
    on_subscription_refused: "Callable[[SubscribeError], object] | None" = None

    _client: _C

    def _prepare(self, client: _C) -> None:
        self._client = client
        client.on_connection = partial(self._handler, "on_connection")
        client.on_subscription_refused = partial(self._handler, "on_subscription_refused")
        # Calls of handlers for a thread of their own; None when there is no such thread.
        self._handlers: queue.SimpleQueue[Any] | None = None
        # The exception with which a handler ends the program; the threads that wait in a call.
        self._exit: BaseException | None = None
        self._callers: set[int] = set()
        self._delivering = threading.Lock()
        self._connecting = threading.Lock()
        # Guards the two below. A call that is scheduled on the loop under it begins before the loop ends.
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._over = asyncio.Event()
        # Messages that left the loop's thread and have no reader yet; one thread at a time fetches more.
        self._taken: deque[_M] = deque()
        self._taking = threading.Lock()

    # -- the connection --------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Connect. For errors see the asyncio client's ``__aenter__``."""
        with self._connecting:
            self._exit = None
            started = self._start()
            try:
                if not (started or self._client.connected):
                    # The connection was lost: leave it, and enter again.
                    self._run(self._client.__aexit__(None, None, None))
                self._run(self._client.__aenter__())
            except BaseException:
                if started:
                    self._stop()
                raise
        if self.on_message is not None:
            name = f"headwater-messages-{self._client.identifier}"
            threading.Thread(target=self._deliver, args=(self.on_message,), name=name, daemon=True).start()

    def disconnect(self) -> None:
        """Send DISCONNECT and close. Waiting calls raise NotConnectedError. May be called twice."""
        try:
            with contextlib.suppress(NotConnectedError):
                self._do(self._client.__aexit__(None, None, None))
        finally:
            self._stop()

    def __enter__(self: _Self) -> _Self:
        """Connect."""
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect. Raises the exception with which a handler ended the program."""
        with self._ending_program():
            self.disconnect()

    @property
    def connected(self) -> bool:
        """True if the client is connected."""
        return self._client.connected

    @property
    def session_present(self) -> bool:
        """True if the server had kept the session when it accepted the last connection."""
        return self._client.session_present

    @property
    def identifier(self) -> str:
        """The client identifier."""
        return self._client.identifier

    @property
    def dropped(self) -> int:
        """The number of messages that were dropped unsent, with ``when_full="drop_oldest"``."""
        return self._client.dropped

    @property
    def dropped_incoming(self) -> int:
        """The number of received messages at QoS 0 that were dropped because the queue was full."""
        return self._client.dropped_incoming

    @property
    def skipped(self) -> int:
        """The number of messages that were skipped because they exceeded ``packet_size``."""
        return self._client.skipped

    # -- publishing ------------------------------------------------------------------------------------------------

    publish = blocking(BaseClient.publish)
    post = posting(BaseClient.post)
    post_nowait = posting(BaseClient.post_nowait)
    drain = blocking(BaseClient.drain)

    # -- receiving -------------------------------------------------------------------------------------------------

    def ack(self, message: _M) -> None:
        """Acknowledge a message, with ``auto_ack=False``, or of an FMQ consumer with ``need_ack``."""
        self._run(message.ack())

    def get(self, timeout: float | None = None) -> _M:
        """Return the next message. Each message goes to one thread.

        Raises TimedOutError when no message arrives within ``timeout`` seconds (None: no limit), and
        NotConnectedError when there is no connection and no message is left.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with contextlib.suppress(IndexError):
                return self._taken.popleft()
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._taking.acquire(timeout=-1 if left is None else left):
                raise TimedOutError("no message arrived in time")
            try:
                if not self._taken:
                    self._run(self._fetch(left))
            finally:
                self._taking.release()

    def messages(self, timeout: float | None = None) -> Iterator[_M]:
        """Iterate over messages until none arrives for ``timeout`` seconds. Raises NotConnectedError."""
        while True:
            try:
                message = self.get(timeout)
            except TimedOutError:
                return
            yield message

    async def _fetch(self, timeout: float | None) -> None:
        if len(self._client.messages):
            await self._move()
            return
        try:
            await within(timeout, self._move())
        except asyncio.TimeoutError:
            raise TimedOutError("no message arrived in time") from None

    async def _move(self) -> None:
        inbox = self._client.messages
        # The waiting thread may time out meanwhile, so every message goes from one queue to the other at once.
        self._taken.append(await inbox.__anext__())
        while len(inbox) and len(self._taken) < _BATCH:
            self._taken.append(await inbox.__anext__())

    # -- handlers --------------------------------------------------------------------------------------------------

    def _deliver(self, on_message: "Callable[[Any, _M], object]") -> None:
        # The thread of the previous connection may still handle its last message.
        with self._delivering:
            try:
                for message in self.messages():
                    if not self._call(
                        "on_message", f" for a message on {message.topic}", on_message, self, message
                    ):
                        return
            except NotConnectedError:
                pass
            except BaseException as error:
                if error is not self._exit:
                    raise

    def _handler(self, name: str, what: object) -> None:
        handler = getattr(self, name)
        if handler is not None:
            self._later(name, handler, what)

    def _later(self, name: str, handler: Callable[..., object], *args: object) -> None:
        """Schedule a call of a handler in the thread of handlers."""
        with self._lock:
            if self._handlers is None:
                self._handlers = queue.SimpleQueue()
                handlers = (self._handlers,)
                thread = f"headwater-handlers-{self._client.identifier}"
                threading.Thread(target=self._handle, args=handlers, name=thread, daemon=True).start()
            self._handlers.put((name, "", handler, *args))

    def _follow(self, delivery: asyncio_delivery.Delivery, callback: Callable[[], object]) -> None:
        """Call ``callback`` in the thread of handlers when a delivery is done."""

        def done(_: asyncio_delivery.Delivery) -> None:
            self._later("a callback of a delivery", callback)

        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(delivery.add_done_callback, done)
                return
        if delivery.done():
            done(delivery)
        else:
            delivery.add_done_callback(done)

    def _handle(self, handlers: "queue.SimpleQueue[Any]") -> None:
        while (call := handlers.get()) is not None:
            if not self._call(*call):
                return

    def _call(self, name: str, why: str, handler: Callable[..., object], *args: object) -> bool:
        """Call a handler of the program. Returns False if it ends the program."""
        try:
            handler(*args)
        except Exception:
            self._client.logger.exception("%s failed%s", name, why)
        except BaseException as error:
            self._end_program(name, error)
            return False
        return True

    def _end_program(self, name: str, error: BaseException) -> None:
        """End the program because a handler raised ``error``, which alone would only end the handler's thread."""
        self._client.logger.critical(
            "%s raised %r: the client disconnects, and the program ends", name, error
        )
        main = threading.main_thread().ident
        with self._lock:
            self._exit = error
            waits = main in self._callers
        try:
            self.disconnect()
        finally:
            if not waits and main is not None:
                _interrupt(main)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _start(self) -> bool:
        with self._lock:
            if self._thread is not None:
                return False
            ready = threading.Event()
            # A daemon: otherwise a program without ``disconnect`` would never end. See ``_at_exit``.
            self._thread = threading.Thread(
                target=lambda: asyncio.run(self._serve(ready)),
                name=f"headwater-{self._client.identifier}",
                daemon=True,
            )
            self._thread.start()
            ready.wait()
        _running.add(self)
        return True

    async def _serve(self, ready: threading.Event) -> None:
        self._over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        ready.set()
        # When this returns, ``asyncio.run`` cancels the waiting calls, which raise in their threads.
        await self._over.wait()

    def _stop(self) -> None:
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
            if loop is not None:
                loop.call_soon_threadsafe(self._over.set)
        _running.discard(self)
        if thread is not None:
            thread.join()
        with self._lock:
            handlers, self._handlers = self._handlers, None
        if handlers is not None:
            handlers.put(None)

    def _run(self, call: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop's thread, and return its result.

        Raises the exception with which a handler ends the program.
        """
        with self._ending_program():
            return self._do(call)

    @contextlib.contextmanager
    def _ending_program(self) -> Iterator[None]:
        """Raise, after the call of a waiting thread, the exception with which a handler ends the program."""
        caller = threading.get_ident()
        with self._lock:
            self._callers.add(caller)
        try:
            yield
        finally:
            with self._lock:
                self._callers.discard(caller)
                error = self._exit
            if error is not None:
                raise error from None

    def _do(self, call: Coroutine[Any, Any, _T]) -> _T:
        if threading.current_thread() is self._thread:
            call.close()
            raise ReentrantError(
                "a blocking call on the thread of the client's loop would wait for itself: call from another thread"
            )
        with self._lock:
            if self._loop is None:
                call.close()
                raise NotConnectedError("the client is not connected", errors.E_OFFLINE)
            outcome = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return outcome.result()
        except concurrent.futures.CancelledError:
            raise NotConnectedError("the client has disconnected", errors.E_OFFLINE) from None
        except BaseException:
            # After KeyboardInterrupt nothing waits for the call. After other exceptions it has ended.
            outcome.cancel()
            raise


def _interrupt(thread: int) -> None:
    """Interrupt the main thread, whatever it waits for."""
    # Shells start programs in the background with SIGINT ignored.
    is_ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    number = signal.SIGTERM if is_ignored else signal.SIGINT
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(thread, number)
    else:
        _thread.interrupt_main(number)


_running: set[ThreadedClient[Any, Any]] = set()


@atexit.register
def _at_exit() -> None:
    for client in list(_running):
        client.disconnect()
