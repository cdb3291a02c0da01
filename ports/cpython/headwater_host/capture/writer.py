"""Write a capture log: append records, and know which of them are on disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from types import TracebackType

from headwater_host.capture import block_log
from headwater_host.capture.block_builder import BlockBuilder, BlockFull, ClosedBuilder
from headwater_host.capture.block_log import BlockLog, CaptureWriteError
from headwater_host.capture.format import UNMARKED
from headwater_host.capture.recovery import Recovery
from headwater_host.lifetime import MACHINE

BLOCK_BYTES = 1 << 20
BLOCK_AGE_NS = 50 * 10**6


class CaptureWriter:
    """The one writer of the log in ``directory``, blocking, for one thread; a context manager.

    ``append`` numbers the records from 1; record n is on disk when ``durable >= n``. A block is written, with one
    fdatasync, when the next record would make it longer than ``block_bytes`` (1 MiB), when ``poll`` finds its first
    record older than ``block_age_ns`` (50 ms), and by ``flush``. ``segment_bytes`` and ``segment_age_ns``: when a
    segment is sealed (64 MiB, 1 h). ``datasync`` makes a file's data durable. ``clock``,
    ``group_readable``: as of ``BlockLog``.

    Raises CaptureLockedError when another writer has the log open, OSError when it cannot be made or read, ValueError
    for sizes that are not possible.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        block_bytes: int = BLOCK_BYTES,
        block_age_ns: int = BLOCK_AGE_NS,
        segment_bytes: int = block_log.SEGMENT_BYTES,
        segment_age_ns: int = block_log.SEGMENT_AGE_NS,
        datasync: Callable[[int], None] = block_log.datasync,
        clock: Callable[[], int] = MACHINE.boottime,
        group_readable: bool = False,
    ) -> None:
        self._builder = BlockBuilder(block_bytes)
        self._block_bytes = block_bytes
        self._block_age_ns = block_age_ns
        self._durable = 0
        self._log = BlockLog(
            directory,
            segment_bytes=segment_bytes,
            segment_age_ns=segment_age_ns,
            datasync=datasync,
            clock=clock,
            group_readable=group_readable,
        )

    @property
    def durable(self) -> int:
        """The records up to this number are on disk."""
        return self._durable

    @property
    def pending(self) -> int:
        """Records that are in memory only."""
        return self._builder.count

    @property
    def recovery(self) -> Recovery:
        """What opening the log found and did: torn tails cut, damage, segments sealed."""
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
        """Take one record; returns its number. Writes the block first when there is no room in it.

        Raises ValueError or TypeError when the record cannot be stored (the text names field and limit) or the writer
        is closed, and CaptureWriteError when the block is full and cannot be written. Then this record was not taken;
        those before it are kept.
        """
        builder = self._builder
        try:
            builder.append(time_ns, connection, peer, direction, protocol, version, frame, mark, first_ns)
        except BlockFull:
            self.flush()
            builder = self._builder
            builder.append(time_ns, connection, peer, direction, protocol, version, frame, mark, first_ns)
        return self._durable + builder.count

    def flush(self) -> int:
        """Make every record that was appended durable; returns ``durable``.

        Raises CaptureWriteError when that failed; the records are kept, and the next flush tries again.
        """
        builder = self._builder
        if builder.count:
            self._log.write(builder)
            self._durable += builder.count
            self._builder = BlockBuilder(self._block_bytes)
        return self._durable

    def poll(self, now_ns: int) -> int:
        """Write the block and seal the segment if they are old enough; returns ``durable``.

        ``now_ns`` is on the clock of the records' times; where that was set back, the block counts as old enough.
        Raises CaptureWriteError as ``flush`` does.
        """
        builder = self._builder
        if builder.count and not 0 <= now_ns - builder.opened_ns < self._block_age_ns:
            self.flush()
        self._log.seal_if_due()
        return self._durable

    def close(self) -> None:
        """Flush, seal the segment, let go of the log. Harmless a second time.

        Raises CaptureWriteError when records could not be written; the log is let go of, and they are lost.
        """
        if self._log.closed:
            return
        try:
            self.flush()
        except BaseException:
            with contextlib.suppress(CaptureWriteError):  # the records that are lost are the worse news
                self._log.close()
            raise
        else:
            self._log.close()
        finally:
            self._builder = ClosedBuilder()

    def __enter__(self) -> CaptureWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


__all__ = ["CaptureWriteError", "CaptureWriter"]
