"""Ship sealed segments of a capture log to another folder or an object store, where they are the same log.

A segment counts as shipped when its copy was read back and the copy's manifest contains it. A shipment that is
interrupted at any point is continued by the next one: what the target has is compared, never assumed. Retention keeps
segments that are not shipped, for the reader ``ship``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

from headwater_host.capture.filesystem import Folder, Location, Storage, folder, is_remote, open_file
from headwater_host.capture.lock import lock
from headwater_host.capture.log_id import NAME as ID
from headwater_host.capture.log_id import log_id
from headwater_host.capture.manifest import NAME as MANIFEST
from headwater_host.capture.manifest import Entry, Segment, format_entry, list_log, read_manifest
from headwater_host.capture.readers import reader_path, save_reader

#: The usual name of the reader.
READER = "ship"
_PIECE = 8 << 20
# The target's manifest is written after this many times its own size, and at the end.
_MANIFEST_SHARE = 4


class ShipError(Exception):
    """A log cannot be shipped to this place, or a copy differs from its segment."""


@dataclass
class Shipment:
    """The outcome of ``ship``."""

    #: Segments that were copied, and their bytes.
    shipped: list[str] = field(default_factory=list)
    bytes: int = 0
    #: The number of segments that had been shipped before.
    before: int = 0
    #: Segments that were removed before they were shipped.
    removed: list[str] = field(default_factory=list)


def ship(
    directory: Path,
    target: Location,
    storage: Storage = (),
    *,
    reader: str = READER,
    read_back: bool = True,
    on_segment: Callable[[str, int], object] = lambda name, size: None,
) -> Shipment:
    """Copy the sealed segments of the log in ``directory`` that ``target`` does not have.

    ``reader``: the name by which retention knows this shipment; each target needs its own. ``read_back``: compare the
    bytes of each copy; otherwise only its size. ``on_segment``: called with the name and size of each copied segment.

    Raises ShipError if ``target`` has another log or a copy differs, CaptureLockedError if another process ships for
    this reader, LogIdError and LocationError, ValueError for an invalid name, and OSError.
    """
    sealed = [segment for segment in list_log(directory).segments if segment.entry is not None]
    name = reader_path(directory, reader).name
    held = lock(directory / f"ship-{name}.lock", f"another process ships the log for the reader {reader!r}")
    try:
        place = folder(target, storage)
        _claim(directory, place)
        copy = _Copy(directory, place, sealed, reader)
        # Before the first segment is copied, retention must know that it is needed.
        copy.save()
        done = Shipment(before=len(copy.listed))
        try:
            for segment in sealed:
                if segment.name not in copy.listed:
                    _ship_one(segment, copy, done, read_back, on_segment)
        except (ShipError, OSError):
            with suppress(OSError):
                copy.finish()  # keep what was copied before
            raise
        copy.finish()
        return done
    finally:
        os.close(held)


def _ship_one(
    segment: Segment, copy: _Copy, done: Shipment, read_back: bool, on_segment: Callable[[str, int], object]
) -> None:
    try:
        size = copy.add(segment, read_back)
    except FileNotFoundError:
        if segment.path.exists():
            raise
        done.removed.append(segment.name)
        return
    done.shipped.append(segment.name)
    done.bytes += size
    on_segment(segment.name, size)


def _claim(directory: Path, place: Folder) -> None:
    """Give an empty target the log's id. Raises ShipError if it has another log."""
    if not is_remote(place.location) and Path(place.location).resolve().is_relative_to(directory.resolve()):
        raise ShipError(f"{place.location} is the log itself, or a directory in it")
    own = log_id(directory)
    try:
        found = log_id(place.location, place.storage)
        has_id = ID in place.names()
    except FileNotFoundError:
        found, has_id = own, False
    if found != own:
        raise ShipError(f"{place.location} has another log, {found}, not {own}: choose an empty folder")
    if not has_id:
        place.write(ID, [own.encode() + b"\n"])


class _Copy:
    """The copy of a log. ``listed``: the sealed segments that it has, by its manifest and their sizes."""

    def __init__(self, directory: Path, place: Folder, sealed: Sequence[Segment], reader: str):
        self._directory = directory
        self._place = place
        self._sealed = sealed
        self._reader = reader
        self._own = read_manifest(directory).entries
        self._known = read_manifest(place.location, place.storage).entries
        sizes = {name: place.size(name) for name in place.names() if name in self._known}
        self.listed = {
            segment.name
            for segment in sealed
            if self._known.get(segment.name) == segment.entry and sizes.get(segment.name) == _size(segment)
        }
        self._added: list[str] = []
        self._bytes = 0

    def save(self) -> None:
        """Tell retention the first block that the copy's manifest does not have."""
        needed = 0
        for segment in self._sealed:
            needed = segment.first_sequence
            if segment.name not in self.listed:
                break
            assert segment.entry is not None
            needed = segment.entry.next_sequence
        save_reader(self._directory, self._reader, needed)

    def add(self, segment: Segment, read_back: bool) -> int:
        """Copy a segment and check the copy. Returns its size. Raises ShipError if it differs."""
        size = crc = 0

        def pieces() -> Iterator[bytes]:
            nonlocal size, crc
            for piece in _pieces(segment.location):
                size, crc = size + len(piece), crc32(piece, crc)
                yield piece

        self._place.write(segment.name, pieces())
        where = self._place.locate(segment.name)
        found_size, found_crc = self._place.size(segment.name), crc
        if read_back:
            found_size = found_crc = 0
            for piece in _pieces(where, self._place.storage):
                found_size, found_crc = found_size + len(piece), crc32(piece, found_crc)
        if (found_size, found_crc) != (size, crc):
            raise ShipError(f"{where} differs from {segment.name}: {found_size} bytes there, {size} here")
        self._added.append(segment.name)
        self._bytes += size
        if self._bytes >= _MANIFEST_SHARE * len(self._manifest()):
            self.finish()
        return size

    def finish(self) -> None:
        """List the added segments in the copy's manifest, then tell retention."""
        if not self._added:
            return
        self._place.write(MANIFEST, [self._manifest()])
        self.listed.update(self._added)
        self._added.clear()
        self._bytes = 0
        self.save()

    def _manifest(self) -> bytes:
        """Return the copy's manifest with the added segments, and with removed ones before them."""
        last = max(self._added)
        entries: Mapping[str, Entry] = self._known | {
            name: entry for name, entry in self._own.items() if name <= last
        }
        return b"".join(format_entry(entries[name]) for name in sorted(entries))


def _size(segment: Segment) -> int | None:
    try:
        return segment.size()
    except FileNotFoundError:
        return None


def _pieces(location: Location, storage: Storage = ()) -> Iterator[bytes]:
    with closing(open_file(location, storage)) as file:
        at = 0
        while piece := file.pread(_PIECE, at):
            yield piece
            at += len(piece)
