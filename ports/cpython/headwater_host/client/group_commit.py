"""Group commit: changes of an SQLite database, committed together in a thread.

The event loop never waits for the disk. Changes made during a commit are part of the next. When the file cannot
be written, the caller's memory is ahead of it; once the file can be written again, all of it is rewritten.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeAlias

from headwater.errors import E_STORE

#: A statement and its values.
Statement: TypeAlias = tuple[str, tuple[object, ...]]


class GroupCommit:
    """The transactions of ``db``, which has no other user. ``write_all`` writes everything into the open one."""

    def __init__(self, db: sqlite3.Connection, write_all: Callable[[], None]):
        self.db = db
        self._write_everything = write_all
        #: How many changes there were, and how many of them are committed.
        self.position = self.durable = 0
        #: True if the file is not up to date because a change could not be written.
        self.stale = False
        #: The last error of SQLite.
        self.error: sqlite3.Error | None = None
        #: The commit that runs in the thread.
        self.running: Future[object] | None = None
        self._thread: ThreadPoolExecutor | None = None
        # The position that the running commit covers; changes since it began; callbacks, each with its position.
        self._covers = 0
        self._later: list[Statement] = []
        self._waiting: list[tuple[int, Callable[[int], object]]] = []
        self._scheduled = False
        # The event loop that is called when a commit is over.
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def unsynced(self) -> bool:
        """True if a change is not committed yet."""
        return self.stale or self.position != self.durable

    def execute(self, statement: str, values: tuple[object, ...]) -> int:
        """Make a change in the open transaction, or in the next one while a commit runs. Returns 0 or E_STORE."""
        if self.running is not None:
            self._finish()
        self.position += 1
        if self.running is not None:
            self._later.append((statement, values))
            return 0
        if self.stale:
            return self._write_all()
        try:
            self._begin()
            self.db.execute(statement, values)
        except sqlite3.Error as error:
            return self._fail(error)
        return 0

    def begin_commit(self, done: Callable[[int], object]) -> None:
        """Commit all changes so far in a thread; then call ``done(0)`` or ``done(E_STORE)`` on the event loop.

        The commit begins after this turn of the loop, so that it includes what else the turn changes.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # A loop that has ended no longer calls what was scheduled on it.
            self._loop = loop
            self._scheduled = False
            self._finish()
        if not self.unsynced:
            done(0)
            return
        self._waiting.append((self.position, done))
        self._schedule()

    async def stored(self) -> int:
        """Wait until all changes so far are committed. Returns 0 or E_STORE."""
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(status: int) -> None:
            if not waiter.done():
                waiter.set_result(status)

        self.begin_commit(done)
        return await waiter

    def sync(self) -> int:
        """Commit all changes so far, and wait for the disk. Returns 0 or E_STORE."""
        if self.running is not None:
            wait([self.running])
            self._finish()
        status = 0
        if self.stale:
            status = self._write_all()
        elif self.unsynced:
            try:
                self.db.execute("COMMIT")
                self.durable = self.position
            except sqlite3.Error as error:
                status = self._fail(error)
        self._notify(status)
        return status

    def close(self) -> int:
        """Commit all changes, and close the database. Returns 0 or E_STORE."""
        status = self.sync()
        self._waiting.clear()
        if self._thread is not None:
            self._thread.shutdown()
        self.db.close()
        return status

    def _schedule(self) -> None:
        if self._waiting and self.running is None and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._scheduled = False
        if self.running is not None or not self._waiting:
            return
        if self.stale or not self.unsynced:
            # In this thread: writing everything happens once after the file could not be written.
            self.sync()
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "store")
        self._covers = self.position
        self.running = self._thread.submit(self.db.execute, "COMMIT")
        self.running.add_done_callback(self._over)

    def _over(self, _: object) -> None:
        """Continue on the event loop; called in the thread when the commit is over."""
        # If that loop has ended, the next call finds that the commit is over.
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._continue)

    def _continue(self) -> None:
        self._finish()
        self._schedule()

    def _finish(self) -> None:
        """Take the result of the commit in the thread, if it is over, and make the changes that waited for it."""
        running = self.running
        if running is None or not running.done():
            return
        self.running = None
        later, self._later = self._later, []
        error = running.exception()
        if isinstance(error, sqlite3.Error):
            self._notify(self._fail(error))
            return
        if error is not None:
            raise error
        self.durable = self._covers
        try:
            for statement, values in later:
                self._begin()
                self.db.execute(statement, values)
        except sqlite3.Error as failure:
            self._fail(failure)
        self._notify(0)

    def _notify(self, status: int) -> None:
        """Call those whose changes are committed; call all of them when the commit has failed."""
        waiting, self._waiting = self._waiting, []
        for position, done in waiting:
            if status or position <= self.durable:
                # The loop of a waiting call may have ended.
                with contextlib.suppress(RuntimeError):
                    done(status)
            else:
                self._waiting.append((position, done))

    def _begin(self) -> None:
        if not self.db.in_transaction:
            self.db.execute("BEGIN")

    def _write_all(self) -> int:
        try:
            self.db.execute("BEGIN")
            self._write_everything()
            self.db.execute("COMMIT")
        except sqlite3.Error as error:
            return self._fail(error)
        self.stale = False
        self.durable = self.position
        return 0

    def _fail(self, error: sqlite3.Error) -> int:
        self.error = error
        self.stale = True
        with contextlib.suppress(sqlite3.Error):
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
        return E_STORE
