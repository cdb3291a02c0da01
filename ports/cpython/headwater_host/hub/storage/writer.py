"""Group commit: one transaction for each turn, in a thread.

While it is written, the next one collects changes. So an answer waits for at most two syncs of the disk, which all
clients share. When the disk fails, nothing is answered, and the transaction is tried again. A fenced transaction is
not: another hub leads then.

A transaction is *durable* when the engine has written it, and *committed* when it may be answered and shown: at once,
or when ``confirm`` says that enough slaves have it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from headwater_host.hub.errors import FencedError, StorageError
from headwater_host.hub.storage.contract import Engine, Transaction
from headwater_host.hub.storage.records import OVERHEAD, Message, Seen, encoded, stored_row

#: Seconds until a transaction that failed is tried again.
RETRY = 1.0

#: Seconds after which a transaction that is still being written is an error: a server may hold it for ever.
LATE = 10.0

#: Seconds that the hub's end waits for a server.
ENDING = 5.0

#: Called with the last change of a durable transaction, and with what to call when it is committed. Transactions are
#: committed in order: confirming one confirms those before it.
Confirm = Callable[[int, Callable[[], None]], None]

#: Kinds of changes that have no statements: a transaction has what they do in lists of its own.
NOTED = frozenset({"trim", "unretain"})

#: Changes of a transaction from which on work that makes many waits for the next one.
CROWD = 1000
#: Bytes that senders may add to a transaction, so that the next one does not wait long; and bytes that each message
#: counts besides its own.
TURN = 1 << 19
PER_MESSAGE = 1 << 10


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
        #: What to call when it is durable; when it is committed.
        self.durable: list[Callable[[], None]] = []
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

    def transaction(self, number: int) -> Transaction:
        """Return what is to be written, as transaction ``number`` of this epoch."""
        return Transaction(
            number,
            self.last,
            self.stored,
            self.numbers,
            self.seen,
            self.retained,
            self.statements,
            self.changes,
            self.gone,
        )


class Writer:
    """Writes batches in order. ``settle`` completes a batch before it is written and returns whether the
    next one has something to do; ``written`` is called with a batch that is committed."""

    def __init__(
        self, engine: Engine, seq: int, settle: Callable[[], bool], written: Callable[[Batch], None]
    ):
        self._engine = engine
        #: The number of the last transaction of this epoch.
        self._turns = 0
        #: True once it may write.
        self.leads = False
        self._settle = settle
        self._written = written
        self._thread = ThreadPoolExecutor(1, "headwater-hub-storage")
        self._writing: Batch | None = None
        #: Batches that are durable but not committed, the oldest first.
        self._unconfirmed: deque[Batch] = deque()
        self._running: asyncio.Future[None] | None = None
        #: The start of the write, by the loop's clock.
        self._began = 0.0
        self._scheduled = False
        self._closing = self._closed = False
        self.batch = Batch()
        #: The last change, the last that is durable, and the last that is committed.
        self.seq = self.durable = self.committed = seq
        self.confirm: Confirm = lambda last, done: done()
        #: Bytes of messages and changes that are not committed yet.
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

    def lead(self, turn: int) -> None:
        """Begin to write, after a turn of the engine."""
        self._turns = turn
        self.leads = True

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
        """Make a change of a kind that ``contract`` lists; return its sequence number."""
        return self.replay(self.seq + 1, kind, values)

    def replay(self, seq: int, kind: str, values: tuple[Any, ...]) -> int:
        """Make a change under the sequence number that the leader gave it; return the number."""
        self.number(seq)
        text = encoded(values)
        if kind not in NOTED:
            self.batch.statements.append((kind, stored_row(kind, values, text)))
        self.batch.changes.append((seq, kind, text))
        self.fill(len(text) + OVERHEAD)
        return seq

    def number(self, seq: int) -> None:
        """Continue with a sequence number that the leader gave."""
        if self.leads:
            self.wake()
        self.seq = seq

    def discard(self) -> None:
        """Drop the changes of this turn: the storage has them, since another hub wrote them."""
        self.batch = Batch()
        self.durable = self.committed = self.seq
        self.waiting = 0

    def silently(self, kind: str, values: tuple[Any, ...]) -> None:
        """Make a change that followers do not hear of."""
        self.batch.statements.append((kind, stored_row(kind, values, encoded(values))))

    def tidy(self, kind: str, value: int) -> None:
        """Add a statement of a kind that is no change."""
        self.batch.statements.append((kind, (value,)))

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
        """Call ``done`` when every change so far is committed; at once when all are."""
        batch = self._last()
        if batch is None:
            done()
        else:
            batch.done.append(done)

    def written(self, done: Callable[[], None]) -> None:
        """Call ``done`` when every change so far is durable; at once when all are."""
        batch = self.batch if self.batch.open else self._writing
        if batch is None:
            done()
        else:
            batch.durable.append(done)

    def _last(self) -> Batch | None:
        """Return the last batch that is not committed, if there is one."""
        if self.batch.open:
            return self.batch
        if self._writing is not None:
            return self._writing
        return self._unconfirmed[-1] if self._unconfirmed else None

    def answer(self, send: Callable[[bytes], None], data: bytes) -> None:
        """Send this when every change so far is committed, joined with other answers."""
        batch = self._last()
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
            self._began = loop.time()
            self._running = loop.run_in_executor(self._thread, self._engine.write, self._transaction())
            self._running.add_done_callback(self._finished)

    def failure(self) -> Exception | None:
        """Return why nothing is written at present."""
        if self.error is None and self._running is not None:
            seconds = asyncio.get_running_loop().time() - self._began
            if seconds > LATE:
                return StorageError(f"a transaction is not written after {seconds:.0f} s")
        return self.error

    def _transaction(self) -> Transaction:
        assert self._writing is not None
        return self._writing.transaction(self._turns + 1)

    def _finished(self, running: "asyncio.Future[None]") -> None:
        self._running = None
        error = running.exception()
        if error is None:
            self._written_durably()
            # The next one has collected meanwhile.
            self._start()
        elif isinstance(error, Exception):
            if self.error is None or isinstance(error, FencedError):
                self.on_error(error)
            self.error = error
            # What may wait for the disk is bounded otherwise now.
            self._go_on()
            if not isinstance(error, FencedError):
                asyncio.get_running_loop().call_later(RETRY, self._submit)

    def _written_durably(self) -> None:
        batch, self._writing = self._writing, None
        assert batch is not None
        self._turns += 1
        if self.error is not None:
            self.error = None
            self.on_error(None)
        self.durable = batch.last
        self.commits += 1
        self._unconfirmed.append(batch)
        for written in batch.durable:
            written()
        self.confirm(batch.last, partial(self._commit, batch.last))

    def _commit(self, last: int) -> None:
        """Answer and show every durable transaction up to a change."""
        while self._unconfirmed and self._unconfirmed[0].last <= last:
            batch = self._unconfirmed.popleft()
            self.committed = batch.last
            self.waiting -= batch.size
            answers = [partial(send, b"".join(waiting)) for send, waiting in batch.answers.items()]
            calls: list[Callable[[], None]] = [*batch.done, *answers, partial(self._written, batch)]
            for call in calls:
                try:
                    call()
                except Exception as error:
                    context = {"message": "what waited for the hub's storage failed", "exception": error}
                    asyncio.get_running_loop().call_exception_handler(context)

    async def close(self) -> None:
        """Write what is left, within ``ENDING``: a database may be silent. Raises StorageError when that cannot be."""
        loop = asyncio.get_running_loop()
        self._closing = True  # nothing is begun any more, except here
        giving_up = loop.call_later(ENDING, self._engine.abort)
        try:
            while self._running is not None:
                await asyncio.wait([self._running])
                await asyncio.sleep(0)
            while self._writing is not None or self.batch:
                if isinstance(self.error, FencedError):
                    raise self.error
                if self._writing is None:
                    self._turn()
                assert self._writing is not None
                await loop.run_in_executor(self._thread, self._engine.write, self._transaction())
                self._written_durably()
        except Exception as error:
            raise StorageError(f"the hub's storage is not up to date: {error}") from error
        finally:
            giving_up.cancel()
            self._closed = True
            self._thread.shutdown()
