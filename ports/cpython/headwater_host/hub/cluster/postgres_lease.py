"""The lease of leadership in PostgreSQL, kept by a thread of its own: a hub that is busy renews it all the same.

The row ``leader`` is changed by two statements, which name the epoch; both wait for the synchronous standby. A
statement that returns with a warning counts as one without a reply, because the server reports a cancelled wait for the
standby as a success with a warning.

A session lock is a hint. A candidate that finds it free asks the hub that holds the lease, with ELECT. If nothing
listens there, or if that hub says that it does not lead, the candidate does not wait for the end of the lease. So the
address of a hub has to lead to that hub and to no other.
"""

import asyncio
import contextlib
import logging
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from headwater_host.fmq.address import Address
from headwater_host.hub.cluster import election
from headwater_host.hub.cluster.address import address_of, ip_address_of, split_address
from headwater_host.hub.cluster.lease import RENEWALS, Lease, Row
from headwater_host.hub.storage.libpq import first_line, shut_down
from headwater_host.timeouts import within

#: Of the session lock, whose second number is the epoch.
_LOCK = 0x4857_6C65
#: Seconds that the server may take to answer ELECT.
_ELECT_S = 0.5
#: Seconds that a client waits longer than the server, which ends a statement by itself.
_GRACE_S = 0.5
#: Seconds between attempts to connect.
_AGAIN_S = 0.2

_SETTINGS = """SELECT set_config('application_name', 'headwater hub lease', false),
    set_config('synchronous_commit', 'on', false), set_config('client_min_messages', 'warning', false),
    set_config('statement_timeout', %(ms)s, false), set_config('lock_timeout', %(ms)s, false)"""
_READ = """SELECT epoch, beat, holder, length_ms, EXISTS (
        SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND classid = %s::oid AND objid = (leader.epoch & 2147483647)::oid)
    FROM leader"""
#: The operator asks the leader of an epoch, the payload, to hand over.
_CHANNEL = "headwater_hub_handover"
_TRY_LOCK = "SELECT pg_try_advisory_lock(%s, %s)"
_RENEW = "UPDATE leader SET beat = beat + 1 WHERE epoch = %s AND holder = %s"
_TAKE = """UPDATE leader SET epoch = epoch + 1, turn = 0, beat = 0, holder = %s, length_ms = %s
    WHERE epoch = %s AND beat = %s"""
_RELEASE = "UPDATE leader SET length_ms = 0 WHERE epoch = %s AND holder = %s"
#: What the former leader has open would block the takeover: its transaction, and a renewal that waits for a standby. In
#: that wait the server does not notice that the hub has ended, and keeps the lock.
_TERMINATE = """SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND (application_name LIKE %s OR pid IN (
        SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2
        AND classid = %s::oid AND objid = %s::oid))"""
STANDBYS = """SELECT current_setting('synchronous_standby_names'),
    (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
    (SELECT count(*) FROM pg_stat_replication WHERE sync_state IS NULL)"""

_logger = logging.getLogger("headwater.hub")
_Result = TypeVar("_Result")


