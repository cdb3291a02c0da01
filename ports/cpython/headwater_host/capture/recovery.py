"""Repair a log before writing: cut the torn tail and seal the segments that an earlier writer left open."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from headwater_host.capture.filesystem import LocalFile
from headwater_host.capture.format import HEADER_BYTES, FormatError, parse_header
from headwater_host.capture.manifest import Entry, Listing, ManifestFile, Segment, write_all
from headwater_host.capture.problem import Problem
from headwater_host.capture.scan import BlockInfo, Scan
from headwater_host.private import opened, sync_directory

_PIECE = 1 << 20


class Recovery(NamedTuple):
    """The result of opening a log: damage found and repairs.

    ``cut``: torn tails that were cut. ``saved``: files with cut bytes that may not be an unfinished write.
    ``problems``: damage, which is not changed. ``sealed``: segments that were sealed.
    """

    cut: list[Problem]
    saved: list[Path]
    problems: list[Problem]
    sealed: list[Path]

    def __str__(self) -> str:
        lines = [f"cut {problem}" for problem in self.cut]
        lines += (f"kept what was cut in {path}" for path in self.saved)
        lines += map(str, self.problems)
        return "\n".join(lines)


def recover(
    directory: Path, listing: Listing, manifest: ManifestFile, on_block: Callable[[BlockInfo], object]
) -> tuple[int, Recovery]:
    """Cut the torn tail of the last segment and seal every segment that is not in the manifest.

    ``on_block``: called after each good block of these segments. Returns the sequence number of the next block and a
    report. Bad blocks elsewhere are not changed.
    """
    done = Recovery([], [], [], [])
    for problem in listing.problems:
        (done.problems if problem.is_damage else done.cut).append(problem)
    expected = 0
    for segment in listing.segments:
        if segment.entry is None:
            expected = _finish(directory, segment, manifest, done, on_block)
        else:
            expected = segment.entry.next_sequence
    # If segments are missing, the manifest still has the last sequence number.
    return max([expected, *(entry.next_sequence for entry in listing.manifest.entries.values())]), done


def _finish(
    directory: Path,
    segment: Segment,
    manifest: ManifestFile,
    done: Recovery,
    on_block: Callable[[BlockInfo], object],
) -> int:
    """Seal a segment; return the first sequence number of the next one."""
    path = segment.path
    fd = os.open(path, os.O_RDWR)
    try:
        scan = Scan(
            LocalFile(fd), path.name, segment.salt, is_open=segment.is_open, expected=segment.first_sequence
        )
        entry = Entry.begin(path.name, segment.first_sequence)
        torn = None
        for found in scan:
            if not isinstance(found, Problem):
                entry = entry.extend(found[0].header)
                on_block(found[0])
            elif found.is_damage:
                done.problems.append(found)
            else:
                torn = found
        size = scan.size
        if torn is not None and _cut(directory, path, fd, torn, done):
            size = torn.offset
        os.fsync(fd)
    finally:
        os.close(fd)
    if size == 0:
        path.unlink()
        sync_directory(directory)
        return segment.first_sequence
    # Two segments never have the same number.
    next_sequence = max(segment.first_sequence + 1, scan.expected or 0)
    manifest.append(entry._replace(bytes=size, next_sequence=next_sequence))
    done.sealed.append(path)
    return next_sequence


def _cut(directory: Path, path: Path, fd: int, torn: Problem, done: Recovery) -> bool:
    """Cut the torn tail. Return False if it cannot be read, and so neither saved nor cut."""
    if not _is_unfinished(fd, torn):
        copy = path.with_name(path.name + ".cut")
        try:
            _copy(fd, torn, copy)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            copy.unlink()
            done.problems.append(torn._replace(reason=f"{torn.reason}; it is left there: {error.strerror}"))
            return False
        sync_directory(directory)
        done.saved.append(copy)
    os.ftruncate(fd, torn.offset)
    done.cut.append(torn)
    return True


def _is_unfinished(fd: int, torn: Problem) -> bool:
    """Return whether the tail is certainly an unfinished write."""
    if torn.length < HEADER_BYTES:
        return True
    try:
        return parse_header(os.pread(fd, HEADER_BYTES, torn.offset)).block_length > torn.length
    except FormatError:
        pieces = range(torn.offset, torn.offset + torn.length, _PIECE)
        with contextlib.suppress(OSError):  # unreadable bytes are not certain
            return not any(os.pread(fd, _PIECE, at).strip(b"\0") for at in pieces)
    except OSError:
        pass
    return False


def _copy(fd: int, torn: Problem, copy: Path) -> None:
    # The copy gets the group permission of the segment.
    shared = bool(os.fstat(fd).st_mode & stat.S_IRGRP)
    out = opened(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, group_readable=shared)
    try:
        for at in range(0, torn.length, _PIECE):
            write_all(out, os.pread(fd, min(_PIECE, torn.length - at), torn.offset + at), at)
        os.fsync(out)
    finally:
        os.close(out)
