"""Connection ids in a capture log: unique, even when the clock is set (docs/capture-log.md).

An id is the millisecond since 1970 in which the process began, and a counter, so that two gateways' ids differ as well.
The last such millisecond is in a file beside the log: the next start takes a later one, though the clock was set back.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from headwater_host.capture.manifest import read_manifest
from headwater_host.lifetime import MACHINE
from headwater_host.private import opened, sync_directory

NAME = "connections"
#: Bits of the counter.
BITS = 20


class ConnectionIds:
    """Makes the ids for the log in ``directory``, which this process has open.

    Raises OSError if the file cannot be read or written, ValueError if its content is malformed.
    """

    def __init__(
        self,
        directory: "str | os.PathLike[str]",
        clock: Callable[[], int] = MACHINE.wall,
        *,
        group_readable: bool = False,
    ):
        self._directory = Path(directory)
        self._clock = clock
        self._group_readable = group_readable
        self._next = self._end = 0
        self._reserve(self._last())

    def next(self) -> int:
        """Return a new id."""
        if self._next == self._end:
            self._reserve((self._end >> BITS) - 1)
        self._next += 1
        return self._next - 1

    def _last(self) -> int:
        try:
            return int((self._directory / NAME).read_bytes())
        except FileNotFoundError:
            # An earlier version wrote this log. Its last record is later than its start.
            entries = read_manifest(self._directory).entries.values()
            return max((entry.last_ns for entry in entries), default=0) // 1_000_000
        except ValueError:
            raise ValueError(f"{self._directory / NAME} does not contain a number") from None

    def _reserve(self, last: int) -> None:
        begin = max(self._clock() // 1_000_000, last + 1)
        path = self._directory / NAME
        fresh = path.with_suffix(".new")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            fd = opened(fresh, flags, group_readable=self._group_readable)
            try:
                os.write(fd, b"%d\n" % begin)
                os.fsync(fd)
            finally:
                os.close(fd)
            fresh.replace(path)
            sync_directory(self._directory)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise
        self._next, self._end = begin << BITS, (begin + 1) << BITS
