"""Walk through a segment file: yield good blocks, and report every byte that is not part of one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from headwater_host.capture.filesystem import File, Location, Storage, base_name, open_file
from headwater_host.capture.format import HEADER_BYTES, Block, FormatError, Header, find_header, parse_header
from headwater_host.capture.problem import BAD, GAP, TORN, Problem

_WINDOW = 256 << 10


class BlockInfo(NamedTuple):
    """Position and header of a block."""

    file: str
    offset: int
    header: Header

    @property
    def length(self) -> int:
        """The length of the block in bytes."""
        return self.header.block_length

    @property
    def end(self) -> int:
        """The offset after the block."""
        return self.offset + self.header.block_length


class _Window:
    """Reads a file in pieces: small ones where reads jump, growing ones while they follow each other.

    It reads ahead up to ``end``.
    """

    def __init__(self, file: File, first: int, most: int, end: int) -> None:
        self._file = file
        self._end = end
        self._first = self._size = first
        self._most = most
        self._at = 0
        self._data = b""

    def read(self, at: int, length: int) -> bytes:
        """Read ``length`` bytes at offset ``at``, or fewer at the end of the file."""
        start = at - self._at
        if start < 0 or start + length > len(self._data):
            follows = 0 <= start <= len(self._data) and self._data
            self._size = min(2 * self._size, self._most) if follows else self._first
            # Read the header after a body together with the body.
            ahead = min(self._size, self._end - at)
            self._data = self._file.pread(max(length + HEADER_BYTES, ahead), at)
            self._at, start = at, 0
        return self._data[start : start + length]


@contextlib.contextmanager
def scanning(
    location: Location, salt: int | None, *, storage: Storage = (), **options: Any
) -> Iterator[Scan]:
    """Open a segment file for a ``Scan`` with these options. Raises OSError."""
    file = open_file(location, storage)
    try:
        yield Scan(file, base_name(location), salt, **options)
    finally:
        file.close()


class Scan:
    """One walk through a segment: iterate it for ``(BlockInfo, Block)`` pairs and ``Problem``s, in file order.

    ``file``: the open file. ``name``: its name in reports. ``salt``: the salt of its name, None for any. ``start``,
    ``end``: the range in which blocks begin. ``is_open``: whether the tail may be torn. ``expected``: the sequence
    number of the first block, None for any; afterwards, that of the next one. ``bodies``: False checks only headers;
    the pairs then contain None for the block.
    """

    def __init__(
        self,
        file: File,
        name: str,
        salt: int | None,
        *,
        start: int = 0,
        end: int | None = None,
        is_open: bool = False,
        expected: int | None = None,
        bodies: bool = True,
    ) -> None:
        self._name = name
        self._salt = salt
        self._start = start
        self.size = file.size
        self._end = self.size if end is None else min(end, self.size)
        self._lost = 0 if end is None else end - self._end
        self._window = _Window(file, *file.windows[0 if bodies else 1], self._end)
        self._is_open = is_open and self._end == self.size
        self._bodies = bodies
        self.expected = expected

    def __iter__(self) -> Iterator[tuple[BlockInfo, Block | None] | Problem]:
        at = self._start
        # Bad bytes so far: damage if a valid header follows, otherwise a torn tail.
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
                yield found_block  # a newer version: may be whole, so never a torn tail
            else:
                resume = header.sequence
                bad.append(found_block)
        if bad and self._is_open:
            # Several problems, such as a bad body and bytes without a header, are one torn write.
            self.expected = resume
            first = bad[0]
            yield first._replace(kind=TORN, length=self.size - first.offset)
        else:
            yield from bad
        if self._lost:
            yield Problem(BAD, self._name, self.size, self._lost, "the file ends before the range does")

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
        """Return the end of a block with a bad body: that of its header, unless the next block begins earlier."""
        if info.end < self.size:
            with contextlib.suppress(FormatError):
                parse_header(self._window.read(info.end, HEADER_BYTES), self._salt)
                return info.end
        # Bytes of the block may be missing.
        return self._find_header(info.offset + 1, min(info.end, self.size))

    def _before(self, at: int, header: Header, bad: list[Problem]) -> list[Problem]:
        """Return the problems before a valid header: bad bytes and missing blocks."""
        expected, sequence = self.expected, header.sequence
        self.expected = sequence + 1
        if expected is None or sequence == expected:
            return bad
        gap = f"block {sequence} follows instead of block {expected}"
        if not bad:
            return [Problem(GAP, self._name, at, 0, gap)]
        return [*bad[:-1], bad[-1]._replace(reason=f"{bad[-1].reason}; {gap}")]

    def _find_header(self, at: int, end: int) -> int:
        """Return the offset of the first valid header from ``at`` to ``end``, or ``end``.

        A header with an earlier sequence number does not count: a frame may contain a copy of this segment.
        """
        while at < end:
            found = find_header(self._window.read(at, _WINDOW), 0, self._salt, self.expected or 0)
            if found >= 0:
                return min(at + found, end)
            at += _WINDOW - HEADER_BYTES
        return end
