"""Parse payloads into identities and metrics.

Board, boot and seq make an identity, and `t` is the send time in µs since 1970. They are fields of the payload, or come
from elsewhere (`headwater_spark.identity`). `board` must be a string, `boot` and `seq` integers from 0 to 2**63 - 1;
otherwise the message is bad. Every other number, boolean and string at the top level is a metric, also without an
identity. Nested values and nulls stay in the payload.

A registered decoder (`headwater_spark.decoders`) gets the payloads of its topics. The first byte of others tells JSON,
CBOR and FMQ Maps apart. If the content type of MQTT 5.0 names one of JSON and CBOR, the payload is not the other. A
payload that is a number in JSON's notation, optionally between blanks, is the metric `value` without an identity.

In an FMQ Map, decimals are numbers, durations seconds, and times ISO 8601 strings; `t` may be a time.

Arrow parses many payloads at once. Payloads that Arrow refuses, or could read differently from Python's `json`, go
through `json` one by one, with the same result.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from headwater.fmq.spec import MAP
from headwater_spark import maps
from headwater_spark.arrow import Bools, Rows, codes, octets, one, valid, values
from headwater_spark.cbor import load_cbor
from headwater_spark.decoders import Decoder, takes_columns
from headwater_spark.fmq_core import load_map
from headwater_spark.identity import PARTS, PROPERTY, TOPIC, Identity, level_of
from headwater_spark.parsed import Metric, Parsed, Result, is_text

_BOARD = PARTS[0]
#: Maximum keys announced to Arrow: each is a column of the batch, and senders are untrusted.
_MAX_KEYS = 256
#: Maximum number of refused payloads that Python parses at once.
_SMALL = 32
_STRING, _DOUBLE, _LONG, _BOOL = pa.string(), pa.float64(), pa.int64(), pa.bool_()
_UNSIGNED = pa.uint64()
#: The metric of a payload that is only a number, and the longest such payload.
VALUE = "value"
_LONGEST_NUMBER = 64
_NUMBER = r"^[ \t\r\n]*-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?[ \t\r\n]*$"
_KINDS = {int: _DOUBLE, float: _DOUBLE, str: _STRING, bool: _BOOL, type(None): _DOUBLE}
# Content types of MQTT 5.0, and the name of one.
_CBOR = "cbor"
_CONTENT_TYPE = re.compile(r"(?:application|text)/(?:[^;+ ]*\+)?(json|cbor) *(?:;.*)?", re.IGNORECASE)
# First bytes of a CBOR map: major type 5, or the tag of self-described CBOR.
_CBOR_MAP, _CBOR_TAG = 5, 0xD9


@dataclass(frozen=True)
class Rules:
    """Configuration by users: sources of the identity, and decoders by topic."""

    identity: Identity = field(default_factory=Identity)
    decoders: tuple[Decoder, ...] = ()


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


# As for Arrow: NaN and Infinity are not JSON.
_loads = json.JSONDecoder(parse_constant=_no_constant).decode


def load(payload: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a payload, or None."""
    try:
        value = _loads(payload.decode())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class Parser:
    """Parse payloads, and remember their keys to announce them to Arrow in the next batch."""

    def __init__(self, rules: Rules | None = None) -> None:
        self._rules = rules or Rules()
        fields = self._rules.identity.fields()
        # Types of the identity. Arrow refuses others, which Python then examines.
        self._keys: dict[str, Any] = {
            name: _STRING if slot == _BOARD else _LONG for name, slot in fields.items()
        }
        self._begun = False
        # Keys whose values were all null so far.
        self._tentative: set[str] = set()
        self._decoders = [(decoder, decoder.resolve()) for decoder in self._rules.decoders]

    def parse(self, payloads: Any, context: Mapping[str, Any] | None = None) -> Parsed:
        """Parse a binary Arrow array. Null has no values.

        `context` has the messages' columns topic, content_type and user_properties, as far as there are any.
        """
        context = context or {}
        result = Result(len(payloads), self._rules.identity)
        for slot, source in self._rules.identity.others():
            _add_source(result, slot, source.kind, source.what, context)
        if self._decoders and "topic" in context:
            payloads = self._decoded(payloads, one(context["topic"]), result)
        kinds = _content_kinds(context.get("content_type"))
        others = _maps(payloads, result)
        if others is not None:
            others = _cbor(others, kinds, result)
            _plain_numbers(others, result)
            self._objects(others, result)
        return result.parsed()

    def _decoded(self, payloads: Any, topics: Any, result: Result) -> Any:
        """Decode payloads of registered topics. Returns the others, with null in place of these."""
        which = [
            next((k for k, (decoder, _) in enumerate(self._decoders) if topic and decoder.matches(topic)), -1)
            for topic in values(topics)
        ]
        # Null has index -1.
        chosen = np.array([*which, -1])[codes(topics)]
        chosen[~valid(payloads)] = -1
        for k in np.unique(chosen[chosen >= 0]).tolist():
            decoder, function = self._decoders[k]
            rows = np.flatnonzero(chosen == k)
            work = _decode_columns if takes_columns(function) else _decode_each
            work(function, decoder.filter, payloads.take(pa.array(rows)), rows, result)
        return pc.if_else(pa.array(chosen >= 0), None, payloads) if (chosen >= 0).any() else payloads

    def _objects(self, payloads: Any, result: Result) -> None:
        candidates, risky = _triage(payloads)
        rows = candidates[~risky]
        if len(rows):
            # The first payloads of all show which keys to announce.
            first = 0 if self._begun else _SMALL
            self._begun = True
            self._python(payloads, rows[:first], result)
            self._arrow(payloads, rows[first:], result)
        self._python(payloads, candidates[risky], result)

    def _arrow(self, payloads: Any, rows: Rows, result: Result) -> None:
        """Parse with Arrow, and halve what it refuses until the faulty payloads are isolated."""
        if len(rows) <= _SMALL:
            self._python(payloads, rows, result)
            return
        whole = len(rows) == len(payloads)
        table = self._read(payloads if whole else payloads.take(pa.array(rows)))
        if table is not None:
            result.add_columns(rows, table)
            return
        middle = len(rows) // 2
        self._arrow(payloads, rows[:middle], result)
        self._arrow(payloads, rows[middle:], result)

    def _read(self, payloads: Any) -> Any:
        """Return a table with one row per payload, or None."""
        lines = pc.binary_join_element_wise(payloads, pa.scalar(b""), pa.scalar(b"\n"))
        starts, _ = octets(lines)
        start, end = int(starts[0]), int(starts[-1])
        try:
            table = pj.read_json(
                pa.BufferReader(lines.buffers()[2].slice(start, end - start)),
                # One block, because Arrow infers types for each block.
                pj.ReadOptions(use_threads=False, block_size=end - start + 1),
                pj.ParseOptions(
                    explicit_schema=pa.schema(list(self._keys.items())), unexpected_field_behavior="error"
                ),
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        if table.num_rows != len(payloads):
            return None
        for column in table.columns:
            # Arrow accepts NaN and Infinity, which are not JSON.
            if column.type == _DOUBLE and not math.isfinite(pc.sum(pc.abs(column), min_count=0).as_py()):
                return None
        return table

    def _python(self, payloads: Any, rows: Rows, result: Result) -> None:
        for row, payload in zip(rows.tolist(), payloads.take(pa.array(rows)).to_pylist(), strict=True):
            value = load(payload)
            if value is not None:
                self._learn(value)
                result.add(row, value)

    def _learn(self, value: dict[str, Any]) -> None:
        for key, item in value.items():
            if key in self._keys and key not in self._tentative:
                continue
            kind = _KINDS.get(type(item))
            if kind is None or not is_text(key) or len(self._keys) >= _MAX_KEYS:
                continue
            self._keys[key] = kind
            if item is None:
                self._tentative.add(key)
            else:
                self._tentative.discard(key)


def _add_source(result: Result, slot: str, kind: str, what: str, context: Mapping[str, Any]) -> None:
    """Add values of a slot that are not in the payload."""
    if kind == TOPIC and "topic" in context:
        topics = one(context["topic"])
        pattern = level_of(what)
        found = [pattern.fullmatch(topic) if topic else None for topic in values(topics)]
        texts = pa.array([match[1] if match else None for match in found], _STRING)
        result.add_texts(slot, texts.take(one(topics).indices))
    elif kind == PROPERTY and context.get("user_properties") is not None:
        result.add_texts(slot, pc.map_lookup(one(context["user_properties"]), what, "first"))
    elif kind not in (TOPIC, PROPERTY):
        result.add_texts(slot, pa.array([what] * result.n, _STRING))


def _content_kinds(column: Any) -> npt.NDArray[Any] | None:
    """Return the kind that each message's content type names, or "" for others; None if there is none."""
    if column is None:
        return None
    column = one(column)
    found = [_CONTENT_TYPE.fullmatch(text) for text in values(column)]
    names = np.array([*(match[1].lower() if match else "" for match in found), ""])
    kinds: npt.NDArray[Any] = names[codes(column)]
    return kinds if (kinds != "").any() else None


def _cbor(payloads: Any, kinds: npt.NDArray[Any] | None, result: Result) -> Any:
    """Parse payloads that are CBOR. Returns the others, with null in place of these and of what claims to be CBOR."""
    starts, data = octets(payloads)
    if not len(payloads) or not len(data):
        return payloads
    first = data.take(starts[:-1], mode="clip")
    likely = (starts[1:] > starts[:-1]) & valid(payloads) & ((first >> 5 == _CBOR_MAP) | (first == _CBOR_TAG))
    hidden = np.zeros(len(payloads), np.bool_)
    if kinds is not None:
        hidden = kinds == _CBOR
        likely &= hidden | (kinds == "")
    rows = np.flatnonzero(likely)
    for row, payload in zip(rows.tolist(), payloads.take(pa.array(rows)).to_pylist(), strict=True):
        value = load_cbor(payload)
        if value is not None:
            result.add(row, value)
    hidden |= likely
    return pc.if_else(pa.array(hidden), None, payloads) if hidden.any() else payloads


def _decode_each(
    function: Callable[[bytes], Mapping[str, Any] | None],
    where: str,
    payloads: Any,
    rows: Rows,
    result: Result,
) -> None:
    for row, payload in zip(rows.tolist(), payloads.to_pylist(), strict=True):
        try:
            found = function(payload)
            checked = None if found is None else _checked(found)
        except (Exception, SystemExit) as error:
            result.fail(row, where, error)
        else:
            if checked is not None:
                result.add(row, checked)


def _checked(found: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a decoder's values. Raises TypeError for one that has no place in a table."""
    # numpy's scalars are no int, and only some are float.
    values = {name: value.item() if isinstance(value, np.generic) else value for name, value in found.items()}
    for name, value in values.items():
        if not isinstance(name, str) or not (value is None or isinstance(value, (str, int, float))):
            raise TypeError(f"{name!r} is {type(value).__name__}, not a number, boolean or string")
    return values


def _decode_columns(
    function: Callable[[Any], Any], where: str, payloads: Any, rows: Rows, result: Result
) -> None:
    """Decode columns, and halve the payloads of a failure until the faulty ones are isolated."""
    try:
        table = _as_table(function(payloads), len(payloads))
    except (Exception, SystemExit) as error:
        if len(rows) == 1:
            result.fail(int(rows[0]), where, error)
            return
        middle = len(rows) // 2
        _decode_columns(function, where, payloads.slice(0, middle), rows[:middle], result)
        _decode_columns(function, where, payloads.slice(middle), rows[middle:], result)
    else:
        result.add_columns(rows, table)


def _as_table(found: Any, n: int) -> Any:
    """Return what a decoder of columns returned as a table of `n` strings, doubles, booleans and 64-bit integers.

    Raises an exception for all else, also for strings that are not UTF-8.
    """
    if isinstance(found, Mapping):
        found = pa.table(dict(found))
    elif isinstance(found, pa.RecordBatch):
        found = pa.Table.from_batches([found])
    elif not isinstance(found, pa.Table):
        raise TypeError(f"the decoder returned {type(found).__name__}, not columns")
    if found.num_rows != n:
        raise ValueError(f"the decoder returned {found.num_rows} rows for {n} payloads")
    columns = {}
    for name, column in zip(found.column_names, found.columns, strict=True):
        type_ = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if pa.types.is_string(type_) or pa.types.is_large_string(type_):
            columns[name] = column.cast(_STRING)
            columns[name].validate(full=True)
        elif pa.types.is_boolean(type_):
            columns[name] = column
        elif pa.types.is_integer(type_):
            columns[name] = column.cast(_UNSIGNED if type_ == _UNSIGNED else _LONG)
        elif pa.types.is_floating(type_) or pa.types.is_decimal(type_):
            columns[name] = column.cast(_DOUBLE, safe=False)
        elif not pa.types.is_null(type_):
            raise TypeError(f"the column {name!r} is {column.type}, not of numbers, booleans or strings")
    # A table without columns has no rows.
    return pa.table(columns) if columns else pa.table({"": pa.nulls(n, _DOUBLE)})


def _maps(payloads: Any, result: Result) -> Any:
    """Parse payloads that may be Maps. Returns the others, with null in place of Maps, or None if there are none."""
    where = _begin_with_tag(payloads, MAP)
    if where is None:
        return payloads
    rows = np.flatnonzero(where)
    every = len(rows) == len(payloads)
    chosen = payloads if every else payloads.take(pa.array(rows))
    found = maps.read(chosen, tuple(result.fields))
    result.add_maps(rows, found)
    for i in np.flatnonzero(~found.good).tolist():
        value = load_map(chosen[i].as_py())
        if value is not None:
            result.add(int(rows[i]), value)
    return None if every else pc.if_else(pa.array(where), None, payloads)


# By the first byte: whether a payload may be a number.
_NUMERIC = np.zeros(256, np.bool_)
_NUMERIC[[9, 10, 13, 32, 0x2D, *range(0x30, 0x3A)]] = True


def _plain_numbers(payloads: Any, result: Result) -> None:
    """Add the payloads that are only a number."""
    starts, data = octets(payloads)
    if not len(payloads) or not len(data):
        return
    sizes = starts[1:] - starts[:-1]
    likely = _NUMERIC[data.take(starts[:-1], mode="clip")] & (sizes > 0) & (sizes <= _LONGEST_NUMBER)
    rows = np.flatnonzero(likely & valid(payloads))
    if not len(rows):
        return
    texts = payloads.take(pa.array(rows))
    good = pc.match_substring_regex(texts, _NUMBER).to_numpy(zero_copy_only=False)
    if not good.any():
        return
    found = [float(text) for text in texts.filter(pa.array(good)).to_pylist()]
    result.metrics.append(Metric(VALUE, rows[good], np.array(found, np.float64), None))


def _begin_with_tag(payloads: Any, tag: int) -> Bools | None:
    """Return where payloads begin with an FMQ value of this tag, or None if nowhere."""
    starts, data = octets(payloads)
    if not len(payloads) or not len(data):
        return None
    found: Bools = data.take(starts[:-1], mode="clip") >> 4 == tag
    if not found.any():
        return None
    found &= (starts[1:] > starts[:-1]) & valid(payloads)
    return found


def _triage(payloads: Any) -> tuple[Rows, Bools]:
    """Return the rows that may be JSON objects, and which of these must not reach Arrow.

    Arrow reads one object per line and does not check UTF-8. A line break or two objects in a payload would shift
    the rows, and deep nesting could exhaust its stack. Without such payloads, as many lines as rows means one line
    per row.
    """
    starts, everything = octets(payloads)
    first, end = int(starts[0]), int(starts[-1])
    data = everything[first:end]
    begins = starts[:-1] - first
    ends = starts[1:] - first
    filled = ends > begins
    if payloads.null_count:
        filled &= payloads.is_valid().to_numpy(zero_copy_only=False)
    if not len(data):
        return np.zeros(0, np.int64), np.zeros(0, np.bool_)
    last = len(data) - 1
    opens = filled & (data[np.minimum(begins, last)] == 0x7B) & (data[np.maximum(ends - 1, 0)] == 0x7D)
    # Blanks around an object are rare; Python checks them.
    blank = np.zeros(256, np.bool_)
    blank[[9, 10, 13, 32]] = True
    padded = filled & ~opens & (blank[data[np.minimum(begins, last)]] | blank[data[np.maximum(ends - 1, 0)]])
    risky = padded.copy()
    odd: list[npt.NDArray[np.intp]] = []
    if data.min() < 0x20:
        odd.append(np.flatnonzero(data < 0x20))
    if data.max() > 0x7F and not _is_utf8(payloads):
        odd.append(np.flatnonzero(data > 0x7F))
    nested = data == 0x5B
    if nested.any():
        odd.append(np.flatnonzero(nested))
    braces = data == 0x7B
    if int(np.count_nonzero(braces)) != int(np.count_nonzero(opens)):
        at = np.flatnonzero(braces)
        # All bytes of a row except the first.
        row = np.searchsorted(starts, at + first, side="right") - 1
        odd.append(at[at != begins[row]])
    for at in odd:
        risky[np.searchsorted(starts, at + first, side="right") - 1] = True
    rows = np.flatnonzero(opens | padded)
    return rows, risky[rows]


def _is_utf8(payloads: Any) -> bool:
    buffers = payloads.buffers()
    try:
        pa.Array.from_buffers(_STRING, len(payloads), buffers, offset=payloads.offset).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
