"""Create files that hold messages: readable by their owner only, or optionally by the directory's group.

An existing file keeps its group's permissions and loses those of others.
"""

import contextlib
import os
import stat
from functools import partial
from pathlib import Path

#: Suffixes of the database and of the files that SQLite creates beside it, with the same mode.
_BESIDE = ("", "-wal", "-shm", "-journal")
#: Names that SQLite takes for a database in memory.
_NO_FILE = ("", ":memory:")


def opened(path: "str | os.PathLike[str]", flags: int, *, group_readable: bool = False) -> int:
    """Open a file like ``os.open`` and return the descriptor."""
    fd = os.open(path, flags, 0o600)
    try:
        restrict(path, group_readable=group_readable)
    except OSError:
        os.close(fd)
        raise
    return fd


def restrict(path: "str | os.PathLike[str]", *, group_readable: bool = False) -> None:
    """Set the mode and group of an existing file, as far as this process is permitted to."""
    path = Path(path)
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode) & ~stat.S_IRWXO
    with contextlib.suppress(PermissionError):
        if group_readable:
            mode |= stat.S_IRGRP
            group = path.resolve().parent.stat().st_gid
            if group != found.st_gid:
                os.chown(path, -1, group)
        if mode != stat.S_IMODE(found.st_mode):
            path.chmod(mode)


def prepare(path: "str | os.PathLike[str]", *, group_readable: bool = False) -> None:
    """Create a database file for SQLite if it is missing, and restrict it and the files beside it.

    Errors are left to SQLite to report. An existing file is not opened: closing it would release the locks that this
    process holds on it.
    """
    path = os.fspath(path)
    if path in _NO_FILE:
        return
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    for beside in _BESIDE:
        with contextlib.suppress(OSError):
            restrict(path + beside, group_readable=group_readable)


def replace_file(path: Path, data: bytes, *, group_readable: bool = False, durable: bool = False) -> None:
    """Replace a file atomically. With ``durable`` the new content is on disk when this returns. Raises OSError."""
    part = path.with_name(path.name + ".part")
    with open(part, "wb", opener=partial(opened, group_readable=group_readable)) as out:
        out.write(data)
        if durable:
            out.flush()
            os.fsync(out.fileno())
    part.replace(path)
    if durable:
        sync_directory(path.parent)


def make_directory(directory: Path) -> None:
    """Create a directory and its parents durably, unless they exist. Raises OSError."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in ``directory`` durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
