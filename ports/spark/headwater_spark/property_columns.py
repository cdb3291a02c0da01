"""Columns of MQTT 5.0's properties: their names and types, and checks of their texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.mqtt import properties, spec5
from headwater.mqtt.spec import PUBLISH
from headwater.wire import put_varint
from headwater_host.topics import check_name
from headwater_spark.arrow import Bools, Rows, octets, valid

Ints = npt.NDArray[np.int32]
Octets = npt.NDArray[np.uint8]

_MAP = pa.map_(pa.string(), pa.string())
#: Columns: the property, and the column's type.
PROPERTIES = {
    "content_type": (spec5.CONTENT_TYPE, pa.string()),
    "message_expiry": (spec5.MESSAGE_EXPIRY_INTERVAL, pa.int64()),
    "response_topic": (spec5.RESPONSE_TOPIC, pa.string()),
    "correlation_data": (spec5.CORRELATION_DATA, pa.binary()),
    "user_properties": (spec5.USER_PROPERTY, _MAP),
}
USER_PROPERTIES = "user_properties"
#: The bit of PUBLISH among the packets that may have a property.
IN_PUBLISH = 1 << PUBLISH
#: Types of the properties that PUBLISH may have.
KINDS = {i: properties.kind_of(i) for i in range(properties.LAST + 1) if properties.allowed(i) & IN_PUBLISH}


@dataclass
class Part:
    """Some of the blocks: their rows, whether they have a topic alias, and their columns."""

    rows: Rows
    alias: Bools | bool
    columns: dict[str, Any]


def column(type_: pa.DataType, n: int, there: Bools | None, *buffers: Any, children: Any = None) -> Any:
    """Return an Arrow array of n values with these buffers, null where not `there`."""
    valid = None if there is None or there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(type_, n, [valid, *map(pa.py_buffer, buffers)], children=children)


def maps(offsets: Ints, there: Bools | None, keys: Any, items: Any) -> Any:
    """Return a map for each row: the pairs `offsets[i]` to `offsets[i + 1]`, or null where not `there`."""
    entries = pa.StructArray.from_arrays([keys, items], fields=[_MAP.key_field, _MAP.item_field])
    return column(_MAP, len(offsets) - 1, there, offsets, children=[entries])


def as_strings(found: Any) -> Any:
    """Return a binary array of UTF-8 as strings."""
    return pa.Array.from_buffers(pa.string(), len(found), found.buffers(), offset=found.offset)


def bad_texts(found: Any, names: bool = False) -> Bools:
    """Return which values of a binary array are no UTF-8 or have U+0000.

    Those of topic `names` are also bad if they are empty or have # or +.
    """
    starts, data = octets(found)
    some = data[starts[0] : starts[-1]]
    bad = (starts[1:] == starts[:-1]) & valid(found) if names else np.zeros(len(found), np.bool_)
    if len(some):
        if some.min() == 0:
            _mark(bad, starts, some == 0)
        if names:
            _mark(bad, starts, (some == 0x23) | (some == 0x2B))
        if some.max() > 127:
            bad |= _not_utf8(found)
    return bad


def _mark(bad: Bools, starts: Ints, where: Bools) -> None:
    """Mark the rows of bytes."""
    at = np.flatnonzero(where)
    if len(at):
        bad[np.searchsorted(starts, at + starts[0], side="right") - 1] = True


def _not_utf8(found: Any) -> Bools:
    """Return which values of a binary array are not UTF-8."""
    bad = np.zeros(len(found), np.bool_)
    try:
        as_strings(found).validate(full=True)
    except pa.ArrowInvalid:
        for i, text in enumerate(found.to_pylist()):
            try:
                (text or b"").decode()
            except UnicodeDecodeError:
                bad[i] = True
    return bad


def check(block: bytes) -> tuple[properties.Packet5, int]:
    """Check properties without their length with the core. Return its packet, and an offset or an error."""
    front = bytearray(4)
    size = put_varint(front, 0, len(block))
    packet = properties.Packet5(bytes(front[:size]) + block, check_name)
    status = properties.check(packet, 0, size + len(block), IN_PUBLISH)
    packet.bad_at -= size
    return packet, status
