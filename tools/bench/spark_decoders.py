"""MQTT 5.0 beside 3.1.1 in the decoder for Spark, one core, without Spark.

Each frame carries the same message: JSON with an identity, 58 bytes in 3.1.1. *Same*: all frames have the same content
type, expiry and user property. *Distinct*: correlation data and a user property differ in each, the expiry in most.
*Several sizes*: the values of two user properties have 1 to 9 bytes. *Mixed*: a quarter has no properties, a quarter
the same, a quarter distinct ones, and a quarter seven with values of several sizes. The longer frames of 3.1.1 have
longer payloads instead. CPU time; medians of rounds with all kinds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from headwater_host.mqtt_properties import encode
from tools.bench.spark import small

_BATCHES = 4
_ROWS = 1 << 15
_ROUNDS = 15
_WHERE = 1 << 3
_SAME = {
    "content_type": "application/json",
    "message_expiry_interval": 60,
    "user_property": [("site", "north")],
}
_NONE = encode(None, _WHERE)


def _same(number: int) -> bytes:
    return encode(_SAME, _WHERE)


def _distinct(number: int) -> bytes:
    own = {
        "message_expiry_interval": 60 + number % 100,
        "correlation_data": number.to_bytes(8, "big"),
        "user_property": [("trace", f"{number * 7919:016x}")],
    }
    return encode(_SAME | own, _WHERE)


def _sizes(number: int) -> bytes:
    pairs = [
        ("trace", f"{number * 7919 % 10 ** (1 + number % 13)}"),
        ("version", f"1.{number % 3}.{number % 12}"),
    ]
    return encode(_SAME | {"user_property": pairs}, _WHERE)


def _many(number: int) -> bytes:
    own = {
        "response_topic": f"answers/{number % 100}",
        "message_expiry_interval": 60 + number % 100,
        "correlation_data": number.to_bytes(8, "big"),
        "user_property": [("trace", f"{number * 7919:016x}"), ("site", "north"), ("unit", f"K{number % 7}")],
    }
    return encode(_SAME | own, _WHERE)


def _mixed(number: int) -> bytes:
    makes: tuple[Callable[[int], bytes], ...] = (lambda _: _NONE, _same, _distinct, _many)
    return makes[number % 4](number)


def _frame(body: bytes) -> bytes:
    size = len(body)
    return b"\x30" + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + body


def _of_5(number: int, block: bytes) -> bytes:
    body = small(number)[2:]
    return _frame(body[:5] + block + body[5:])


def _longer(number: int, size: int) -> bytes:
    body = small(number)[2:-1]
    return _frame(body + b',"x":"' + b"y" * (size - len(body) - 10) + b'"}')


#: What is measured: protocol level and frames.
_KINDS: dict[str, tuple[int, Callable[[int], bytes]]] = {
    "3.1.1, 58 bytes": (4, small),
    "3.1.1, 97 bytes": (4, lambda number: _longer(number, 97)),
    "3.1.1, 120 bytes": (4, lambda number: _longer(number, 120)),
    "5.0 without properties, 59 bytes": (5, lambda number: _of_5(number, _NONE)),
    "5.0, same properties, 97 bytes": (5, lambda number: _of_5(number, _same(number))),
    "5.0, distinct properties, 120 bytes": (5, lambda number: _of_5(number, _distinct(number))),
    "5.0, values of several sizes, 116 bytes": (5, lambda number: _of_5(number, _sizes(number))),
    "5.0, mixed, 109 bytes": (5, lambda number: _of_5(number, _mixed(number))),
}


def run() -> list[dict[str, object]]:
    """Return a row for each kind of frame."""
    from headwater_spark import mqtt

    batches: dict[str, list[tuple[Any, Any]]] = {}
    for what, (_, make) in _KINDS.items():
        batches[what] = []
        for first in range(0, _BATCHES * _ROWS, _ROWS):
            frames = [make(number) for number in range(first, first + _ROWS)]
            starts = np.cumsum([0, *map(len, frames)]).astype(np.int32)
            batches[what].append((np.frombuffer(b"".join(frames), np.uint8), starts))
    seconds: dict[str, list[float]] = {what: [] for what in _KINDS}
    for _ in range(_ROUNDS):
        for what, (level, _make) in _KINDS.items():
            began = time.process_time()
            for data, starts in batches[what]:
                mqtt.decode(data, starts, level)
            seconds[what].append(time.process_time() - began)
    rates = {what: _BATCHES * _ROWS / statistics.median(found) / 1e6 for what, found in seconds.items()}
    sizes = {what: len(found[0][0]) / _ROWS for what, found in batches.items()}
    base = next(iter(_KINDS))
    return [
        {
            "frames": what,
            "M frames/s": f"{rate:.1f}",
            "of 3.1.1": f"{rate / rates[base]:.2f}",
            "MB/s": f"{rate * sizes[what]:.0f}",
            "of 3.1.1, bytes": f"{rate * sizes[what] / rates[base] / sizes[base]:.2f}",
        }
        for what, rate in rates.items()
    ]
