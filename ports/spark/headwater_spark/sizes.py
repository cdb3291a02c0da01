"""Parse sizes; their limits and defaults. Imports only the standard library."""

from __future__ import annotations

import re

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,18})\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
#: The frames of a batch are one Arrow array, which has 32-bit offsets.
MAX_PARTITION_BYTES = 1 << 30
MAX_BATCH_ROWS = 1 << 20
PARTITION_BYTES = 32 << 20
#: Default number of frames that the pipeline decodes at once, and of rows that the data sources give to Spark.
BATCH_ROWS = 1 << 17
READ_ROWS = 1 << 15
#: Default maximum bytes of the log per micro-batch of a stream.
TRIGGER_BYTES = 256 << 20
#: Default time between two micro-batches of `headwater pipeline stream`, in s.
TRIGGER_S = 2.0
#: Default number of its micro-batches after which small files are merged.
COMPACT_EVERY = 50
#: Least time between two updates of `device_health` and `reconciliation` by a stream, in s.
DERIVE_S = 60.0
#: Default maximum payload of ``logical_messages``: the largest MaxMsgLength of IBM MQ.
MAX_MESSAGE = 100 << 20


def parse_size(text: str) -> int:
    """Return the bytes of a number with optional k, m, g or t (KiB to TiB). Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError("not a size such as 33554432 or 32m")
    return int(found[1]) * _UNITS[found[2].lower()]
