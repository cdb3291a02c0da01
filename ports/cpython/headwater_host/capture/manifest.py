"""Read and write the list of sealed segments, ``manifest.jsonl``; list a log directory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from headwater_host.capture.filesystem import Folder, Location, Storage, folder, local_path
from headwater_host.capture.format import Header, parse_segment_name
from headwater_host.capture.problem import MANIFEST, MISSING, TORN, Problem
from headwater_host.private import opened, sync_directory

NAME = "manifest.jsonl"
LOCK = "writer.lock"
PATTERN = "segment-*.hwc"


class Entry(NamedTuple):
    """A sealed segment: one line of the manifest."""

    file: str
    bytes: int
    blocks: int
    records: int
    first_ns: int
    last_ns: int
    first_sequence: int
    next_sequence: int

    @classmethod
    def begin(cls, file: str, sequence: int) -> Entry:
        """Return the entry of a segment without blocks."""
        return cls(file, 0, 0, 0, 0, 0, sequence, sequence)

    def extend(self, header: Header) -> Entry:
        """Return the entry with one more block."""
        first_ns, last_ns = header.first_ns, header.last_ns
        if self.blocks:
            first_ns, last_ns = min(first_ns, self.first_ns), max(last_ns, self.last_ns)
        size, count = self.bytes + header.block_length, self.records + header.records
        sequences = self.first_sequence, header.sequence + 1
        return Entry(self.file, size, self.blocks + 1, count, first_ns, last_ns, *sequences)


class Manifest(NamedTuple):
    """The manifest: entries by file name, problems, and the offset of a torn last line."""

    entries: dict[str, Entry]
    problems: list[Problem]
    end: int


class Segment(NamedTuple):
    """A segment file of a log."""

    folder: Folder
    name: str
    first_sequence: int
    salt: int
    is_open: bool
    entry: Entry | None

    @property
    def path(self) -> Path:
        """The file, in a log on this machine. Raises LocationError for others."""
        return local_path(self.location)

    @property
    def location(self) -> str:
        """The path or URI of the file."""
        return self.folder.locate(self.name)

    @property
    def storage(self) -> Storage:
        """The storage options of the file."""
        return self.folder.storage

    def size(self) -> int:
        """Return the size of the file. Raises FileNotFoundError."""
        return self.folder.size(self.name)


class Listing(NamedTuple):
    """The segments of a log in the order of their blocks, the manifest, and problems."""

    segments: list[Segment]
    manifest: Manifest
    problems: list[Problem]


def format_entry(entry: Entry) -> bytes:
    """Encode an entry as a line of the file."""
    return json.dumps(entry._asdict(), separators=(",", ":")).encode() + b"\n"


def _parse(line: bytes) -> Entry:
    fields = json.loads(line)
    if not isinstance(fields, dict) or fields.keys() != set(Entry._fields):
        raise ValueError("not the keys of a segment")
    entry = Entry(**fields)
    name = parse_segment_name(entry.file) if type(entry.file) is str else None
    if name is None or name[0] != entry.first_sequence:
        raise ValueError("file is not a segment's name")
    if (
        any(type(value) is not int for value in entry[1:])
        or min(entry.bytes, entry.blocks, entry.records) < 0
    ):
        raise ValueError("a number is not a count")
    return entry


def read_manifest(directory: Location, storage: Storage = ()) -> Manifest:
    """Read the manifest. A missing file counts as empty; a bad line is reported and skipped."""
    return parse_manifest(_read(folder(directory, storage)))


def _read(log: Folder) -> bytes:
    try:
        return log.read(NAME)
    except FileNotFoundError:
        return b""


def parse_manifest(data: bytes) -> Manifest:
    """Parse the content of a manifest; a bad line is reported and skipped."""
    end = data.rfind(b"\n") + 1
    entries: dict[str, Entry] = {}
    problems = []
    at = 0
    for line in data[:end].splitlines(keepends=True):
        try:
            entry = _parse(line)
            if entry.file in entries:
                raise ValueError("a second line for the same file")
            entries[entry.file] = entry
        except (ValueError, RecursionError) as error:
            problems.append(Problem(MANIFEST, NAME, at, len(line), f"bad line: {error}"))
        at += len(line)
    if end < len(data):
        problems.append(Problem(TORN, NAME, end, len(data) - end, "a last line without its end"))
    return Manifest(entries, problems, end)


def list_log(directory: Location, storage: Storage = ()) -> Listing:
    """List the segments of the log in ``directory``, a path or URI.

    Raises FileNotFoundError or NotADirectoryError, also if the directory contains no capture log.
    """
    log = folder(directory, storage)
    # List before reading the manifest: then every segment but the last listed one is in it.
    files = log.names()
    names = [name for name in files if parse_segment_name(name)]
    manifest = parse_manifest(_read(log))
    if not names and not manifest.end and LOCK not in files:
        raise FileNotFoundError(f"no capture log in {log.location}: neither {PATTERN} nor {NAME} is there")
    segments = []
    for name in names:
        sequence, salt = parse_segment_name(name) or (0, 0)
        entry = manifest.entries.get(name)
        is_open = entry is None and name == names[-1]
        segments.append(Segment(log, name, sequence, salt, is_open, entry))
    problems = list(manifest.problems)
    problems += (
        Problem(MISSING, name, 0, entry.bytes, f"{entry.records} records in {entry.blocks} blocks are gone")
        for name, entry in sorted(manifest.entries.items())
        # If no older segment exists either, retention has removed it.
        if name not in names and entry.blocks and names and names[0] < name
    )
    problems += (
        Problem(MANIFEST, segment.name, 0, 0, "a segment that is not the last is not in the manifest")
        for segment in segments
        if segment.entry is None and not segment.is_open
    )
    return Listing(segments, manifest, problems)


def write_all(
    fd: int, data: bytes, at: int, write: Callable[[int, memoryview, int], int] = os.pwrite
) -> None:
    """Write all of ``data`` at offset ``at``."""
    rest = memoryview(data)
    while rest:
        count = write(fd, rest, at)
        rest = rest[count:]
        at += count


class ManifestFile:
    """The manifest, open for one writer. The remains of a failed append are cut before the next one."""

    def __init__(self, directory: Path, end: int, *, group_readable: bool = False) -> None:
        path = directory / NAME
        is_new = not path.exists()
        self._fd = opened(path, os.O_WRONLY | os.O_CREAT, group_readable=group_readable)
        self._end = end
        try:
            if is_new:
                sync_directory(directory)
            self._cut()
        except OSError:
            os.close(self._fd)
            raise

    def _cut(self) -> None:
        if os.fstat(self._fd).st_size != self._end:
            os.ftruncate(self._fd, self._end)
            os.fsync(self._fd)

    def append(self, entry: Entry) -> None:
        """Append a durable line. If that fails (OSError), the file does not contain the line."""
        line = format_entry(entry)
        self._cut()
        try:
            write_all(self._fd, line, self._end)
            os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self._end)
            raise
        self._end += len(line)

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
