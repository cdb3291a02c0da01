"""Named readers of a capture log: what each still needs is kept by retention.

``readers/NAME`` contains the sequence number of the first block that the reader has not taken completely. A reader
writes it after its own commit, so after a crash the number is too low, never too high.
"""

from __future__ import annotations

import re
from pathlib import Path

from headwater_host.private import replace_file, sync_directory

FOLDER = "readers"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_LONGEST = 20


def reader_path(directory: Path, name: str) -> Path:
    """Return the file of a reader. Raises ValueError for an invalid name."""
    if not _NAME.fullmatch(name) or name.endswith(".part"):
        raise ValueError(
            f"{name!r} is not the name of a reader: up to 64 letters, digits, dots, hyphens and underscores"
        )
    return directory / FOLDER / name


def list_readers(directory: Path) -> dict[str, int | None]:
    """Return the first sequence number that each reader needs; None for a reader whose file is damaged.

    A log without readers gives {}. Raises OSError if a file cannot be read.
    """
    try:
        names = sorted(path.name for path in (directory / FOLDER).iterdir())
    except FileNotFoundError:
        return {}
    found: dict[str, int | None] = {}
    for name in names:
        if not _NAME.fullmatch(name) or name.endswith(".part"):
            continue
        text = (directory / FOLDER / name).read_bytes().strip()
        found[name] = int(text) if len(text) <= _LONGEST and text.isdigit() else None
    return found


def save_reader(directory: Path, name: str, sequence: int, *, group_readable: bool = False) -> None:
    """Store durably that a reader has taken all blocks before ``sequence``.

    Raises ValueError for an invalid name or number, OSError if the file cannot be written.
    """
    path = reader_path(directory, name)
    if not 0 <= sequence < 1 << 64:
        raise ValueError(f"{sequence} is not a sequence number")
    if not path.parent.is_dir():
        path.parent.mkdir(exist_ok=True)
        sync_directory(directory)
    replace_file(path, b"%d\n" % sequence, group_readable=group_readable, durable=True)


def remove_reader(directory: Path, name: str) -> bool:
    """Forget a reader, so that nothing is kept for it. Returns whether there was one. Raises ValueError and OSError."""
    path = reader_path(directory, name)
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    sync_directory(path.parent)
    return True
