"""Remove old segments of a capture log, by age and by total size.

Only sealed segments are removed, oldest first, so what is left has no gap. A segment that a named reader still needs
(`headwater_host.capture.readers`) is kept, unless ``Limits.unread`` says "remove".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from headwater_host.capture.manifest import Listing, Segment, list_log
from headwater_host.capture.readers import list_readers
from headwater_host.lifetime import AgeClock, Clocks
from headwater_host.private import replace_file, sync_directory

#: The age clock and when each sealed segment was first seen: the file of ``SegmentAges``.
AGES = "ages.json"


@dataclass(frozen=True)
class Limits:
    """The limits of a log. ``max_age``: seconds; ``max_bytes``: of all segments; None: no limit.

    ``unread``: "keep" or "remove" segments beyond a limit that a reader has not taken.
    """

    max_age: float | None = None
    max_bytes: int | None = None
    unread: str = "keep"

    def __bool__(self) -> bool:
        return self.max_age is not None or self.max_bytes is not None


class Due(NamedTuple):
    """A segment beyond a limit, and the readers that have not taken all of it."""

    segment: Segment
    bytes: int
    readers: tuple[str, ...]


@dataclass
class Removal:
    """The outcome of ``prune``."""

    #: Segments that were removed; with ``dry_run`` those that would be.
    removed: list[Due] = field(default_factory=list)
    #: Segments beyond a limit that are kept because a reader has not taken them.
    kept: list[Due] = field(default_factory=list)
    #: Bytes of the segments that are left.
    left: int = 0

    @property
    def removed_bytes(self) -> int:
        """The bytes of the removed segments."""
        return sum(due.bytes for due in self.removed)


def prune(
    directory: Path,
    limits: Limits,
    age_of: Callable[[Segment], float],
    *,
    dry_run: bool = False,
    listing: Listing | None = None,
) -> Removal:
    """Remove the segments beyond ``limits``. ``age_of`` returns a sealed segment's age in seconds.
    ``listing``: a list of the log that was just read.

    A writer may have the log open, and readers may read it. Raises OSError, also without a log.
    """
    listing = listing or list_log(directory)
    readers = list_readers(directory)
    removal = _choose(listing, limits, age_of, readers)
    if removal.removed and not dry_run:
        # Oldest first: after a crash, what is left has no gap.
        for due in removal.removed:
            due.segment.path.unlink(missing_ok=True)
        sync_directory(directory)
    return removal


def _choose(
    listing: Listing,
    limits: Limits,
    age_of: Callable[[Segment], float],
    readers: Mapping[str, int | None],
) -> Removal:
    removal = Removal()
    sizes = [_size(segment) for segment in listing.segments]
    removal.left = sum(sizes)
    for segment, size in zip(listing.segments, sizes, strict=True):
        # Segments that are not in the manifest are not sealed, or the manifest is damaged.
        if segment.entry is None:
            break
        too_large = limits.max_bytes is not None and removal.left > limits.max_bytes
        too_old = limits.max_age is not None and age_of(segment) > limits.max_age
        if not (too_large or too_old):
            break
        end = segment.entry.next_sequence
        waiting = tuple(name for name, needed in readers.items() if needed is None or needed < end)
        due = Due(segment, size, waiting)
        if waiting and limits.unread == "keep":
            # Its reader has not taken later segments either.
            removal.kept.append(due)
        else:
            removal.removed.append(due)
        removal.left -= size
    removal.left += sum(due.bytes for due in removal.kept)
    return removal


def _size(segment: Segment) -> int:
    try:
        return segment.path.stat().st_size
    except FileNotFoundError:
        return 0


class SegmentAges:
    """The ages of sealed segments in age time (`headwater_host.lifetime`), so that setting the clock removes nothing.

    A segment's age counts from ``look``'s first sight of it. The state is in ``ages.json``; if that is damaged or
    missing, all ages start at 0.
    """

    def __init__(
        self, directory: Path, clocks: Clocks | None = None, *, group_readable: bool = False
    ) -> None:
        self._path = directory / AGES
        self._group_readable = group_readable
        self._sealed: dict[str, int] = {}
        kept = ""
        #: Why the file was not used, or "".
        self.problem = ""
        try:
            state = json.loads(self._path.read_bytes())
            kept = state["age"]
            self._sealed = {str(name): int(at) for name, at in state["sealed"].items()}
            self._clock = AgeClock(kept, clocks)
        except FileNotFoundError:
            self._clock = AgeClock("", clocks)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            self.problem = f"{self._path} is damaged ({error}): ages start at 0"
            self._sealed = {}
            self._clock = AgeClock("", clocks)
        self._changed = True

    def look(self, listing: Listing) -> None:
        """Note which segments are sealed, and write the state if it has changed or the clock is due. Raises OSError."""
        now = self._clock.now()
        sealed = {
            segment.name: self._sealed.get(segment.name, now)
            for segment in listing.segments
            if segment.entry is not None
        }
        self._changed |= sealed != self._sealed
        self._sealed = sealed
        self._clock.look()
        if self._changed or self._clock.is_due:
            self._write()
            self._changed = False

    def age(self, segment: Segment) -> float:
        """Return the seconds since a segment was first seen sealed; 0 for others."""
        at = self._sealed.get(segment.name)
        return 0.0 if at is None else (self._clock.now() - at) / 1e9

    def _write(self) -> None:
        text = json.dumps({"age": self._clock.kept(), "sealed": self._sealed})
        replace_file(self._path, text.encode(), group_readable=self._group_readable, durable=True)
