"""Sizes: how they are written, their limits and defaults. Imports nothing that has to be installed."""

from __future__ import annotations

import re

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE = re.compile(r"([0-9]{1,18})\s*([kmg]?)(?:i?b)?", re.IGNORECASE)
#: Frames of one batch stand in one Arrow array, which has 32-bit offsets.
MAX_PARTITION_BYTES = 1 << 30
MAX_BATCH_ROWS = 1 << 20
PARTITION_BYTES = 32 << 20
BATCH_ROWS = 1 << 15
#: What a row of ``logical_messages`` may have at most, unless it is said: what a queue of IBM MQ may be told to take.
MAX_MESSAGE = 100 << 20


def parse_size(text: str) -> int:
    """Bytes: a number, with k, m or g behind it for KiB, MiB, GiB. Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError("not a size such as 33554432 or 32m")
    return int(found[1]) * _UNITS[found[2].lower()]
