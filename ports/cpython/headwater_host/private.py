"""Files that hold messages: readable by their owner, or, if that is asked for, by the group of their directory as well.

A file that is there already keeps what its group may do; others lose what they may.
"""

import contextlib
import os
import stat
from pathlib import Path

#: What SQLite puts beside a file, with its mode.
_BESIDE = ("", "-wal", "-shm", "-journal")
#: What SQLite takes for a file in memory.
_NO_FILE = ("", ":memory:")


def opened(path: "str | os.PathLike[str]", flags: int, *, group_readable: bool = False) -> int:
    """Open a file, as ``os.open``: the descriptor."""
    fd = os.open(path, flags, 0o600)
    try:
        restrict(path, group_readable=group_readable)
    except OSError:
        os.close(fd)
        raise
    return fd


def restrict(path: "str | os.PathLike[str]", *, group_readable: bool = False) -> None:
    """Give a file that is there its mode and group, as far as this process may."""
    found = os.stat(path)  # noqa: PTH116 (text or a path)
    mode = stat.S_IMODE(found.st_mode) & ~stat.S_IRWXO
    with contextlib.suppress(PermissionError):
        if group_readable:
            mode |= stat.S_IRGRP
            group = Path(path).resolve().parent.stat().st_gid
            if group != found.st_gid:
                os.chown(path, -1, group)
        if mode != stat.S_IMODE(found.st_mode):
            os.chmod(path, mode)  # noqa: PTH101


def prepare(path: "str | os.PathLike[str]", *, group_readable: bool = False) -> None:
    """Have a file for SQLite to open, and what is beside it. What is wrong with it SQLite will say.

    Nothing is opened that is there: closing it would let go of the locks that this process has on it.
    """
    path = os.fspath(path)
    if path in _NO_FILE:
        return
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    for beside in _BESIDE:
        with contextlib.suppress(OSError):
            restrict(path + beside, group_readable=group_readable)
