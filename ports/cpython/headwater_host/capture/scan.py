"""Walk through one segment file: good blocks, and every byte that is not a part of one, reported."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import NamedTuple

from headwater_host.capture.format import (
    HEADER_BYTES,
    Block,
    FormatError,
    Header,
    find_header,
    parse_header,
)
from headwater_host.capture.problem import BAD, GAP, TORN, Problem

_WINDOW = 256 << 10
_PAGE = 4096
_SECTOR = 512


class BlockInfo(NamedTuple):
    """Where a block is, and what its header says."""

    file: str
    offset: int
    header: Header

    @property
    def length(self) -> int:
        """Bytes of the whole block."""
        return self.header.block_length

    @property
    def end(self) -> int:
        """Offset of what comes behind the block."""
        return self.offset + self.header.block_length


class _Window:
    """Reads a file in pieces of at least ``size`` bytes. What the disk cannot read is zeros: no CRC fits them."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._size = size
        self._at = 0
        self._data = b""

    def read(self, at: int, length: int) -> bytes:
        """``length`` bytes from offset ``at``, or less at the end of the file."""
        start = at - self._at
        if start < 0 or start + length > len(self._data):
            # The header behind a body comes with the body.
            self._data = self._load(at, max(length + HEADER_BYTES, self._size))
            self._at, start = at, 0
        return self._data[start : start + length]

    def _load(self, at: int, length: int) -> bytes:
        parts = []
        while length > 0:
            try:
                part = os.pread(self._fd, length, at)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                # What is readable around a bad sector still counts.
                part = bytes(length) if length <= _SECTOR else self._load(at, length // 2)
            if not part:
                break
            parts.append(part)
            at += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Scan:
    """One walk through a segment: iterate it for ``(BlockInfo, Block)`` pairs and ``Problem``s, in file order.

    ``fd``: the open file; ``name``: what it is called in reports; ``salt``: the one of its name, None takes any.
    ``start``, ``end``: the range in which the blocks begin. ``is_open``: whether the tail may be torn.
    ``expected``: the sequence number that the first block should have, None for any; afterwards, that of the next.
    ``bodies``: False checks headers only; then the pairs hold None for the block.
    """

    def __init__(
        self,
        fd: int,
        name: str,
        salt: int | None,
        *,
        start: int = 0,
        end: int | None = None,
        is_open: bool = False,
        expected: int | None = None,
        bodies: bool = True,
    ) -> None:
        self._window = _Window(fd, _WINDOW if bodies else _PAGE)
        self._name = name
        self._salt = salt
        self._start = start
        # What is appended meanwhile is for the next walk.
        self.size = os.fstat(fd).st_size
        self._end = self.size if end is None else min(end, self.size)
        self._is_open = is_open and self._end == self.size
        self._bodies = bodies
        self.expected = expected

    def __iter__(self) -> Iterator[tuple[BlockInfo, Block | None] | Problem]:
        at = self._start
        # Bad so far: damage when a right header comes after it, a torn tail when none does.
        bad: list[Problem] = []
        resume = self.expected
        while at < self._end:
            try:
                header = parse_header(self._window.read(at, HEADER_BYTES), self._salt)
            except FormatError as error:
                if not bad:
                    resume = self.expected
                found = self._find_header(at + 1, self._end)
                bad.append(Problem(BAD, self._name, at, found - at, str(error)))
                at = found
                continue
            yield from self._before(at, header, bad)
            bad.clear()
            info = BlockInfo(self._name, at, header)
            found_block = self._check(info)
            if not isinstance(found_block, Problem):
                yield info, found_block
                at = info.end
                continue
            at += found_block.length
            if not header.known:
                yield found_block  # whole, perhaps, and not ours to judge: never a torn tail
            else:
                resume = header.sequence
                bad.append(found_block)
        if bad and self._is_open:
            # More than one: a wrong body, then bytes without a header. One write tore all of it.
            self.expected = resume
            first = bad[0]
            yield first._replace(kind=TORN, length=self.size - first.offset)
        else:
            yield from bad

    def _check(self, info: BlockInfo) -> Block | Problem | None:
        header = info.header
        try:
            if info.end > self.size:
                raise FormatError(
                    f"{info.length} bytes long, but the file ends after {self.size - info.offset}"
                )
            if not self._bodies and header.known:
                return None
            return Block(header, self._window.read(info.offset + HEADER_BYTES, header.body_length))
        except FormatError as error:
            reason = f"block {header.sequence} with {header.records} records: {error}"
            return Problem(BAD, self._name, info.offset, self._end_of_bad(info) - info.offset, reason)

    def _end_of_bad(self, info: BlockInfo) -> int:
        """Where a block with a right header and a wrong body ends: where it says, unless the next begins earlier."""
        if info.end < self.size:
            with contextlib.suppress(FormatError):
                parse_header(self._window.read(info.end, HEADER_BYTES), self._salt)
                return info.end
        # Bytes of it may be missing. Otherwise what follows is bad as well, and this ends where it says.
        return self._find_header(info.offset + 1, min(info.end, self.size))

    def _before(self, at: int, header: Header, bad: list[Problem]) -> list[Problem]:
        """What is to be reported in front of a right header: bad bytes, and blocks that are not there."""
        expected, sequence = self.expected, header.sequence
        self.expected = sequence + 1
        if expected is None or sequence == expected:
            return bad
        gap = f"block {sequence} comes where block {expected} should be"
        if not bad:
            return [Problem(GAP, self._name, at, 0, gap)]
        return [*bad[:-1], bad[-1]._replace(reason=f"{bad[-1].reason}; {gap}")]

    def _find_header(self, at: int, end: int) -> int:
        """Offset of the first right header that begins in ``at`` to ``end``; ``end`` if there is none.

        A block with a number that has been is not one: a frame may hold a copy of an earlier part of this segment.
        """
        while at < end:
            found = find_header(self._window.read(at, _WINDOW), 0, self._salt, self.expected or 0)
            if found >= 0:
                return min(at + found, end)
            at += _WINDOW - HEADER_BYTES
        return end
