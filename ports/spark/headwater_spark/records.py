"""Read boards' own records of what they sent, and compare them with stored messages.

A record is a file with one JSON object per line: `board`, `boot`, `seq` and `qos`. With `"acknowledged": false` the
message was published, otherwise it was acknowledged. Other lines are ignored, because a power cut may truncate one.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: A message of a board: boot and seq.
Key = tuple[int, int]


@dataclass
class Record:
    """One board's messages: all that it published, and the QoS of those that were acknowledged."""

    sent: set[Key] = field(default_factory=set)
    acknowledged: dict[Key, int] = field(default_factory=dict)

    def lost(self, stored: Collection[Key]) -> list[Key]:
        """Return the messages that were acknowledged at QoS 1 or 2 and are not stored."""
        return [key for key, qos in self.acknowledged.items() if qos and key not in stored]


def read(paths: Iterable[str | os.PathLike[str]]) -> dict[str, Record]:
    """Return the records of some files, by board."""
    records: dict[str, Record] = defaultdict(Record)
    for path in paths:
        for row in _lines(Path(path)):
            record, key = records[row["board"]], (row["boot"], row["seq"])
            record.sent.add(key)
            if row.get("acknowledged", True):
                record.acknowledged[key] = row["qos"]
    return dict(records)


def check(path: Path) -> None:
    """Raise ValueError if a file has text, but no line of a record: then nothing would be compared. Raises OSError."""
    if next(iter(_lines(path)), None) is None and path.read_bytes().strip():
        example = '{"board": "b1", "boot": 1, "seq": 5, "qos": 1}'
        raise ValueError(f"{path}: no line is a message such as {example}")


def _lines(path: Path) -> Iterable[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
            if isinstance(row["board"], str) and all(
                isinstance(row[name], int) for name in ("boot", "seq", "qos")
            ):
                yield row
        except (ValueError, TypeError, KeyError):
            continue
