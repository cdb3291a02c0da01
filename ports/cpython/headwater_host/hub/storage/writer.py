"""Group commit: one transaction for each turn, in a thread.

While it is written, the next one collects changes. So an answer waits for at most two syncs of the disk, which all
clients share. When the disk fails, nothing is answered, and the transaction is tried again.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage.records import (
    OVERHEAD,
    STATEMENTS,
    TIDY,
    Message,
    Seen,
    encoded,
    pack_ids,
    row,
    stored_row,
)

#: Seconds until a transaction that failed is tried again.
RETRY = 1.0

#: Rows that are inserted by one statement: SQLite had at most 999 values in one once.
_TOGETHER = 256 if sqlite3.sqlite_version_info >= (3, 32) else 64
#: Larger payloads are inserted one by one: a statement keeps a copy of what it inserted last.
_LARGE = 64 << 10
_MESSAGE = "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_CHANGE = "INSERT INTO changes VALUES (?, ?, ?)"
_GONE = "DELETE FROM messages WHERE seq IN (SELECT value FROM json_each(?))"
_RETAIN = """INSERT OR REPLACE INTO retained (seq, id, topic, queue, flags, time, tags, payload, crc)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""


#: Changes of a transaction from which on work that makes many waits for the next one.
CROWD = 1000
#: Bytes that senders may add to a transaction, so that the next one does not wait long; and bytes that each message
#: counts besides its own.
TURN = 1 << 19
PER_MESSAGE = 1 << 10

_statement = itemgetter(0)


def _is_large(message: tuple[Any, ...]) -> bool:
    return len(message[7]) > _LARGE


class Batch:
    """The changes of one transaction, in the order of writing."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        #: By number of topic: a row, or None to clear.
        self.retained: dict[int, tuple[Any, ...] | None] = {}
        self.statements: list[tuple[str, tuple[Any, ...]]] = []
        self.changes: list[tuple[int, str, str]] = []
        #: Messages that are trimmed, by sequence number.
        self.gone: list[int] = []
        #: What to call when it is on the disk.
        self.done: list[Callable[[], None]] = []
        #: Answers that are sent then.
        self.answers: dict[Callable[[bytes], None], list[bytes]] = {}
        #: The messages, which can be handed out then, and the numbers of their topics.
        self.stored: list[Message] = []
        self.numbers: list[int] = []
        #: True if there is anything to write.
        self.open = False
        self.last = 0
        self.size = 0
        #: What it costs: by sender, and in all.
        self.shares: dict[object, int] = {}
        self.used = 0

    def __bool__(self) -> bool:
        return self.open

    def write(self, db: sqlite3.Connection) -> None:
        """Write all of it, or nothing. Raises sqlite3.Error."""
        db.execute("BEGIN IMMEDIATE")
        try:
            for large, some in groupby(map(row, self.stored, self.numbers), _is_large):
                if large:
                    db.executemany(_MESSAGE, some)
                else:
                    _insert(db, _MESSAGE, list(some))
            if self.seen:
                db.execute("INSERT INTO seen VALUES (?, ?, ?)", pack_ids(self.seen))
            for topic, retained in self.retained.items():
                if retained is None:
                    db.execute("DELETE FROM retained WHERE topic = ?", (topic,))
                else:
                    db.execute(_RETAIN, retained)
            for statement, several in groupby(self.statements, _statement):
                rows = [values for _, values in several]
                if statement.startswith("INSERT"):
                    _insert(db, statement, rows)
                else:
                    db.executemany(statement, rows)
            if self.gone:
                db.execute(_GONE, (encoded(self.gone),))
            _insert(db, _CHANGE, self.changes)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


def _insert(db: sqlite3.Connection, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows. After each statement the thread waits for the interpreter, so there are few: with ``_TOGETHER``
    rows, and for the rest with half as many each time, so that SQLite knows them all."""
    more = ", " + statement[statement.rindex("(") :]
    at, size = 0, _TOGETHER
    while at < len(rows):
        while size > len(rows) - at:
            size //= 2
        db.execute(statement + more * (size - 1), list(chain.from_iterable(rows[at : at + size])))
        at += size


