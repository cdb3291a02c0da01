"""Let one process at a time write to a log, or ship it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from headwater_host.private import opened


class CaptureLockedError(OSError):
    """Another process has the lock."""


def lock(path: Path, busy: str, *, group_readable: bool = False) -> int:
    """Lock a file, which is created if it is missing. Returns its descriptor; closing it releases the lock.

    Raises CaptureLockedError with the text ``busy`` and the number of the process that has the lock, and OSError.
    """
    fd = opened(path, os.O_RDWR | os.O_CREAT, group_readable=group_readable)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 20, 0).decode(errors="replace").strip()
        os.close(fd)
        if error.errno not in {errno.EAGAIN, errno.EACCES}:
            raise
        what = f"{busy} (process {holder or 'unknown'})"
        raise CaptureLockedError(error.errno, what, str(path.parent)) from None
    with contextlib.suppress(OSError):  # for operators only
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    return fd