def clock() -> float:
    """Return the time by a monotonic clock that also counts while the machine is suspended, where there is one."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class _UnclearError(Exception):
    """The server committed with a warning: not everywhere it should."""


class PostgresLease:
    """Takes part in the election of one database, from ``start`` to ``stop``.

    - ``url``: the database, with a row ``leader``.
    - ``advertise``: the address that clients and other hubs reach this hub at, ``HOST:PORT``; ``own`` the same as IP.
    - ``length``: seconds that the lease lasts without a renewal.
    - ``tls``: how to connect to other hubs, None without TLS.
    - ``standby``: True to lead only where PostgreSQL waits for a synchronous standby.
    - ``changed``: called in the thread after each change of ``epoch``, ``row`` or ``problem``.
    - ``asked``: called in the thread when the operator requests a handover (``ask_for_handover``).

    ``epoch``, ``row``, ``problem`` and ``holds`` may be read in any thread.
    """

    def __init__(
        self,
        url: str,
        advertise: str,
        own: Address,
        length: float,
        *,
        standby: bool,
        tls: ssl.SSLContext | None = None,
        changed: Callable[[], None] = lambda: None,
        asked: Callable[[], None] = lambda: None,
    ):
        self._url = url
        self.advertise = advertise
        self._own = own
        self._standby = standby
        self._tls = tls
        self._changed = changed
        self._asked = asked
        self._lease = Lease(f"{advertise} {own[0]} {secrets.token_hex(8)}", length)
        #: Seconds that a statement may take.
        self._patience = max(length / RENEWALS, 0.25)
        #: True while this hub is ready to lead. ``stand`` sets it.
        self._stands = False
        #: The epoch whose lease is to be released.
        self._leaving = 0
        #: True during a takeover, whose reply may have come.
        self._taking = False
        #: Why this hub cannot lead, or cannot reach the database; "" if it can.
        self.problem = ""
        #: The last change of this hub's data, for the version in elections.
        self.seq: Callable[[], int] = lambda: 0
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._warned = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event
        self._stopping = False
        self._announcing: asyncio.Future[election.Answer] | None = None

    # -- for the hub -----------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that this hub leads, 0 if it does not lead."""
        return self._lease.epoch

    @property
    def row(self) -> Row | None:
        """The row as it was seen last."""
        return self._lease.row

    def holds(self, epoch: int) -> bool:
        """Return whether this hub leads in this epoch now."""
        lease = self._lease
        return lease.epoch == epoch != 0 and clock() < lease.until

    def leader(self) -> str:
        """Return the address of the hub that holds the lease, "" if there is none."""
        row = self._lease.row
        return address_of(row.holder) if row is not None and row.length > 0 else ""

    def elect(self) -> tuple[Address, int] | None:
        """Return the leader's address and version as far as this hub knows, None without a leader.

        Raises BlockingIOError while this hub itself may just have taken the lease over.
        """
        if self._taking:
            raise BlockingIOError
        lease = self._lease
        row = lease.row
        if lease.epoch:
            return self._own, election.version(lease.epoch, self.seq())
        if row is None or row.length <= 0 or row.holder == lease.holder:
            return None
        return ip_address_of(row.holder), election.version(row.epoch, self.seq())

    def start(self) -> None:
        """Start the thread, unless it runs. The hub has to listen at its address already."""
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._main, name="headwater-hub-lease", daemon=True)
        self._thread.start()

    def stand(self, ready: bool) -> None:
        """Set whether this hub may lead."""
        self._stands = ready
        self.poke()

    def release(self, epoch: int) -> None:
        """Stop leading, and let others lead at once."""
        self._leaving = epoch
        self.poke()

    def poke(self) -> None:
        """Have the thread look at once."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the thread has ended
                self._loop.call_soon_threadsafe(self._wake.set)

    def stop(self) -> None:
        """End the thread. A lease that is held is released first."""
        if self._thread is None:
            return
        self._stands = False
        self._leaving = self._lease.epoch
        self._stopping = True
        self.poke()
        self._thread.join()
        self._thread = None

    # -- the thread ------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        try:
            while not self._stopping or self._leaving:
                try:
                    await self._step()
                except (psycopg.Error, OSError, _UnclearError) as error:
                    await self._drop()
                    self._say(first_line(error))
                    if self._stopping:
                        break
                    await self._pause(_AGAIN_S)
        finally:
            await self._drop()
            self._lease.step_down()
            self._changed()

    async def _step(self) -> None:
        """Do what is due, and wait until something else is."""
        lease, before = self._lease, (self._lease.epoch, self._lease.row)
        leaving, self._leaving = self._leaving, 0
        if leaving and leaving == lease.epoch:
            lease.step_down()
            self._changed()
            await self._ask(_RELEASE, leaving, lease.holder)
            # The lock ends with the session.
            await self._drop()
            return
        if self._connection is None:
            await self._connect()
        asked = clock()
        if lease.trusts(asked):
            if asked >= lease.due():
                found = await self._ask(_RENEW, lease.epoch, lease.holder)
                lease.renewed(found.rowcount == 1, asked)
        elif asked >= lease.due() or self._wake.is_set():
            await self._stand(asked)
        self._wake.clear()
        if (lease.epoch, lease.row) != before:
            if not lease.epoch and before[0]:
                await self._drop()
            self._changed()
        if not self._leaving:
            await self._pause(max(lease.due() - clock(), 0.01))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await within(seconds, self._wake.wait())

    async def _stand(self, asked: float) -> None:
        """Read the row as a candidate, and take the lease over if it is free."""
        lease = self._lease
        found = await (await self._ask(_READ, _LOCK)).fetchone()
        if found is None:
            raise psycopg.OperationalError("the table leader is empty")
        epoch, beat, holder, length_ms, locked = found
        row = Row(epoch, beat, holder, length_ms / 1000)
        lease.see(row, asked, clock())
        if not self._stands:
            return
        if lease.may_take() or (not locked and await self._has_ended(row) and lease.may_take(ended=True)):
            await self._take(row)
        else:
            self._say("")

    async def _has_ended(self, row: Row) -> bool:
        """Return whether the holder of the lease has ended, or says that it does not lead."""
        address = address_of(row.holder)
        if address == self.advertise:
            # An earlier process of this hub: this one listens there now.
            return True
        try:
            hub = split_address(address)
        except ValueError:
            return False
        own = self._own, election.version(row.epoch, self.seq())
        answer = await election.elect(hub, *own, timeout=_ELECT_S, tls=self._tls)
        return not answer.listens or answer.agrees

    async def _take(self, row: Row) -> None:
        lease = self._lease
        if self._standby:
            problem = standby_problem(await (await self._ask(STANDBYS)).fetchone() or ("", 0, 0))
            if problem:
                self._say(problem)
                return
        former = f"headwater hub % epoch {row.epoch} writer", _LOCK, row.epoch & 0x7FFF_FFFF
        await self._ask(_TERMINATE, round(self._patience * 1000), *former)
        # The lock comes first: no hub finds it free once the takeover is committed.
        await self._ask(_TRY_LOCK, _LOCK, row.epoch + 1 & 0x7FFF_FFFF)
        self._taking = True
        try:
            asked = clock()
            length_ms = round(lease.length * 1000)
            found = await self._ask(_TAKE, lease.holder, length_ms, row.epoch, row.beat)
            if found.rowcount == 1:
                lease.took(row.epoch + 1, asked)
        finally:
            self._taking = False
        self._say("")
        if not lease.epoch:
            # Another hub was faster: end the session with its lock.
            await self._drop()
            return
        _logger.info("this hub leads in epoch %d", lease.epoch)
        self._changed()
        await self._announce(row)

    async def _announce(self, former: Row) -> None:
        """Tell the hub that led before: it then looks at the row."""
        address = address_of(former.holder)
        if address and address != self.advertise:
            with contextlib.suppress(ValueError):
                hub, own = split_address(address), election.version(self._lease.epoch, self.seq())
                told = election.elect(hub, self._own, own, announce=True, timeout=_ELECT_S, tls=self._tls)
                self._announcing = asyncio.ensure_future(told)

    # -- the database ----------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        given = conninfo_to_dict(self._url)
        more: dict[str, Any] = {"target_session_attrs": "read-write", "connect_timeout": 2}
        more = {name: value for name, value in more.items() if name not in given}
        connection = await psycopg.AsyncConnection.connect(self._url, autocommit=True, **more)
        connection.add_notice_handler(self._notice)
        # Statements that are prepared would not survive a pool in between.
        connection.prepare_threshold = None
        self._connection = connection
        await self._ask(_SETTINGS, ms=f"{round(self._patience * 1000)}ms")
        connection.add_notify_handler(self._notified)
        await self._ask(f"LISTEN {_CHANNEL}")
        if self._lease.epoch:
            await self._ask(_TRY_LOCK, _LOCK, self._lease.epoch & 0x7FFF_FFFF)

    def _notified(self, notify: psycopg.Notify) -> None:
        if notify.payload == str(self._lease.epoch):
            self._asked()

    def _notice(self, notice: errors.Diagnostic) -> None:
        self._warned |= notice.severity_nonlocalized == "WARNING"

    async def _ask(self, statement: str, *values: object, **named: object) -> "psycopg.AsyncCursor[Any]":
        """Execute a statement. Raises psycopg.Error, also for an answer that does not come in time; _UnclearError."""
        connection = self._connection
        if connection is None:
            raise psycopg.OperationalError("there is no connection")
        self._warned = False
        asked = connection.execute(statement.encode(), named or values)
        found = await _bounded(asked, self._patience + _GRACE_S, connection)
        if self._warned:
            raise _UnclearError("the database did not wait for its standby")
        return found

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                await connection.close()

    def _say(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            if problem:
                _logger.warning("the lease: %s", problem)
            self._changed()


async def _bounded(
    asked: Coroutine[Any, Any, _Result], seconds: float, connection: "psycopg.AsyncConnection[Any]"
) -> _Result:
    """Await an answer of the server. After ``seconds`` the connection is shut down, and the answer is an error."""
    task = asyncio.ensure_future(asked)
    done, _ = await asyncio.wait({task}, timeout=seconds)
    if not done:
        shut_down(connection)
    return await task


def standby_problem(found: tuple[str, int, int]) -> str:
    """Return why a database loses acknowledged messages with its machine, or "". ``found``: a row of STANDBYS."""
    names, synchronous, hidden = found
    if not names:
        return (
            "PostgreSQL waits for no standby (synchronous_standby_names is empty): "
            'set it, or accept the loss of messages with standby = "none" in [cluster]'
        )
    if not synchronous:
        if hidden:
            return "this hub may not see the standbys of PostgreSQL: GRANT pg_read_all_stats to its user"
        return "PostgreSQL has no synchronous standby connected: nothing could be committed"
    return ""


def promoted(epoch: int) -> str:
    """Return why no hub leads on a database after a slave of it was promoted."""
    return (
        f"a slave was promoted to epoch {epoch}: this database is out of date. Copy the new leader's storage into an "
        "empty one"
    )


def ask_for_handover(url: str, epoch: int) -> None:
    """Ask the hub that leads in an epoch to let another one lead. It does so soon, if it is reachable."""
    with psycopg.connect(url, autocommit=True, connect_timeout=5) as db:
        db.execute("SELECT pg_notify(%s, %s)", (_CHANNEL, str(epoch)))
