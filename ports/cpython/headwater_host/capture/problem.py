"""Problems of a capture log, as readers and writers report them."""

from __future__ import annotations

from typing import NamedTuple

BAD = "bad"  # a damaged block, bytes between blocks, or a missing part of a sealed segment
TORN = "torn"  # the end of an open segment: an unfinished write, which may still be in progress
GAP = "gap"  # sequence numbers that are not consecutive
MISSING = "missing"  # a sealed segment is missing
MANIFEST = "manifest"  # the manifest is damaged or contradicts the segment


class Problem(NamedTuple):
    """A problem in bytes ``offset`` to ``offset + length`` of ``file``, with its description."""

    kind: str
    file: str
    offset: int
    length: int
    reason: str

    @property
    def is_damage(self) -> bool:
        """True if durable records may be lost. A torn tail was never durable."""
        return self.kind != TORN

    def __str__(self) -> str:
        where = f"{self.file} at {self.offset}"
        if self.length:
            where += f", {self.length} bytes"
        return f"{self.kind}: {where}: {self.reason}"
