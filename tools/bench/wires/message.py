"""The telemetry messages of `examples/device/telemetry.py` on a microcontroller and on a Linux board."""

from __future__ import annotations

import json
from typing import Any

from headwater_host.fmq.values import encode

TOPIC = b"headwater/b1/telemetry"
CLIENT_ID = b"b1"
_WHO: dict[str, Any] = {"board": "b1", "boot": 3, "seq": 4711, "t": 1_790_000_000_123_456}

#: Samples of ``examples/device/sampling.py`` by platform, with values of usual sizes.
MESSAGES: dict[str, dict[str, Any]] = {
    "microcontroller": {"heap_free": 96304, "heap_used": 71888} | _WHO,
    "Linux board": {
        "load1": 0.42,
        "mem_total_kb": 441844,
        "mem_available_kb": 262344,
        "cpu_user": 1284311,
        "cpu_system": 411902,
        "cpu_idle": 93817744,
        "disk_read": 1190822,
        "disk_written": 8841208,
        "net_received": 731184420,
        "net_sent": 90231876,
    }
    | _WHO,
}


def as_json(values: dict[str, Any]) -> bytes:
    """Encode as the example does; MicroPython's `json` writes the same spaces as CPython's."""
    return json.dumps(values).encode()


def as_map(values: dict[str, Any]) -> bytes:
    """Encode the same names and values as an FMQ Map."""
    return encode(values)
