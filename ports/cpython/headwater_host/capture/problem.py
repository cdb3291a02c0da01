"""Problems of a capture log, as readers and writers report them."""

from __future__ import annotations

from typing import NamedTuple

BAD = "bad"  # a damaged block, or bytes between blocks; or a part that a sealed segment has lost
TORN = "torn"  # the end of an open segment: an unfinished write, maybe one that goes on just now
GAP = "gap"  # sequence numbers that do not go on by 1
MISSING = "missing"  # a sealed segment that is not there
MANIFEST = "manifest"  # the manifest is damaged, or says something else than the segment


class Problem(NamedTuple):
    """One finding: where it is (bytes ``offset`` to ``offset + length`` of ``file``) and what is wrong there."""

    kind: str
    file: str
    offset: int
    length: int
    reason: str

    @property
    def is_damage(self) -> bool:
        """Whether records that were once durable may be lost. A torn tail never was durable."""
        return self.kind != TORN

    def __str__(self) -> str:
        where = f"{self.file} at {self.offset}"
        if self.length:
            where += f", {self.length} bytes"
        return f"{self.kind}: {where}: {self.reason}"
