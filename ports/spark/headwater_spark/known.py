"""Remember where earlier batches may have stored a message or a group.

Each batch writes a file with its *runs* (`headwater_spark.overlaps`), one with the hashes of its IBM MQ groups, and one
with its tally of the last hours (`headwater_spark.tally`). When there are MERGED files of a level, they become one of
the next level, so there are few files however many batches. A file's times tell whether it is near enough to matter,
and which files of a table may contain its rows.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater_spark import tally
from headwater_spark.arrow import as_file
from headwater_spark.overlaps import PartRuns, Runs, widest
from headwater_spark.place import Place

#: Files of a level that become one.
MERGED = 8
Hashes = npt.NDArray[np.uint64]


class Entry(NamedTuple):
    """A file: its name, its level, and the least and greatest time of the rows that it describes."""

    file: str
    level: int
    first_ns: int
    last_ns: int

    def near(self, first_ns: int, last_ns: int) -> bool:
        """Return whether the entry's times meet a span."""
        return self.first_ns <= last_ns and self.last_ns >= first_ns


class Recent(NamedTuple):
    """The starts of hours in ns, of whose messages the tallies count all, up to a batch."""

    batch: int
    hours: list[int]


class Kind(NamedTuple):
    """A kind of files: its suffix, and functions to encode, decode and merge their contents."""

    suffix: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    merge: Callable[[Sequence[Any]], Any]


_RUNS_SCHEMA = pa.schema(
    [
        ("topic", pa.dictionary(pa.int32(), pa.string())),
        ("board", pa.dictionary(pa.int32(), pa.string())),
        ("boot", pa.int64()),
        ("low", pa.int64()),
        ("high", pa.int64()),
    ]
)


def _encode_runs(runs: PartRuns) -> bytes:
    names = list(runs)
    counts = [len(runs[name].low) for name in names]
    row = np.repeat(np.arange(len(names)), counts)
    texts = [
        pa.array([name[k] for name in names], pa.string()).dictionary_encode().take(pa.array(row))
        for k in (0, 1)
    ]
    boot = np.array([name[2] for name in names], np.int64)[row]
    ends = [np.concatenate([runs[name][k] for name in names]) for k in (0, 1)]
    return as_file(pa.table([*texts, pa.array(boot), *map(pa.array, ends)], _RUNS_SCHEMA))


def _decode_runs(data: bytes) -> PartRuns:
    batch = pa.ipc.open_file(data).read_all().combine_chunks()
    names = zip(*(batch[name].to_pylist() for name in ("topic", "board", "boot")), strict=True)
    low, high = (batch[name].to_numpy() for name in ("low", "high"))
    found: dict[Any, list[int]] = {}
    for row, name in enumerate(names):
        found.setdefault(name, []).append(row)
    # The runs of a name are consecutive.
    return {
        name: Runs(*(ends[rows[0] : rows[-1] + 1] for ends in (low, high))) for name, rows in found.items()
    }


def merge_runs(parts: Iterable[PartRuns]) -> PartRuns:
    """Return the runs of several parts as those of one: overlapping and adjacent runs are joined."""
    found: dict[Any, list[Runs]] = {}
    for runs in parts:
        for name, some in runs.items():
            found.setdefault(name, []).append(some)
    return {name: some[0] if len(some) == 1 else _joined(some) for name, some in found.items()}


def _joined(some: list[Runs]) -> Runs:
    low, high = (np.concatenate([runs[k] for runs in some]) for k in (0, 1))
    order = np.argsort(low, kind="stable")
    low, reach = low[order], np.maximum.accumulate(high[order])
    cuts = widest(low[1:] - reach[:-1]) + 1
    return Runs(low[np.append(0, cuts)], reach[np.append(cuts - 1, len(low) - 1)])


