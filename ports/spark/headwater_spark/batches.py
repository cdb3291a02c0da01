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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from headwater_host.capture.filesystem import Location
from headwater_spark.delta import Change
from headwater_spark.place import Place
from headwater_spark.positions import Position
from headwater_spark.table_files import File

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


class Batches:
    """The documents of the batches of the tables in `out`."""

    def __init__(self, out: Location | Place):
        self.folder = Place.at(out) / FOLDER

    def last(self) -> BatchPlan | None:
        """Return the last planned batch, or None."""
        number = max(_numbers(self.folder.names()), default=None)
        return None if number is None else self._plan(number)

    def plan(self, batch: BatchPlan) -> BatchPlan:
        """Store a plan and return the one that is stored under its number."""
        self._place(batch.number, _PLAN).create(_json(asdict(batch)))
        return self._plan(batch.number)

    def files(self, number: int) -> BatchFiles | None:
        """Return the files of a batch, or None if it has none yet."""
        try:
            found = json.loads(self._place(number, _FILES).read())
        except FileNotFoundError:
            return None
        changes = {
            name: Change([File(*one) for one in change["add"]], change["remove"])
            for name, change in found["changes"].items()
        }
        return BatchFiles(changes, found["known"])

    def tables(self) -> set[str]:
        """Return the names of the tables that batches have changed, as far as these are known."""
        found = [self.files(number) for number in _numbers(self.folder.names())]
        return {name for files in found if files for name, change in files.changes.items() if change}

    def list_files(self, number: int, files: BatchFiles) -> BatchFiles:
        """Store the files of a batch and return those that are stored."""
        self._place(number, _FILES).create(_json(asdict(files)))
        stored = self.files(number)
        assert stored is not None
        return stored

    def forget(self, needed: set[str]) -> None:
        """Remove old batches: their documents, and other files of theirs that are not needed."""
        names = self.folder.names()
        oldest = max(_numbers(names), default=0) - _KEPT
        for name in names:
            number = name.lstrip(".").partition(".")[0].partition("-")[0]
            if number.isdecimal() and int(number) <= oldest and name not in needed:
                (self.folder / name).remove()

    def _place(self, number: int, suffix: str) -> Place:
        return self.folder / f"{number:06d}{suffix}"

    def _plan(self, number: int) -> BatchPlan:
        found = json.loads(self._place(number, _PLAN).read())
        logs = {
            log: LogRange(one["path"], one["start"] and Position(*one["start"]), Position(*one["end"]))
            for log, one in found.pop("logs").items()
        }
        positions = {log: Position(*one) for log, one in found.pop("positions").items()}
        return BatchPlan(logs=logs, positions=positions, **found)


def _numbers(names: Iterable[str]) -> list[int]:
    stems = (name.removesuffix(_PLAN) for name in names if name.endswith(_PLAN))
    return [int(stem) for stem in stems if stem.isdecimal()]


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


@contextmanager
def writing(out: Location | Place) -> Iterator[None]:
    """Lock the tables in the directory `out` for this process, and create it.

    Correctness does not need the lock; it spares two processes on one machine the same work. There is none in object
    stores. Raises BusyError.
    """
    folder = Place.at(out).path
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BusyError(f"another pipeline is writing to {folder}") from error
        yield
    finally:
        os.close(lock)
