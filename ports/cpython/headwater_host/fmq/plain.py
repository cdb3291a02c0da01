"""Values of FMQ as JSON, for people and their tools: what JSON has, both ways; the rest one way only.

=====================================  ==========================================
whole numbers of more than 64 bits     text of digits
Duration, DateTime                     their nanoseconds, as such
Decimal                                text
NaN, the infinities                    "NaN", "Infinity", "-Infinity"
a map with keys that are no texts      a list of pairs
an object                              a list, in the order on the wire
=====================================  ==========================================
"""

import json
import math
from decimal import Decimal
from typing import Any

from headwater_host.fmq.kinds import DateTime, Duration, exact
from headwater_host.fmq.values import encode

_LARGEST = 1 << 64


def plain(value: Any) -> Any:
    """What ``decode`` gave, as ``json.dumps`` takes it."""
    if isinstance(value, (Duration, DateTime)):
        value = value.nanoseconds
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if abs(value) < _LARGEST else str(exact(value))
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, float):
        return real(value)
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: plain(one) for key, one in value.items()}
        value = value.items()
    return [plain(one) for one in value]


def real(value: float) -> float | str:
    """A float as JSON has it, which has no infinity."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"


def from_json(text: str) -> bytes:
    """The value that a JSON text stands for, encoded. Raises ValueError with words."""
    try:
        return encode(json.loads(text, parse_constant=_no_constant, parse_float=_finite))
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is too large a number")
    return value
