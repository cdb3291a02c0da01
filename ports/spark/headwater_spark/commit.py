"""Replace all tables of a run atomically.

`OUT/<table>` are links through `OUT/current`, which is a link to the run's folder `OUT/.runs/<name>`. A run writes
to its folder, then one rename replaces `current`. A crash before the rename leaves the previous tables, a crash
after it the new ones. Then the previous run's folder is removed; the next run removes what a crash has left.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_RUNS = ".runs"
_CURRENT = "current"


class BusyError(RuntimeError):
    """Another run writes to the same directory."""


@contextmanager
def new_run(out: Path, names: Iterable[str]) -> Iterator[Path]:
    """Create a folder for a run. When the block ends, `out` has links to the files among `names` that the folder
    contains.

    Names that it does not contain are removed. If the block raises, nothing changes. Raises BusyError when another
    process is in such a block for `out`, and FileExistsError when `out` contains something that no run has created.
    """
    out.mkdir(parents=True, exist_ok=True)
    lock = os.open(out / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BusyError(f"another pipeline is writing to {out}") from error
        names = list(names)
        for name in (*names, _CURRENT):
            if (out / name).exists() and not (out / name).is_symlink():
                raise FileExistsError(
                    f"{out / name} was not made by a pipeline: remove it, or choose another directory"
                )
        old = _current(out)
        _clear(out, keep=old)
        number = int(old.name) + 1 if old is not None and old.name.isdecimal() else 1
        run = out / _RUNS / f"{number:06d}"
        run.mkdir(parents=True)
        yield run
        _sync(run)
        _link(out / _CURRENT, f"{_RUNS}/{run.name}")
        for name in names:
            if (run / name).exists():
                _link(out / name, f"{_CURRENT}/{name}")
            else:
                (out / name).unlink(missing_ok=True)
        _clear(out, keep=run)
    finally:
        os.close(lock)


def _current(out: Path) -> Path | None:
    link = out / _CURRENT
    return link.resolve() if link.is_symlink() and link.exists() else None


def _clear(out: Path, keep: Path | None) -> None:
    runs = out / _RUNS
    if runs.exists():
        for folder in runs.iterdir():
            if keep is None or folder.name != keep.name:
                shutil.rmtree(folder)


def _link(path: Path, target: str) -> None:
    if path.is_symlink() and os.readlink(path) == target:  # noqa: PTH115  # the text, not a path
        return
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.replace(path)


def _sync(folder: Path) -> None:
    """Sync the files to disk before their names become visible."""
    for path in (*folder.rglob("*"), folder):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
