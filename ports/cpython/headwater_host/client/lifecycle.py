"""Connect, reconnect and disconnect a client."""

import abc
import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Protocol, TypeVar

from headwater import errors
from headwater.connection import ONLINE
from headwater.reasons import describe
from headwater_host.client.connection import TICK, Connection, Driven
from headwater_host.client.reconnect import Pauses, Reconnect, is_refusal
from headwater_host.client.route import Route
from headwater_host.errors import (
    ArgumentError,
    ClientError,
    ConnectRefusedError,
    DisconnectedError,
    NotConnectedError,
    ReentrantError,
    SubscribeError,
    TimedOutError,
    connection_error,
)

#: At most this many addresses that are not in the list of servers are tried in a round, because a hub names them.
MOVES = 4
#: A client follows a hub that ends the connection without a pause if the connection has lasted this many seconds.
MOVED_AFTER = 1.0

_Self = TypeVar("_Self", bound="Lifecycle")


class LifecycleSession(Driven, Protocol):
    """The session of a client, as far as connecting needs it."""

    #: The name of the first packet.
    GREETING: str
    #: The protocol's names and texts of status codes.
    REASONS: dict[int, tuple[str, str]]

    keep_alive: int
    in_flight: int
    #: The code with which the server refused or closed the connection.
    return_code: int
    session_present: bool
    on_online: Callable[[bool], object] | None

    def connect(self, now_ms: int, /) -> int:
        """Begin a connection over a new transport. Returns 0, or why the first packet cannot be built."""
        ...

    def probe(self) -> bytes:
        """Return a packet that asks for an answer."""
        ...

    def why(self) -> str:
        """Return the server's explanation of ``return_code``."""
        ...

    def elsewhere(self) -> str:
        """Return the server that this one says to use instead, or ""."""
        ...


