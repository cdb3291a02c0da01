"""Write blocks to segments and sealed segments to the manifest; recover from failed writes.

Blocking, and for one thread at a time. ``AsyncCapture`` drives it from asyncio.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from headwater_host.capture.block_builder import BlockBuilder
from headwater_host.capture.format import parse_header, segment_name
from headwater_host.capture.lock import CaptureLockedError, lock
from headwater_host.capture.log_id import ensure_log_id
from headwater_host.capture.manifest import LOCK, Entry, ManifestFile, list_log, write_all
from headwater_host.capture.recovery import recover
from headwater_host.capture.scan import BlockInfo
from headwater_host.lifetime import MACHINE
from headwater_host.private import make_directory, opened, restrict, sync_directory

SEGMENT_BYTES = 64 << 20
SEGMENT_AGE_NS = 3600 * 10**9

# fdatasync is cheaper, but only Linux has it.
datasync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


__all__ = ["BlockLog", "CaptureLockedError", "CaptureWriteError"]


class CaptureWriteError(OSError):
    """Records could not be made durable (disk full, I/O error). They are kept for the next attempt."""


class BlockLog:
    """The log in ``directory``, open for one writer. Creates the directory; repairs and locks the log.

    ``segment_bytes``, ``segment_age_ns``: size and age at which a segment is sealed. ``clock``: nanoseconds, for that
    age; a clock that cannot be set. ``datasync``: makes a file's data durable; called once per block.
    ``group_readable``: see ``private``. ``on_block``: called after each good block that repair reads. Attributes:
    ``recovery``, what opening found and repaired; ``next_sequence``, the sequence number of the next block: blocks
    with lower numbers are on disk.

    Raises CaptureLockedError if another writer has the log open, OSError if the directory cannot be created or read.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        segment_bytes: int = SEGMENT_BYTES,
        segment_age_ns: int = SEGMENT_AGE_NS,
        datasync: Callable[[int], None] = datasync,
        clock: Callable[[], int] = MACHINE.boottime,
        group_readable: bool = False,
        on_block: Callable[[BlockInfo], object] = lambda info: None,
    ) -> None:
        if segment_bytes < 1 or segment_age_ns < 1:
            raise ValueError(
                f"segment_bytes {segment_bytes}, segment_age_ns {segment_age_ns}: must be at least 1"
            )
        self.directory = Path(directory)
        self._segment_bytes = segment_bytes
        self._segment_age_ns = segment_age_ns
        self._datasync = datasync
        self._clock = clock
        self._group_readable = group_readable
        self._fd = -1
        self._began_ns = 0
        self._path = self.directory
        self._salt = 0
        self._dirty = False  # bytes after those of the entry must be cut
        self._spent = False  # nothing may be appended to this segment
        make_directory(self.directory)
        self._lock = lock(
            self.directory / LOCK, "another writer has the capture log open", group_readable=group_readable
        )
        try:
            listing = list_log(self.directory)
            for segment in listing.segments:
                restrict(segment.path, group_readable=group_readable)
            # Before recovery, which may remove the segment that an old log's id comes from.
            problems = list(ensure_log_id(self.directory, listing, group_readable=group_readable))
            self._manifest = ManifestFile(self.directory, listing.manifest.end, group_readable=group_readable)
            try:
                self.next_sequence, self.recovery = recover(self.directory, listing, self._manifest, on_block)
                self.recovery.problems.extend(problems)
            except BaseException:
                self._manifest.close()
                raise
        except BaseException:
            os.close(self._lock)
            raise
        self._entry = Entry.begin("", self.next_sequence)

    @property
    def closed(self) -> bool:
        """True if the log is closed."""
        return self._lock < 0

    def write(self, builder: BlockBuilder) -> None:
        """Append the records of ``builder`` as a durable block.

        Raises CaptureWriteError if that fails. The log then contains nothing of the block: call again with the same
        builder, to which records may have been added.
        """
        try:
            self._clean()
            if self._fd >= 0 and self._entry.bytes >= self._segment_bytes:
                self._seal()
            if self._fd < 0:
                self._create()
            header, body = builder.encode(self.next_sequence, self._salt)
            self._dirty = True
            write_all(self._fd, header, self._entry.bytes)
            write_all(self._fd, body, self._entry.bytes + len(header))
            # From here on a reader may see the block. If it is cut, no other block may take its place.
            self._spent = True
            self._datasync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):  # the next attempt starts with it
                self._clean()
            what = f"{builder.count} records are not written, but kept: {error.strerror or error}"
            raise CaptureWriteError(error.errno, what, str(error.filename or self._path)) from error
        if not self._entry.blocks:
            self._began_ns = self._clock()
        self._entry = self._entry.extend(parse_header(header))
        self.next_sequence += 1
        self._dirty = self._spent = False

    def seal_if_due(self) -> None:
        """Seal the segment if it has reached its size or age.

        Raises CaptureWriteError if that fails; the next call tries again.
        """
        aged = self._clock() - self._began_ns >= self._segment_age_ns
        if self._fd >= 0 and self._entry.blocks and (aged or self._entry.bytes >= self._segment_bytes):
            try:
                self._clean()
                self._seal()
            except OSError as error:
                raise self._seal_error(error) from error

    def close(self) -> None:
        """Seal the segment and close the log. A second call does nothing.

        Raises CaptureWriteError if the segment could not be sealed; the next writer seals it.
        """
        if self._lock < 0:
            return
        try:
            self._clean()
            self._seal()
        except OSError as error:
            raise self._seal_error(error) from error
        finally:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
            self._manifest.close()
            os.close(self._lock)
            self._lock = -1

    def _seal_error(self, error: OSError) -> CaptureWriteError:
        return CaptureWriteError(error.errno, f"the segment is not sealed: {error.strerror}", str(self._path))

    def _create(self) -> None:
        if self._lock < 0:
            raise OSError(errno.EBADF, "the log is closed", str(self.directory))
        self._salt = secrets.randbits(64)
        self._path = self.directory / segment_name(self.next_sequence, self._salt)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        fd = opened(self._path, flags, group_readable=self._group_readable)
        try:
            sync_directory(self.directory)
        except OSError:
            os.close(fd)
            self._path.unlink()
            raise
        self._fd = fd
        self._entry = Entry.begin(self._path.name, self.next_sequence)

    def _clean(self) -> None:
        """Remove what a failed write left."""
        if self._dirty:
            os.ftruncate(self._fd, self._entry.bytes)
            self._dirty = False
        if self._spent:
            os.fsync(self._fd)  # otherwise a power cut could restore the block
            self._seal()

    def _seal(self) -> None:
        if self._fd < 0:
            return
        if self._entry.blocks:
            self._manifest.append(self._entry)
        else:
            self._path.unlink(missing_ok=True)
            sync_directory(self.directory)
        os.close(self._fd)
        self._fd = -1
        self._spent = False
