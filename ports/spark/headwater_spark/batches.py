"""Store the batches of a set of tables, in `OUT/_batches`.

A batch is one step of the tables' growth. It has two documents, which are created once and never change:

- `<number>.plan`: the log's positions from which and up to which it reads. It is durable before a task runs.
- `<number>.files`: the files that each table gains and loses. It is durable before the first commit.

A batch without its last commit is *open*. No other batch begins before it is complete: the next run, or another
process that runs at the same time, reads the same ranges, or commits the same files. Of two processes that create a
document, one succeeds, and both go on with its content.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headwater_host.private import sync_directory
from headwater_spark.delta import Change
from headwater_spark.positions import Position
from headwater_spark.tables import File

#: Folder of the documents, and of files that belong to no table while a batch runs.
FOLDER = "_batches"
WORK = "_work"
_PLAN, _FILES = ".plan", ".files"
#: The kind of batches that add what is new in logs.
GROW = "grow"
# Complete batches whose documents are kept.
_KEPT = 16


class BusyError(RuntimeError):
    """Another process is writing to the same tables."""


@dataclass
class LogRange:
    """The range of one log that a batch reads. `start` is None for the beginning of the log."""

    path: str
    start: Position | None
    end: Position


@dataclass
class BatchPlan:
    """A batch before it runs."""

    number: int
    #: Name of this set of tables, the same in all its batches.
    tables: str
    #: What it reads, by log id.
    logs: dict[str, LogRange]
    #: Where every log continues after it, by log id.
    positions: dict[str, Position]
    #: Settings that decide which rows there are.
    settings: dict[str, Any] = field(default_factory=dict)
    #: The last batch of each streaming query, by the query's id.
    queries: dict[str, int] = field(default_factory=dict)
    #: GROW, or the name of another kind of batch.
    kind: str = GROW


@dataclass
class BatchFiles:
    """The changes of each table by a batch, and state for later batches."""

    changes: dict[str, Change]
    known: dict[str, Any] = field(default_factory=dict)


def create(path: Path, data: bytes) -> bool:
    """Create a file with its content, atomically and durably. Returns False if it exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            # Unlike a rename, a link does not replace a file.
            path.hardlink_to(partial)
        except FileExistsError:
            return False
    finally:
        partial.unlink(missing_ok=True)
    sync_directory(path.parent)
    return True


class Batches:
    """The documents of the batches of the tables in `out`."""

    def __init__(self, out: Path):
        self.folder = out / FOLDER

    def last(self) -> BatchPlan | None:
        """Return the last planned batch, or None."""
        numbers = self._numbers()
        return self._plan(numbers[-1]) if numbers else None

    def plan(self, batch: BatchPlan) -> BatchPlan:
        """Store a plan and return the one that is stored under its number."""
        create(self._path(batch.number, _PLAN), _json(asdict(batch)))
        return self._plan(batch.number)

    def files(self, number: int) -> BatchFiles | None:
        """Return the files of a batch, or None if it has none yet."""
        try:
            found = json.loads(self._path(number, _FILES).read_bytes())
        except FileNotFoundError:
            return None
        changes = {
            name: Change([File(*one) for one in change["add"]], change["remove"])
            for name, change in found["changes"].items()
        }
        return BatchFiles(changes, found["known"])

    def list_files(self, number: int, files: BatchFiles) -> BatchFiles:
        """Store the files of a batch and return those that are stored."""
        create(self._path(number, _FILES), _json(asdict(files)))
        stored = self.files(number)
        assert stored is not None
        return stored

    def forget(self, needed: set[str]) -> None:
        """Remove old batches: their documents, and other files of theirs that are not needed."""
        oldest = max(self._numbers(), default=0) - _KEPT
        for name in os.listdir(self.folder):  # noqa: PTH208
            number = name.partition(".")[0].partition("-")[0]
            if number.isdecimal() and int(number) <= oldest and name not in needed:
                (self.folder / name).unlink(missing_ok=True)

    def _path(self, number: int, suffix: str) -> Path:
        return self.folder / f"{number:06d}{suffix}"

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self.folder)  # noqa: PTH208
        except FileNotFoundError:
            return []
        stems = (name.removesuffix(_PLAN) for name in names if name.endswith(_PLAN))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def _plan(self, number: int) -> BatchPlan:
        found = json.loads(self._path(number, _PLAN).read_bytes())
        logs = {
            log: LogRange(one["path"], one["start"] and Position(*one["start"]), Position(*one["end"]))
            for log, one in found.pop("logs").items()
        }
        positions = {log: Position(*one) for log, one in found.pop("positions").items()}
        return BatchPlan(logs=logs, positions=positions, **found)


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Lock the tables in `out` for this process.

    Correctness does not need the lock; it spares two processes on one machine the same work. Raises BusyError.
    """
    out.mkdir(parents=True, exist_ok=True)
    lock = os.open(out / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BusyError(f"another pipeline is writing to {out}") from error
        yield
    finally:
        os.close(lock)