class Lifecycle(abc.ABC):
    """A client that connects and reconnects (``async with client``). Subclasses implement the methods ``_on_...``.

    A client is *over* when it is not entered, or has lost its connection and does not reconnect. While it reconnects,
    ``_current`` returns None.
    """

    #: True if the client connects to the server that another one names.
    FOLLOWS = False

    def __init__(
        self,
        session: LifecycleSession,
        routes: Sequence[Route],
        reconnect: Reconnect | None,
        timeout: float,
        logger: logging.Logger,
    ):
        #: The core's session, for programs that need more than this class.
        self.session: LifecycleSession = session
        self.timeout = timeout
        self.logger = logger
        #: The connection while there is one, for programs that need more than this class.
        self.connection: Connection | None = None
        #: Called with None when the client is connected and has subscribed again, also for the first connection, and
        #: with the error that ended a connection. With ``reconnect`` also called with the error of each failed round.
        #: The client logs exceptions of this handler.
        self.on_connection: Callable[[ClientError | None], object] | None = None
        #: Called with the error when the server, or the hub, refuses a subscription after a reconnect. The connection
        #: and the other subscriptions continue.
        self.on_subscription_refused: Callable[[SubscribeError], object] | None = None
        #: Awaited before each round of attempts.
        self.before_attempts: Callable[[], Awaitable[object]] | None = None
        self._routes = routes
        self._at = 0
        # The route that was taken last, and the one that the server named when it ended the connection.
        self._route = routes[0]
        self._moved: Route | None = None
        self._policy = reconnect
        self._pauses = Pauses(reconnect or Reconnect())
        self._entered = False
        self._kept = False
        self._keeper: asyncio.Task[None] | None = None
        self._opening: Connection | None = None
        self._online: asyncio.Future[bool] | None = None
        self._lost: asyncio.Future[ClientError] | None = None
        self._error: ClientError = NotConnectedError("the client is not connected", errors.E_OFFLINE)
        self._since = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()
        # The number of acknowledged messages and of unsent bytes, and when one of them last changed.
        self._progress = (0, 0)
        self._progress_at = 0.0
        session.on_online = self._on_online

    # -- what a subclass does --------------------------------------------------------------------------------------

    @abc.abstractmethod
    def _on_begin(self, session_present: bool) -> None:
        """Handle a new connection, which the server has accepted."""

    @abc.abstractmethod
    def _on_interrupted(self, error: ClientError) -> None:
        """Handle a lost connection; the client reconnects."""

    @abc.abstractmethod
    def _on_over(self, error: ClientError) -> None:
        """Raise ``error`` in every waiting call: the client does not reconnect."""

    async def _on_left(self) -> None:
        """Wait for the store after the end of ``async with``."""
        stored = getattr(self.session.outbox, "stored", None)
        if stored is not None and await stored():
            self.logger.error("the store is not up to date: %s", self.session.outbox.error)  # type: ignore[attr-defined]

    @abc.abstractmethod
    def _on_tick(self, now: float) -> None:
        """Check deadlines; called about every ``TICK`` seconds, connected or not."""

    @abc.abstractmethod
    def _acknowledged(self) -> int:
        """Return how many published messages have been completely acknowledged."""

    @abc.abstractmethod
    def _farewell(self) -> None:
        """Queue the session's last packet, for which there always is room."""

    @abc.abstractmethod
    async def _subscribe_again(self, session_present: bool) -> None:
        """Send the subscriptions again that the server has lost. Raises ClientError."""

    # -- the connection --------------------------------------------------------------------------------------------

    async def __aenter__(self: _Self) -> _Self:
        """Connect.

        Raises NotConnectedError (no server can be reached, or it closed the connection), ConnectRefusedError,
        ProtocolError, TimedOutError; ReentrantError when the client is in use already.
        """
        if self._entered:
            raise ReentrantError("the client is in use already: one `async with` at a time")
        self._entered = True
        try:
            if self._policy is None or not self._policy.at_start:
                await self._round()
                self._kept = self._policy is not None
                self._tell(None)
            else:
                self._kept = True
                await self._reach(None)
            if self._kept:
                self._keeper = asyncio.create_task(self._keep())
        except BaseException as error:
            self._entered = self._kept = False
            connection, self.connection = self.connection, None
            if connection is not None:
                connection.drop(errors.E_TIMEOUT)
            if self._policy is not None:
                # End the calls that began to wait during the attempts.
                self._end(error if isinstance(error, ClientError) else self._error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send DISCONNECT, so that the will is not published, and close."""
        self._entered = False
        keeper, self._keeper = self._keeper, None
        try:
            if keeper is not None:
                keeper.cancel()
                await asyncio.wait({keeper})
        finally:
            try:
                await self._leave()
            finally:
                await self._on_left()

    async def _leave(self) -> None:
        connection = self.connection
        was_kept, self._kept = self._kept, False
        if connection is None and not was_kept:
            return
        self._end(NotConnectedError("the client has disconnected", errors.E_OFFLINE))
        if connection is None:
            return
        connection.flush()
        try:
            self._farewell()
        finally:
            await connection.close(self.timeout)

    @property
    def connected(self) -> bool:
        """True if the client is connected."""
        return self.connection is not None and self.session.state == ONLINE

    @property
    def server(self) -> str:
        """The host and port of the server that the client connected to last, or tried last."""
        return str(self._route)

    @property
    def reconnects(self) -> bool:
        """True if the client reconnects automatically."""
        return self._policy is not None

    @property
    def session_present(self) -> bool:
        """True if the server had kept the session when it accepted the last connection."""
        return self.session.session_present

    async def _round(self) -> None:
        """Try each server once, starting with the last that worked, until the client is connected.

        Where a hub names the one that leads, that one is tried next. Raises the last error; a refusal only when every
        server has refused.
        """
        if self.before_attempts is not None:
            try:
                await self.before_attempts()
            except Exception:
                self.logger.exception("before_attempts failed")
        failed: list[ClientError] = []
        moved, self._moved = self._moved, None
        # The servers of the list that have been tried, and the addresses that hubs have named.
        tried = 0
        named: set[str] = set()
        while True:
            self._route = moved or self._routes[self._at]
            tried += moved is None
            named.add(str(self._route))
            try:
                await self._attempt(self._route)
                self._pauses.connected()
                self._at = next(
                    (n for n, one in enumerate(self._routes) if str(one) == self.server), self._at
                )
                return
            except ArgumentError:
                raise
            except ClientError as error:
                failed.append(error)
                moved = self._named(error)
            if moved is not None and (str(moved) in named or len(named) > len(self._routes) + MOVES):
                moved = None
            if moved is None:
                self._at = (self._at + 1) % len(self._routes)
                if tried == len(self._routes):
                    raise next((error for error in reversed(failed) if not is_refusal(error)), failed[-1])
            self.logger.warning("%s", failed[-1])

    def _named(self, error: ClientError) -> Route | None:
        """Return the route to the server that the last one named in its refusal."""
        if not self.FOLLOWS or not isinstance(error, ConnectRefusedError | DisconnectedError):
            return None
        return self._route.to(error.server_reference)

    async def _attempt(self, route: Route) -> None:
        connection = self._opening = Connection(self.session, self._on_lost, self._tick, self.session.probe)
        try:
            await self._connect(connection, route)
            await self._subscribe_again(self.session.session_present)
        except SubscribeError:
            self.connection = None
            try:
                self._farewell()
            finally:
                await connection.close(self.timeout)
            raise
        except BaseException as error:
            if self.connection is None or not isinstance(error, asyncio.CancelledError):
                self.connection = None
                if self._online is not None:
                    self._online.cancel()
                connection.drop(errors.E_TIMEOUT)
            raise
        finally:
            self._opening = None
        self._wake()

    async def _connect(self, connection: Connection, route: Route) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timeout
        online = self._online = loop.create_future()
        await route.open(connection, self.timeout)
        if connection.transport is None:
            # With TLS 1.3 a server refuses the client's certificate only after the handshake.
            online.result()
        bad = self.session.connect(connection.now_ms())
        if bad:
            raise ArgumentError(
                f"{self.session.GREETING} cannot be built: {describe(bad, self.session.REASONS)}", bad
            )
        connection.push()
        await asyncio.wait({online}, timeout=max(0.0, deadline - loop.time()))
        error = online.exception() if online.done() else None
        # The session has the same timeout, and may notice it first.
        if not online.done() or (isinstance(error, NotConnectedError) and error.code == errors.E_TIMEOUT):
            raise TimedOutError(f"{route} did not answer {self.session.GREETING} within {self.timeout:g} s")
        online.result()
        if self.connection is None:
            # The connection was accepted and lost again.
            raise self._error.with_traceback(None)

    def _on_online(self, session_present: bool) -> None:
        self.connection = self._opening
        self._since = self._progress_at = asyncio.get_running_loop().time()
        self._on_begin(session_present)
        if self._online is not None and not self._online.done():
            self._online.set_result(session_present)

    def _on_lost(self, status: int, detail: str) -> None:
        error = self._ending(status, detail)
        if self.connection is None:
            if self._online is not None and not self._online.done():
                self._online.set_exception(error)
            return
        self.logger.warning("%s: %s", self._route, error)
        if not self._kept:
            self._end(error)
            # Later, because the session is in the middle of a call.
            asyncio.get_running_loop().call_soon(self._tell, error)
            return
        self.connection = None
        self._error = error
        self._moved = self._named(error)
        self._on_interrupted(error)
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(error)

    def _ending(self, status: int, detail: str) -> NotConnectedError:
        if status == errors.E_REFUSED:
            return ConnectRefusedError(self.session.return_code, self.session.why(), self.session.elsewhere())
        if status == errors.E_DISCONNECTED:
            return DisconnectedError(self.session.return_code, self.session.why(), self.session.elsewhere())
        return connection_error(status, detail, self.session.REASONS)

    def _end(self, error: ClientError) -> None:
        self.connection = None
        self._error = error
        self._on_over(error)
        self._wake()

    def _current(self) -> Connection | None:
        """Return the connection, or None while the client reconnects. Raises the last error when the client is over."""
        if self.connection is None and not self._kept:
            raise self._error.with_traceback(None)
        return self.connection

    async def _reached(self, deadline: float) -> Connection:
        """Wait for a connection with every subscription: new requests follow those that are repeated.

        Raises TimedOutError after ``deadline``, and the last error when the client is over.
        """
        loop = asyncio.get_running_loop()
        while (connection := self._current()) is None or self._opening is not None:
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiting.append(waiter)
            try:
                await asyncio.wait({waiter}, timeout=max(0.0, deadline - loop.time()))
            finally:
                if not waiter.done():
                    self._waiting.remove(waiter)
            if not waiter.done():
                raise TimedOutError("there was no connection in time; it was not sent", errors.E_OFFLINE)
        return connection

    def _wake(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)

    # -- reconnecting ----------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Reconnect whenever the connection is lost, until cancelled or until the policy gives up."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._lost = loop.create_future()
                if self.connection is None:
                    self._lost.set_result(self._error)
                error = await self._lost
                self._say(error)
                lasted = loop.time() - self._since
                pause = self._pauses.lost(error, lasted)
                # A hub that stops leading names the next one, which waits for the clients.
                await self._reach(None if self._moved is not None and lasted >= MOVED_AFTER else pause)
        except Exception as error:
            over = error if isinstance(error, ClientError) and self.connection is None else None
            if over is None:
                # A bug: without this task nothing would notice a lost connection.
                self.logger.exception("reconnecting has failed")
                over = NotConnectedError(f"reconnecting has failed: {error!r}")
            self._kept = False
            if self.connection is not None:
                self.connection.drop(errors.E_CLOSED)
            self._end(over)

    async def _reach(self, pause: float | None) -> None:
        """Try rounds until the client is connected. Raises ClientError when the policy gives up."""
        while True:
            if pause is not None:
                await self._idle(pause)
            try:
                await self._ticking(self._round())
            except ClientError as error:
                pause = self._pauses.failed(error)
                self._say(error)
            else:
                self._say(None)
                return

    def _say(self, error: ClientError | None) -> None:
        if error is not None:
            self.logger.info("reconnecting: %s", error)
        self._tell(error)

    def _tell(self, error: ClientError | None) -> None:
        if self.on_connection is None:
            return
        try:
            self.on_connection(error)
        except Exception:
            self.logger.exception("on_connection failed")

    def _report_refusal(self, error: SubscribeError) -> None:
        self.logger.warning("%s: %s", self.server, error)
        if self.on_subscription_refused is not None:
            try:
                self.on_subscription_refused(error)
            except Exception:
                self.logger.exception("on_subscription_refused failed")

    async def _idle(self, seconds: float) -> None:
        await self._ticking(asyncio.sleep(seconds))

    async def _ticking(self, what: Awaitable[None]) -> None:
        """Await ``what``, and check the deadlines of waiting calls meanwhile."""
        task = asyncio.ensure_future(what)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=TICK)
                self._on_tick(asyncio.get_running_loop().time())
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        task.result()

    def _tick(self, now: float) -> None:
        connection = self.connection
        if connection is not None and self._policy is not None:
            unsent = 0 if connection.transport is None else connection.transport.get_write_buffer_size()
            progress = (self._acknowledged(), unsent)
            if progress != self._progress or connection.held or not self.session.in_flight:
                self._progress = progress
                self._progress_at = now
            elif now - self._progress_at >= self._policy.answer:
                connection.drop(errors.E_TIMEOUT)
                return
        self._on_tick(now)
