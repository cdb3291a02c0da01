"""Values of FMQ as JSON. Types that JSON lacks are converted in one direction only:

=====================================  ==========================================
integers of more than 64 bits          text of digits
Duration, DateTime                     nanoseconds
Decimal                                text
NaN, the infinities                    "NaN", "Infinity", "-Infinity"
a map with keys other than strings     a list of pairs
an object                              a list, in encoded order
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
    """Convert a decoded value for ``json.dumps``."""
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
    """Convert a float for JSON, which has no infinity and no NaN."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"


def from_json(text: str) -> bytes:
    """Encode the value of a JSON text. Raises ValueError with a message for the user."""
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
