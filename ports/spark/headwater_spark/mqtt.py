"""Decode MQTT packets column by column: the fixed header of every packet (2.2), and complete PUBLISH (3.3).

The results equal those of the core's decoder, for ten thousand packets at a time. A record of the capture log is
one packet, so a record that is shorter or longer than its Remaining Length is malformed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater import errors
from headwater.mqtt import packets, spec
from headwater.mqtt.properties import SIZES as SIZES_5
from headwater.mqtt.spec import PUBLISH
from headwater_spark.arrow import Bools, Rows, octets, ranges
from headwater_spark.properties import read as read_blocks
from headwater_spark.properties import spread

Ints = npt.NDArray[np.int32]

# The core's rules for the fixed header by protocol level: flags and Remaining Lengths.
_HEADERS = {
    3: (spec.FLAGS_31, packets.SIZES),
    4: (packets.FLAGS, packets.SIZES),
    5: (packets.FLAGS, SIZES_5),
}
#: Supported protocol levels.
LEVELS = tuple(_HEADERS)
_LEVEL_5 = 5
# Remaining Lengths: no such packet type; any.
_NO_TYPE, _VARIES = 254, 255
# By byte: whether a topic needs a closer check (U+0000, '#', '+', non-ASCII).
_LOOK = np.zeros(256, np.bool_)
_LOOK[[0, 0x23, 0x2B]] = True
_LOOK[128:] = True


@dataclass(frozen=True)
class Packets:
    """n decoded packets.

    The columns from `dup` on are defined only where `error` is 0 and `kind` is PUBLISH. `kind` is the packet type,
    0 to 15, also 0 for an empty record. `error` is 0 or a code of `headwater.errors`, and `error_at` the offset of
    the error in the packet; only PUBLISH bodies are checked. `body` is the offset in `data` after the fixed
    header. `packet_id` is 0 at QoS 0. `topic` (dictionary of string) and `payload` (binary) are Arrow arrays, null
    unless there is a well-formed PUBLISH. `properties` has an Arrow array for each of PROPERTIES that a packet has.
    """

    kind: npt.NDArray[np.uint8]
    error: npt.NDArray[np.int8]
    error_at: Ints
    publish: Bools
    body: Ints
    dup: Bools
    qos: npt.NDArray[np.uint8]
    retain: Bools
    packet_id: Ints
    topic: Any
    payload: Any
    properties: dict[str, Any]


class _Errors:
    """The first error of each packet."""

    def __init__(self, n: int):
        self.code = np.zeros(n, np.int8)
        self.at = np.zeros(n, np.int32)

    def note(self, where: Bools, code: int, at: Ints | int) -> None:
        """Record `code` where there is no error yet; `at` is the error's offset in each packet."""
        if not where.any():
            return
        rows = np.flatnonzero(where & (self.code == 0))
        self.code[rows] = code
        self.at[rows] = at if isinstance(at, int) else at[rows]


def _first_bytes(data: npt.NDArray[np.uint8], start: Ints) -> Rows:
    """Return the 8 bytes at each offset as a big-endian number, with zeros after the data."""
    found = np.zeros(len(start), np.int64)
    last = len(data) - 8
    if last >= 0:
        found[:] = np.ndarray((last + 1,), ">i8", data, strides=(1,))[np.minimum(start, last).astype(np.intp)]
    beyond = np.flatnonzero(start > last)
    if len(beyond):
        base = max(last, 0)
        end = np.concatenate([data[base:], np.zeros(16, np.uint8)])
        found[beyond] = np.ndarray((9,), ">i8", end, strides=(1,))[start[beyond] - base]
    return found


def _remaining_length(first: Rows, size: Ints, errors_: _Errors) -> tuple[Ints, Ints]:
    """Return the Remaining Length and the length of the fixed header of packets by their first bytes (2.2.3)."""
    value = (first >> 48).astype(np.uint8).astype(np.int32)
    header = np.full(len(size), 2, np.int32)
    errors_.note(size < 2, errors.E_TRUNCATED, size)
    rows = np.flatnonzero((value > 127) & (errors_.code == 0))
    value[rows] &= 127
    for shift in (7, 14, 21):
        if not len(rows):
            break
        short = size[rows] <= header[rows]
        if short.any():
            errors_.code[rows[short]] = errors.E_TRUNCATED
            errors_.at[rows[short]] = size[rows[short]]
            rows = rows[~short]
        more = (first[rows] >> (56 - 8 * header[rows])).astype(np.uint8)
        value[rows] |= (more & 127).astype(np.int32) << shift
        header[rows] += 1
        rows = rows[more > 127]
    errors_.code[rows] = errors.E_LENGTH
    errors_.at[rows] = 5
    return value, header


def _bad_name(name: bytes) -> int:
    """Return 0, E_UTF8 or E_RX_TOPIC for a non-empty name, as the core's `check_name` does."""
    try:
        name.decode()
    except UnicodeDecodeError:
        return errors.E_UTF8
    if 0 in name:
        return errors.E_UTF8
    return errors.E_RX_TOPIC if b"+" in name or b"#" in name else 0


