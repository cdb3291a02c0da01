"""Decode MQTT packets column by column: the fixed header of every packet (2.2), and complete PUBLISH (3.3).

The results equal those of the core's decoder, for ten thousand packets at a time. A record of the capture log is
one packet, so a record that is shorter or longer than its Remaining Length is malformed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater import errors
from headwater.mqtt import packets, spec
from headwater.mqtt.properties import SIZES as SIZES_5
from headwater.mqtt.spec import PUBLISH
from headwater_spark import properties
from headwater_spark.arrow import Bools, octets
from headwater_spark.properties import Found, spread

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


def _remaining_length(
    byte: Callable[[Ints], npt.NDArray[np.uint8]], start: Ints, size: Ints, errors_: _Errors
) -> tuple[Ints, Ints]:
    """Return the Remaining Length and the length of the fixed header of each packet (2.2.3)."""
    first = byte(start + 1)
    value = first.astype(np.int32)
    header = np.full(len(start), 2, np.int32)
    errors_.note(size < 2, errors.E_TRUNCATED, size)
    rows = np.flatnonzero((first > 127) & (errors_.code == 0))
    value[rows] &= 127
    for shift in (7, 14, 21):
        if not len(rows):
            break
        short = size[rows] <= header[rows]
        if short.any():
            errors_.code[rows[short]] = errors.E_TRUNCATED
            errors_.at[rows[short]] = size[rows[short]]
            rows = rows[~short]
        more = byte(start[rows] + header[rows])
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


@dataclass
class _Blocks:
    """The property blocks (2.2.2) of n packets: where the block and its properties begin, the end, the first error or 0
    with its offset, whether there is a topic alias, and the block's index in `found`, or -1. Offsets are those in the
    data.
    """

    at: Ints
    begin: Ints
    end: Ints
    error: npt.NDArray[np.int8]
    error_at: Ints
    alias: Bools
    index: Ints
    found: Found | None = None

    @classmethod
    def find(cls, byte: Callable[[Ints], npt.NDArray[np.uint8]], at: Ints, end: Ints) -> _Blocks:
        """Find the blocks that begin at `at` in packets that end at `end`."""
        n = len(at)
        error = np.zeros(n, np.int8)
        first = byte(at)
        length = first.astype(np.int32)
        begin = at + 1
        rows = np.flatnonzero(first > 127)
        length[rows] &= 127
        for shift in (7, 14, 21):
            error[rows[begin[rows] >= end[rows]]] = errors.E_FIELD
            rows = rows[error[rows] == 0]
            if not len(rows):
                break
            more = byte(begin[rows])
            length[rows] |= (more & 127).astype(np.int32) << shift
            begin[rows] += 1
            rows = rows[more > 127]
        # The length or its block extends beyond the packet, or the length has a fifth byte.
        error[begin + length > end] = errors.E_FIELD
        error[rows] = errors.E_LENGTH
        return cls(
            at,
            begin,
            np.where(error == 0, begin + length, end),
            error,
            at.copy(),
            np.zeros(n, np.bool_),
            np.full(n, -1, np.int32),
        )

    def check(self, data: npt.NDArray[np.uint8], where: Bools) -> None:
        """Decode the blocks of the packets `where`."""
        there = where & (self.error == 0) & (self.end > self.begin)
        every = bool(there.all())
        rows = slice(None) if every else np.flatnonzero(there)
        begin, end = self.begin[rows], self.end[rows]
        if not len(begin):
            return
        found = self.found = properties.read(np.ascontiguousarray(data), begin, end)
        self.index[rows] = np.arange(len(begin), dtype=np.int32)
        if found.error.any():
            self.error[rows] = found.error
            self.error_at[rows] = np.where(found.error != 0, begin + found.error_at, self.at[rows])
        self.alias[rows] = found.alias

    def columns(self, where: Bools) -> dict[str, Any]:
        """Return the columns of PROPERTIES that have values, null except in the packets `where`."""
        if self.found is None:
            return {}
        missing = ~where | (self.index < 0)
        if not missing.any():
            return self.found.columns
        rows = pa.array(self.index, mask=missing)
        return {name: spread(column, rows) for name, column in self.found.columns.items()}


def decode(data: npt.NDArray[np.uint8], starts: Ints, level: int = 4) -> Packets:
    """Decode the packets `data[starts[i] : starts[i + 1]]`. `data` is smaller than 2 GiB.

    `level` is the protocol level, one of `LEVELS`. A PUBLISH of MQTT 5.0 with a topic alias instead of its topic is
    E_ALIAS: the record does not contain the topic.
    """
    start = starts[:-1]
    end = starts[1:]
    size = end - start
    n = len(start)
    wrong = _Errors(n)
    flags, sizes = (np.frombuffer(table, np.uint8) for table in _HEADERS[level])

    def byte(at: Ints) -> npt.NDArray[np.uint8]:
        """Return the bytes at some offsets, or any byte after the data."""
        return data.take(at, mode="clip") if len(data) else np.zeros(len(at), np.uint8)

    def u16(at: Ints) -> Ints:
        return byte(at).astype(np.int32) << 8 | byte(at + 1)

    head = np.where(size > 0, byte(start), np.uint8(0))
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

    remaining, header = _remaining_length(byte, start, size, wrong)
    wrong.note((only != _VARIES) & (remaining != only), errors.E_SIZE, header)
    wrong.note(header + remaining > size, errors.E_TRUNCATED, size)
    wrong.note(header + remaining < size, errors.E_SIZE, header + remaining)

    # PUBLISH: topic, packet identifier, properties, payload.
    body = start + header
    topic_at = body + 2
    topic_end = topic_at + u16(body)
    payload_at = id_end = topic_end + np.where(qos > 0, np.int32(2), np.int32(0))
    wrong.note(publish & (topic_end > end), errors.E_FIELD, header)
    good = publish & (wrong.code == 0)
    every = bool(good.all())
    blocks = None
    if level == _LEVEL_5:
        blocks = _Blocks.find(byte, id_end, end)
        payload_at = blocks.end

    # One Arrow array over the same bytes with four pieces per packet: header, topic, middle, payload.
    # Taking every fourth piece copies topics and payloads in C.
    pieces = np.empty(4 * n + 1, np.int32)
    pieces[0:-1:4] = start
    pieces[-1] = end[-1] if n else 0
    for k, at in ((1, topic_at), (2, topic_end), (3, np.minimum(payload_at, end))):
        pieces[k::4] = at if every else np.where(good, at, start)
    pieces_array = pa.Array.from_buffers(
        pa.binary(), 4 * n, [None, pa.py_buffer(pieces), pa.py_buffer(np.ascontiguousarray(data))]
    )

    def take(k: int, where: Bools) -> Any:
        rows = np.arange(k, 4 * n, 4, dtype=np.int32)
        return pieces_array.take(pa.array(rows) if where.all() else pa.array(rows, mask=~where))

    names = take(1, good).dictionary_encode()
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
    if blocks is None:
        wrong.note(nameless, errors.E_RX_TOPIC, topic_at - start)
    packet_id = np.where(qos > 0, u16(topic_end), 0).astype(np.int32)
    wrong.note(good & (id_end > end), errors.E_FIELD, topic_end - start)
    wrong.note(good & (qos > 0) & (packet_id == 0), errors.E_PACKET_ID, topic_end - start)
    if blocks is not None:
        blocks.check(data, good & (wrong.code == 0))
        bad_block = good & (blocks.error != 0)
        for code in np.unique(blocks.error[bad_block]).tolist() if bad_block.any() else ():
            wrong.note(bad_block & (blocks.error == code), code, blocks.error_at - start)
        wrong.note(nameless & ~blocks.alias, errors.E_RX_TOPIC, topic_at - start)
        wrong.note(nameless, errors.E_ALIAS, topic_at - start)

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
        payload=take(3, fine),
        properties={} if blocks is None else blocks.columns(fine),
    )
