"""Keep the gateway's log within its limits, and note there what the gateway itself has read."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headwater_host.capture.manifest import list_log
from headwater_host.capture.readers import save_reader
from headwater_host.capture.retention import Limits, Removal, SegmentAges, prune
from headwater_host.lifetime import Clocks

#: The name of the gateway's IBM MQ part among the readers of the log.
MQ_READER = "ibmmq"
#: Seconds between runs.
INTERVAL = 60.0

_logger = logging.getLogger("headwater.gateway")


class Retention:
    """Removes old segments. ``positions`` returns, by reader, the first block that each still needs.

    ``run`` is called in a thread, one call at a time.
    """

    def __init__(
        self,
        directory: Path,
        limits: Limits,
        positions: Callable[[], dict[str, int]],
        *,
        group_readable: bool = False,
        clocks: Clocks | None = None,
    ) -> None:
        self._directory = directory
        self._limits = limits
        self._positions = positions
        self._group_readable = group_readable
        self._clocks = clocks
        self._ages: SegmentAges | None = None
        self._saved: dict[str, int] = {}
        self._said = ""
        self._removed = 0
        self._removed_bytes = 0
        self._last = Removal()

    def run(self) -> None:
        """Save the positions and remove what is due. Errors are logged, once each, and tried again by the next run."""
        try:
            self._save()
            said = self._prune() if self._limits else ""
        except OSError as error:
            said = f"old segments cannot be removed: {error}"
        if said and said != self._said:
            _logger.warning("capture log: %s", said)
        self._said = said

    def _save(self) -> None:
        for name, sequence in self._positions().items():
            if self._saved.get(name) != sequence:
                save_reader(self._directory, name, sequence, group_readable=self._group_readable)
                self._saved[name] = sequence

    def _prune(self) -> str:
        """Remove segments. Returns why the log is larger or older than its limits, or ""."""
        if self._ages is None:
            self._ages = SegmentAges(self._directory, self._clocks, group_readable=self._group_readable)
            if self._ages.problem:
                _logger.warning("capture log: %s", self._ages.problem)
        listing = list_log(self._directory)
        self._ages.look(listing)
        self._last = removal = prune(self._directory, self._limits, self._ages.age, listing=listing)
        if removal.removed:
            self._removed += len(removal.removed)
            self._removed_bytes += removal.removed_bytes
            last = removal.removed[-1].segment.name
            _logger.info(
                "capture log: removed %d old segments, %d bytes, up to %s",
                len(removal.removed),
                removal.removed_bytes,
                last,
            )
        lost = [due for due in removal.removed if due.readers]
        if lost:
            names = ", ".join(sorted({name for due in lost for name in due.readers}))
            _logger.error(
                "capture log: removed %d segments that %s had not taken: these records are lost to it",
                len(lost),
                names,
            )
        if not removal.kept:
            return ""
        names = ", ".join(sorted({name for due in removal.kept for name in due.readers}))
        return f"it exceeds its limits, because the reader {names} has not taken the oldest segments"

    def status(self) -> dict[str, Any]:
        """Return the statistics for JSON."""
        return {
            "removed_segments": self._removed,
            "removed_bytes": self._removed_bytes,
            "kept_unread_bytes": sum(due.bytes for due in self._last.kept),
            "readers": dict(self._saved),
        }