def _check_names(names: Any) -> npt.NDArray[np.int8]:
    """Return the error of each distinct topic name in a binary array; empty names are checked elsewhere.

    Scans all bytes at once and checks single names only where necessary.
    """
    n = len(names)
    bad = np.zeros(n, np.int8)
    if not n:
        return bad
    starts, data = octets(names)
    suspect = np.zeros(n, np.bool_)
    odd = np.flatnonzero(_LOOK[data[starts[0] : starts[-1]]])
    suspect[np.searchsorted(starts, odd + starts[0], side="right") - 1] = True
    for i in np.flatnonzero(suspect).tolist():
        bad[i] = _bad_name(names[i].as_py())
    return bad


def decode(data: npt.NDArray[np.uint8], starts: Ints, level: int = 4) -> Packets:
    """Decode the packets `data[starts[i] : starts[i + 1]]`. `data` is smaller than 2 GiB.

    `level` is the protocol level, one of `LEVELS`. A PUBLISH of MQTT 5.0 with a topic alias instead of its topic is
    E_ALIAS: the record does not contain the topic.
    """
    data = np.ascontiguousarray(data)
    start = starts[:-1]
    end = starts[1:]
    size = end - start
    n = len(start)
    wrong = _Errors(n)
    flags, sizes = (np.frombuffer(table, np.uint8) for table in _HEADERS[level])

    first = _first_bytes(data, start)
    head = (first >> 56).astype(np.uint8)
    head[size == 0] = 0
    kind: npt.NDArray[np.uint8] = (head >> 4).astype(np.uint8)
    publish = kind == PUBLISH
    qos: npt.NDArray[np.uint8] = (head >> 1 & 3).astype(np.uint8)
    wrong.note(size == 0, errors.E_TRUNCATED, 0)
    only = sizes[kind]
    wrong.note(only == _NO_TYPE, errors.E_TYPE, 0)
    wrong.note(publish & (qos == 3), errors.E_RX_QOS, 0)
    wrong.note(publish & (head & 14 == 8), errors.E_FLAGS, 0)
    rule = flags[kind]
    wrong.note(~publish & (head & rule >> 4 != rule & 15), errors.E_FLAGS, 0)

    remaining, header = _remaining_length(first, size, wrong)
    wrong.note((only != _VARIES) & (remaining != only), errors.E_SIZE, header)
    wrong.note(header + remaining > size, errors.E_TRUNCATED, size)
    wrong.note(header + remaining < size, errors.E_SIZE, header + remaining)

    # PUBLISH: topic, packet identifier, properties, payload.
    body = start + header
    topic_at = body + 2
    topic_end = topic_at + (first >> (48 - 8 * header)).astype(np.uint16)
    numbered = qos > 0
    id_end = topic_end + 2 * numbered.astype(np.int32)
    wrong.note(publish & (topic_end > end), errors.E_FIELD, header)
    good = publish & (wrong.code == 0)

    def part(begin: Ints, stop: Ints, where: Bools) -> Any:
        """Return a part of each packet as a binary column, null where not `where`."""
        if where.all():
            return ranges(data, begin, stop)
        return ranges(data, np.where(where, begin, start), np.where(where, stop, start), ~where)

    names = part(topic_at, topic_end, good).dictionary_encode()
    bad = _check_names(names.dictionary)
    topics = names.dictionary
    if bad.any():
        codes = names.indices.fill_null(0).to_numpy()
        bad_row = np.where(good, bad[codes], np.int8(0))
        for code in np.unique(bad[bad != 0]).tolist():
            wrong.note(bad_row == code, code, topic_at - start)
        # A column of strings cannot contain a name that is not UTF-8, even if it is unused.
        topics = pa.array([b"" if bad[i] else name for i, name in enumerate(topics.to_pylist())], pa.binary())
    nameless = good & (topic_end == topic_at)
    if level != _LEVEL_5:
        wrong.note(nameless, errors.E_RX_TOPIC, topic_at - start)
    packet_id = np.zeros(n, np.int32)
    if numbered.any():
        some = topic_end[numbered]
        packet_id[numbered] = data.take(some, mode="clip").astype(np.int32) << 8 | data.take(
            some + 1, mode="clip"
        )
    wrong.note(good & (id_end > end), errors.E_FIELD, topic_end - start)
    wrong.note(good & numbered & (packet_id == 0), errors.E_PACKET_ID, topic_end - start)
    payload_at, properties = id_end, {}
    if level == _LEVEL_5:
        blocks = read_blocks(data, id_end, end, good & (wrong.code == 0))
        payload_at, properties = blocks.end, blocks.columns
        for code in np.unique(blocks.error).tolist() if blocks.error.any() else ():
            wrong.note(good & (blocks.error == code) & (blocks.error != 0), code, blocks.error_at - start)
        if nameless.any():
            wrong.note(nameless & ~blocks.alias, errors.E_RX_TOPIC, topic_at - start)
            wrong.note(nameless, errors.E_ALIAS, topic_at - start)
            rows = pa.array(np.arange(n), mask=nameless)
            properties = {name: spread(column, rows) for name, column in properties.items()}

    fine = good & (wrong.code == 0)
    indices = names.indices
    if not fine.all():
        indices = pa.array(indices.fill_null(0).to_numpy(), mask=~fine)
    return Packets(
        kind=kind,
        error=wrong.code,
        error_at=wrong.at,
        publish=fine,
        body=body,
        dup=head & 8 != 0,
        qos=qos,
        retain=head & 1 != 0,
        packet_id=packet_id,
        topic=pa.DictionaryArray.from_arrays(indices, topics.cast(pa.string())),
        payload=part(payload_at, end, fine),
        properties=properties,
    )
