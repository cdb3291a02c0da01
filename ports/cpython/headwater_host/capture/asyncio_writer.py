"""Write a capture log from asyncio: append never waits for the disk; callers can await durability."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType

from headwater_host.capture import block_log
from headwater_host.capture.block_builder import BLOCK_BYTES, BlockBuilder, BlockFull, ClosedBuilder
from headwater_host.capture.block_log import BlockLog, CaptureWriteError
from headwater_host.capture.format import UNMARKED
from headwater_host.capture.recovery import Recovery
from headwater_host.capture.sync_budget import SyncBudget
from headwater_host.lifetime import MACHINE
from headwater_host.timeouts import within

LIMIT_BYTES = 16 << 20
RETRY_DELAYS = (0.1, 10.0)  # s, the first and the longest
_SEAL_CHECK = 1.0  # s between looks at the segment's age while nothing is written

_logger = logging.getLogger(__name__)


class CaptureFullError(Exception):
    """Too many bytes wait for the disk. The record was refused: await ``room``, or drop it."""


class _Batch:
    """Records that become durable together, with the futures and calls that wait for them."""

    __slots__ = ("builder", "calls", "waiters")

    def __init__(self, builder: BlockBuilder) -> None:
        self.builder = builder
        self.waiters: list[asyncio.Future[None]] = []
        self.calls: list[Callable[[], object]] = []


class AsyncCapture:
    """Writes the log in ``directory`` from one event loop; an asynchronous context manager.

    Call every method in the loop's thread. A second thread writes blocks, with one fdatasync each. While the disk is
    idle, the records of one turn of the loop are written at once as a block. Records that arrive during a sync are the
    next block, or several of ``block_bytes`` (1 MiB). ``budget`` may delay a block that is neither full nor flushed.

    If a write fails (disk full, I/O error), the records stay in memory and are not durable. ``error`` and ``on_error``
    report the cause, and the write is tried again after 0.1 s, later every 10 s. While ``limit_bytes`` (16 MiB) wait,
    ``append`` refuses records and ``room`` waits.

    ``segment_bytes``, ``segment_age``: size and age at which a segment is sealed (64 MiB, 3600 s). ``on_error``: called
    in the loop with each CaptureWriteError; by default they are logged. ``clock``, ``datasync`` and
    ``group_readable``: see ``BlockLog``.

    Attributes: ``durable_number``, the number of the last record on disk; ``syncs``, the number of blocks written;
    ``error``, why the last write failed, or None.

    Entering raises what ``BlockLog`` raises. Leaving raises CaptureWriteError if records could not be written.
    """

    _log: BlockLog
    _loop: asyncio.AbstractEventLoop
    _task: asyncio.Task[None]
    _stop: asyncio.Event  # set by aclose: write what there is, then close

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        block_bytes: int = BLOCK_BYTES,
        limit_bytes: int = LIMIT_BYTES,
        segment_bytes: int = block_log.SEGMENT_BYTES,
        segment_age: float = block_log.SEGMENT_AGE_NS / 1e9,
        on_error: Callable[[CaptureWriteError], object] | None = None,
        clock: Callable[[], int] = MACHINE.boottime,
        budget: SyncBudget | None = None,
        datasync: Callable[[int], None] = block_log.datasync,
        group_readable: bool = False,
    ) -> None:
        BlockBuilder(block_bytes)  # raises ValueError for an invalid size
        if limit_bytes < block_bytes:
            raise ValueError(f"limit_bytes {limit_bytes}: must be at least block_bytes, {block_bytes}")
        self.directory = Path(directory)
        self.group_readable = group_readable
        self._open = partial(
            BlockLog,
            directory,
            segment_bytes=segment_bytes,
            segment_age_ns=int(segment_age * 1e9),
            datasync=datasync,
            clock=clock,
            group_readable=group_readable,
        )
        self._block_bytes = block_bytes
        self._limit_bytes = limit_bytes
        self._on_error = on_error
        self._budget = budget or SyncBudget()
        self._thread = ThreadPoolExecutor(1, "capture")
        self._current = _Batch(ClosedBuilder("the capture log is not open yet"))
        self._queue: deque[_Batch] = deque()
        self._queued_bytes = 0
        self._appended = 0
        self.durable_number = 0
        self.syncs = 0
        self._alarm: asyncio.Future[bool] | None = None  # wakes the writing task
        self._room: list[asyncio.Future[None]] = []
        self._due: list[Callable[[], object]] = []  # calls for the next turn of the loop
        self.error: CaptureWriteError | None = None
        self._failure: Exception | None = None  # the cause, after which nothing is written

    @property
    def durable_sequence(self) -> int:
        """The sequence number of the next block: lower ones are on disk. Any thread may call this."""
        return self._log.next_sequence

    @property
    def pending_bytes(self) -> int:
        """The approximate number of bytes that wait for the disk."""
        return self._queued_bytes + (self._current.builder.size if self._current.builder.count else 0)

    @property
    def full(self) -> bool:
        """True if ``append`` would refuse a record."""
        return self.pending_bytes >= self._limit_bytes

    @property
    def recovery(self) -> Recovery:
        """The damage found and repaired when the log was opened."""
        return self._log.recovery

    def append(
        self,
        time_ns: int,
        connection: int,
        peer: str,
        direction: int,
        protocol: int,
        version: int,
        frame: bytes | bytearray | memoryview,
        mark: int = UNMARKED,
        first_ns: int = 0,
    ) -> int:
        """Append a record and return its number, from 1.

        Raises ValueError or TypeError if the record cannot be stored (the text names field and limit) or the log is
        closed, CaptureFullError while too much waits for the disk. The record is not appended then.
        """
        builder = self._current.builder
        if self._queued_bytes + builder.size >= self._limit_bytes and self.full:
            raise CaptureFullError(
                f"{self.pending_bytes} bytes wait for the disk ({self.error or 'it is slow'})"
            )
        try:
            builder.append(time_ns, connection, peer, direction, protocol, version, frame, mark, first_ns)
        except BlockFull:
            self._close_batch()
            builder = self._current.builder
            builder.append(time_ns, connection, peer, direction, protocol, version, frame, mark, first_ns)
        if builder.count == 1:
            self._wake()
        self._appended += 1
        return self._appended

    async def durable(self, number: int) -> None:
        """Wait until record ``number`` is on disk.

        Raises ValueError for a number that no record has, CaptureWriteError if the log is closed before.
        """
        batch = self._batch(number)
        if batch is not None:
            await self._wait_in(batch.waiters)

    def when_durable(self, number: int, call: Callable[[], object]) -> None:
        """Call ``call`` in the loop when record ``number`` is on disk, in the order of the numbers.

        The call runs in the turn in which the loop learns of the sync. Its exceptions go to the loop's exception
        handler. Raises ValueError for a number that no record has.
        """
        batch = self._batch(number)
        if batch is not None:
            batch.calls.append(call)
            return
        if not self._due:
            self._loop.call_soon(self._call_due)
        self._due.append(call)

    def _call_due(self) -> None:
        """Run the calls for records that were already on disk."""
        due, self._due = self._due, []
        self._call(due)

    def _call(self, calls: list[Callable[[], object]]) -> None:
        for call in calls:
            try:
                call()
            except Exception as error:
                what = "a call for a durable record has failed"
                self._loop.call_exception_handler({"message": what, "exception": error})

    async def flush(self) -> None:
        """Wait until everything that was appended is on disk."""
        self._close_batch()
        await self.durable(self._appended)

    async def room(self) -> None:
        """Wait until ``append`` accepts a record. Call it before reading more from a peer.

        Raises CaptureWriteError when the log is closed with records that could not be written.
        """
        while self.full:
            await self._wait_in(self._room)

    async def _wait_in(self, waiters: list[asyncio.Future[None]]) -> None:
        if self._failure is not None:
            raise self._failure
        future = self._loop.create_future()
        waiters.append(future)
        await future

    async def __aenter__(self) -> AsyncCapture:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        opening = self._thread.submit(self._open)
        try:
            self._log = await asyncio.wrap_future(opening)
        except BaseException:
            opening.add_done_callback(_close_unused)
            self._thread.shutdown(wait=False)
            raise
        self._current = _Batch(BlockBuilder(self._block_bytes))
        self._task = self._loop.create_task(self._run(), name="capture")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Write all records, seal the segment and close the log. A second call only waits.

        Raises CaptureWriteError if records could not be written, after one more attempt; they are lost.
        """
        if self._stop.is_set():
            await asyncio.wait([self._task])
            return
        self._close_batch()
        self._current = _Batch(ClosedBuilder())
        self._stop.set()
        self._wake()
        await asyncio.shield(self._task)

    def _batch(self, number: int) -> _Batch | None:
        """Return the batch with record ``number``, None if it is on disk."""
        if not 0 <= number <= self._appended:
            raise ValueError(f"record {number}: {self._appended} were appended")
        last = self.durable_number
        for batch in self._queue:
            if number <= last:
                return None
            last += batch.builder.count
            if number <= last:
                return batch
        return self._current if number > last else None

    def _close_batch(self) -> None:
        batch = self._current
        if batch.builder.count:
            self._queue.append(batch)
            self._queued_bytes += batch.builder.size
            self._current = _Batch(BlockBuilder(self._block_bytes))
            self._wake()

    def _wake(self) -> None:
        """Wake the writing task."""
        if self._alarm is not None and not self._alarm.done():
            self._alarm.set_result(True)

    async def _sleep(self, seconds: float) -> bool:
        """Sleep up to ``seconds``. Return whether the task was woken before."""
        alarm: asyncio.Future[bool] = self._loop.create_future()
        self._alarm = alarm
        timer = self._loop.call_later(seconds, _ring, alarm)
        try:
            return await alarm
        finally:
            timer.cancel()

    async def _run(self) -> None:
        """Write the batches in order until ``aclose`` was called and none is left."""
        delay, longest = RETRY_DELAYS
        try:
            while self._queue or not self._stop.is_set():
                batch = self._next()
                if batch is None:
                    saves = self._current.builder.count > 0
                    woken = await self._sleep(self._budget.wait() if saves else _SEAL_CHECK)
                    if woken or saves:
                        continue
                try:
                    await self._loop.run_in_executor(self._thread, self._step, batch)
                except CaptureWriteError as error:
                    self._report(error)
                    if self._stop.is_set():
                        raise
                    with contextlib.suppress(asyncio.TimeoutError):
                        await within(delay, self._stop.wait())
                    delay = min(2 * delay, longest)
                    continue
                delay = RETRY_DELAYS[0]
        except BaseException as error:
            self._fail(error)
            with contextlib.suppress(CaptureWriteError):  # report the first error
                await self._close()
            raise
        await self._close()

    def _next(self) -> _Batch | None:
        """Return the batch to write now; None if there is none or the budget has no sync left."""
        if not self._queue and not self._budget.wait():
            self._close_batch()
        if not self._queue:
            return None
        self._budget.spend()
        return self._queue[0]

    async def _close(self) -> None:
        # In the thread, so that it follows a write that is in progress when this task is cancelled.
        closing = self._thread.submit(self._log.close)
        self._thread.shutdown(wait=False)
        await asyncio.wrap_future(closing)

    def _step(self, batch: _Batch | None) -> None:
        """Write a batch and seal a due segment. Runs in the thread."""
        self._log.seal_if_due()
        if batch is not None:
            self._log.write(batch.builder)
        # Earlier than the executor's result, which takes the task one more turn.
        self._loop.call_soon_threadsafe(self._done, batch)

    def _report(self, error: CaptureWriteError) -> None:
        self.error = error
        if self._on_error is None:
            _logger.warning("%s", error)
        else:
            self._loop.call_soon(self._on_error, error)

    def _done(self, batch: _Batch | None) -> None:
        self.error = None
        if batch is None:
            return
        self._queue.popleft()
        self.syncs += 1
        self._queued_bytes -= batch.builder.size
        self.durable_number += batch.builder.count
        for future in (*batch.waiters, *self._room):
            if not future.done():
                future.set_result(None)
        self._room.clear()
        # Calls of an earlier sync that are still due run first.
        self._call_due()
        self._call(batch.calls)

    def _fail(self, error: BaseException) -> None:
        """Fail all waiting futures and refuse further records."""
        if not isinstance(error, Exception):
            error = CaptureWriteError(errno.ECANCELED, "the task that writes the capture log was cancelled")
        self._failure = error
        waiters = [future for batch in (*self._queue, self._current) for future in batch.waiters]
        for future in (*waiters, *self._room):
            if not future.done():
                future.set_exception(error)
        self._room.clear()
        self._current = _Batch(ClosedBuilder(f"the capture log's writer has failed: {error!r}"))


def _ring(alarm: asyncio.Future[bool]) -> None:
    if not alarm.done():
        alarm.set_result(False)


def _close_unused(opening: Future[BlockLog]) -> None:
    """Close a log whose opening task was cancelled."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