class Writer:
    """Writes batches in order. ``settle`` completes a batch before it is written and returns whether the
    next one has something to do; ``written`` is called with a batch that is on the disk."""

    def __init__(
        self, db: sqlite3.Connection, seq: int, settle: Callable[[], bool], written: Callable[[Batch], None]
    ):
        self._db = db
        self._settle = settle
        self._written = written
        self._thread = ThreadPoolExecutor(1, "headwater-hub-storage")
        self._writing: Batch | None = None
        self._running: asyncio.Future[None] | None = None
        self._scheduled = False
        self._closing = self._closed = False
        self.batch = Batch()
        #: The last change, and the last that is on the disk.
        self.seq = self.durable = seq
        #: Bytes of messages and changes that are not on the disk yet.
        self.waiting = 0
        #: Why nothing can be written; None again when it can.
        self.error: Exception | None = None
        #: Called with it when it begins, and with None when it is over.
        self.on_error: Callable[[Exception | None], object] = lambda error: None
        #: What a sender may have in a transaction, so that each has something; those that have had it.
        self._share = TURN
        self._crowded: list[Callable[[], None]] = []
        #: Transactions so far.
        self.commits = 0

    def next(self) -> int:
        """Return the sequence number of another change, which is made before the event loop's turn ends."""
        self.wake()
        self.seq += 1
        return self.seq

    @property
    def is_crowded(self) -> bool:
        """True if work that makes many changes is to wait for the next transaction."""
        return len(self.batch.changes) >= CROWD

    def change(self, kind: str, *values: Any) -> int:
        """Make a change of ``records.STATEMENTS``; return its sequence number."""
        seq = self.next()
        text = encoded(values)
        row = stored_row(kind, values, text)
        for statement in STATEMENTS[kind]:
            self.batch.statements.append((statement, row))
        self.batch.changes.append((seq, kind, text))
        self.fill(len(text) + OVERHEAD)
        return seq

    def silently(self, kind: str, values: tuple[Any, ...]) -> None:
        """Make a change that followers do not hear of."""
        for statement in STATEMENTS[kind]:
            self.batch.statements.append((statement, stored_row(kind, values, encoded(values))))

    def tidy(self, kind: str, value: int) -> None:
        """Add a statement of ``records.TIDY``."""
        self.batch.statements.append((TIDY[kind], (value,)))

    def fill(self, size: int) -> None:
        """Count bytes that are to be written."""
        self.batch.size += size
        self.waiting += size

    def note(self, kind: str, *values: Any) -> None:
        """Note a change for followers whose statements are in the batch already."""
        self.batch.changes.append((self.next(), kind, encoded(values)))

    def wake(self) -> None:
        """Begin a transaction at the end of this turn."""
        if self._closed:
            raise StorageError("the hub's storage is closed")
        self.batch.open = True
        if not self._scheduled and not self._closing and self._writing is None:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._start)

    def after(self, done: Callable[[], None]) -> None:
        """Call ``done`` when every change so far is on the disk; at once when all are."""
        if self.batch:
            self.batch.done.append(done)
        elif self._writing is not None:
            self._writing.done.append(done)
        else:
            done()

    def answer(self, send: Callable[[bytes], None], data: bytes) -> None:
        """Send this when every change so far is on the disk, joined with other answers."""
        batch = self.batch if self.batch.open else self._writing
        if batch is None:
            send(data)
        elif (waiting := batch.answers.get(send)) is not None:
            waiting.append(data)
        else:
            batch.answers[send] = [data]

    def _start(self) -> None:
        if self.batch and self._writing is None and not self._closing:
            self._turn()
            self._submit()
        self._scheduled = False

    def _turn(self) -> None:
        """Complete the batch, and begin another one."""
        more = self._settle()
        self.batch.last = self.seq
        self._writing, self.batch = self.batch, Batch()
        # What is left when the hub ends is done when it starts again.
        self.batch.open = more and not self._closing
        self._share = TURN // max(len(self._writing.shares), 1)
        self._go_on()

    def share(self, sender: object, size: int) -> bool:
        """Count a message of a sender; return whether the sender has had its share of this transaction. A duplicate
        adds nothing, so there may be no transaction that the sender could wait for."""
        batch = self.batch
        if not batch:
            return False
        size += PER_MESSAGE
        batch.used += size
        used = batch.shares[sender] = batch.shares.get(sender, 0) + size
        return (used >= self._share or batch.used >= TURN) and self.error is None

    def next_turn(self, done: Callable[[], None]) -> None:
        """Call ``done`` when another transaction collects changes, or when this one cannot be written."""
        self._crowded.append(done)

    def _go_on(self) -> None:
        crowded, self._crowded = self._crowded, []
        loop = asyncio.get_running_loop()
        for go_on in crowded:
            loop.call_soon(go_on)

    def _submit(self) -> None:
        if self._writing is not None and not self._closing:
            loop = asyncio.get_running_loop()
            self._running = loop.run_in_executor(self._thread, self._writing.write, self._db)
            self._running.add_done_callback(self._finished)

    def _finished(self, running: "asyncio.Future[None]") -> None:
        self._running = None
        error = running.exception()
        if error is None:
            self._done()
            # The next one has collected meanwhile.
            self._start()
        elif isinstance(error, Exception):
            if self.error is None:
                self.on_error(error)
            self.error = error
            # What may wait for the disk is bounded otherwise now.
            self._go_on()
            asyncio.get_running_loop().call_later(RETRY, self._submit)

    def _done(self) -> None:
        batch, self._writing = self._writing, None
        assert batch is not None
        if self.error is not None:
            self.error = None
            self.on_error(None)
        self.durable = batch.last
        self.waiting -= batch.size
        self.commits += 1
        answers = [partial(send, b"".join(waiting)) for send, waiting in batch.answers.items()]
        calls: list[Callable[[], None]] = [*batch.done, *answers, partial(self._written, batch)]
        for call in calls:
            try:
                call()
            except Exception as error:
                context = {"message": "what waited for the hub's storage failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)

    async def close(self) -> None:
        """Write what is left. Raises StorageError when that cannot be."""
        loop = asyncio.get_running_loop()
        self._closing = True  # nothing is begun any more, except here
        try:
            while self._running is not None:
                await asyncio.wait([self._running])
                await asyncio.sleep(0)
            while self._writing is not None or self.batch:
                if self._writing is None:
                    self._turn()
                assert self._writing is not None
                await loop.run_in_executor(self._thread, self._writing.write, self._db)
                self._done()
        except Exception as error:
            raise StorageError(f"the hub's storage is not up to date: {error}") from error
        finally:
            self._closed = True
            self._thread.shutdown()