#: The kinds, by name.
KINDS = {
    "runs": Kind(".runs", _encode_runs, _decode_runs, merge_runs),
    "groups": Kind(
        ".groups",
        lambda hashes: hashes.tobytes(),
        lambda data: np.frombuffer(data, np.uint64),
        lambda some: np.unique(np.concatenate(some)),
    ),
    "tallies": Kind(".tally", as_file, tally.decode, tally.merge),
}


@lru_cache(maxsize=256)
def _load(kind: str, place: Place) -> Any:
    return KINDS[kind].decode(place.read())


@lru_cache(maxsize=8)
def _names(place: Place) -> frozenset[str]:
    return frozenset(json.loads(place.read()))


@dataclass
class Known:
    """The state after a batch. It is stored with the batch's files."""

    entries: dict[str, list[Entry]] = field(default_factory=lambda: {name: [] for name in KINDS})
    #: FMQ: the file with all topics given by name, and the hashes in the tables whose names are not known.
    names: str | None = None
    hashes: list[str] = field(default_factory=list)
    #: The batch up to which the derived tables are complete, and when they were, in s since 1970. Losing these costs
    #: time, but no rows.
    derived: int = 0
    derived_s: float = 0.0
    recent: Recent = field(default_factory=lambda: Recent(0, []))

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Known:
        """Return the state that `json` wrote; {} is the state before the first batch."""
        known = cls(names=found.get("names"), hashes=found.get("hashes", []))
        known.derived, known.derived_s = found.get("derived", 0), found.get("derived_s", 0.0)
        known.recent = Recent(*found.get("recent", (0, [])))
        for name, entries in found.get("entries", {}).items():
            known.entries[name] = [Entry(*entry) for entry in entries]
        return known

    def near(self, kind: str, folder: Place, first_ns: int, last_ns: int) -> list[tuple[Entry, Any]]:
        """Return the entries of a kind whose times meet a span, with their contents."""
        return [
            (entry, _load(kind, folder / entry.file))
            for entry in self.entries[kind]
            if entry.near(first_ns, last_ns)
        ]

    def add(
        self, kind: str, folder: Place, number: int, content: Any, span: tuple[int, int], horizon_ns: int
    ) -> None:
        """Add a batch's content, and merge files."""
        if not len(content):
            return
        entries = self.entries[kind]
        entries.append(_store(kind, folder, number, content, 0, span))
        level = 0
        # A file of a longer time would be read for longer than its parts.
        begin_ns = max(entry.last_ns for entry in entries) - horizon_ns
        while True:
            some = [entry for entry in entries if entry.level == level and entry.first_ns >= begin_ns]
            if len(some) < MERGED:
                return
            first_ns, last_ns = min(entry.first_ns for entry in some), max(entry.last_ns for entry in some)
            merged = KINDS[kind].merge([_load(kind, folder / entry.file) for entry in some])
            entry = _store(kind, folder, number, merged, level + 1, (first_ns, last_ns))
            entries[:] = [*(one for one in entries if one not in some), entry]
            level += 1

    def load_names(self, folder: Place) -> set[str]:
        """Return the topics given by name."""
        return set() if self.names is None else set(_names(folder / self.names))

    def add_names(self, folder: Place, number: int, names: set[str]) -> None:
        """Add topics given by name."""
        before = self.load_names(folder)
        if names - before:
            self.names = f"{number:06d}-{secrets.token_hex(4)}.names"
            (folder / self.names).create(json.dumps(sorted(before | names)).encode())

    def files(self) -> set[str]:
        """Return the names of the files that this state refers to."""
        found = {entry.file for entries in self.entries.values() for entry in entries}
        return found if self.names is None else found | {self.names}


def _store(kind: str, folder: Place, number: int, content: Any, level: int, span: tuple[int, int]) -> Entry:
    # Another attempt at the batch writes files of its own.
    name = f"{number:06d}-{level}-{secrets.token_hex(4)}{KINDS[kind].suffix}"
    (folder / name).create(KINDS[kind].encode(content))
    return Entry(name, level, *span)
