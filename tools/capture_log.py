"""Write capture logs for tests and benchmarks: a blocking writer over ``BlockLog``."""

import contextlib
import os
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from headwater_host.capture.block_builder import BLOCK_BYTES, MAX_BLOCK_BYTES, BlockBuilder, BlockFull
from headwater_host.capture.block_log import BlockLog, CaptureWriteError
from headwater_host.capture.format import MAX_BODY, Record


class LogWriter:
    """Writes the log in ``directory`` from one thread; a context manager.

    A full block of ``block_bytes`` is written by the next ``append``, others by ``flush``. ``options`` go to
    ``BlockLog``, as ``log``. Records up to number ``durable`` are on disk; ``pending`` more are in memory.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, block_bytes: int = BLOCK_BYTES, **options: Any
    ) -> None:
        self._builder = BlockBuilder(block_bytes)
        self._block_bytes = block_bytes
        self.log = BlockLog(directory, **options)
        self.recovery = self.log.recovery
        self.durable = 0

    @property
    def pending(self) -> int:
        """Records in memory."""
        return self._builder.count

    def append(self, *record: Any) -> int:
        """Take a record and return its number, from 1. Raises what ``BlockBuilder.append`` and ``flush`` raise."""
        try:
            self._builder.append(*record)
        except BlockFull:
            self.flush()
            self._builder.append(*record)
        return self.durable + self._builder.count

    def flush(self) -> int:
        """Write the records in memory; return ``durable``. Raises CaptureWriteError and keeps them if that fails."""
        if self._builder.count:
            self.log.write(self._builder)
            self.durable += self._builder.count
            self._builder = BlockBuilder(self._block_bytes)
        return self.durable

    def close(self) -> None:
        """Flush and close the log. Raises CaptureWriteError; the log is closed even then."""
        try:
            if not self.log.closed:
                self.flush()
        except BaseException:
            with contextlib.suppress(CaptureWriteError):
                self.log.close()
            raise
        self.log.close()

    def __enter__(self) -> "LogWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def encode_records(records: Iterable[Record], sequence: int, salt: int) -> bytes:
    """Encode records as one block.

    Raises ValueError if there are none, too many for one block, or one of them cannot be stored.
    """
    builder = BlockBuilder(MAX_BLOCK_BYTES)
    try:
        for record in records:
            builder.append(*record)
    except BlockFull:
        raise ValueError(f"more than {MAX_BLOCK_BYTES} bytes of records for one block") from None
    if not builder.count:
        raise ValueError("a block has at least one record")
    header, body = builder.encode(sequence, salt)
    assert len(body) <= MAX_BODY
    return header + body
