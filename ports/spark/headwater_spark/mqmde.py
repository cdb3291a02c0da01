"""IBM MQ's MQMDE at the beginning of payloads, column-wise: which payloads have one, what it says, whether it can be.

A payload has one when it begins with StrucId, Version and StrucLength of an MQMDE, in either byte order, in ASCII or in
EBCDIC: the core's ``sniff``, for a column at once. The fields are those of the core's table. What is refused is what
``mq.fields.checks`` finds. Encoding, CodedCharSetId and Format say what the
data are, and are taken as they stand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.ibmmq.header import MQMDE
from headwater_host.mq.errors import REASONS
from headwater_host.mq.fields import FAULTS, checks
from headwater_host.mq.structures import to_bytes, to_text
from headwater_spark.arrow import Bools, Rows

Ints = npt.NDArray[np.int64]

#: Bytes of an MQMDE.
SIZE = MQMDE[2]
_NUMBERS = {"l": "i4", "f": "u4"}
_FIELDS = {
    order: np.dtype(
        [
            (name, order + _NUMBERS[kind] if kind in _NUMBERS else f"V{size}")
            for name, _, size, kind, _ in MQMDE[3]
        ]
    )
    for order in "<>"
}
_AT = {name: at for name, at, *_ in MQMDE[3]}
# ASCII, and 500, which writes the characters of IBM's names as the other EBCDICs do.
_CCSIDS = (819, 500)
#: The first 12 bytes of an MQMDE, in its four forms: big-endian and little-endian, then both in EBCDIC.
SIGNATURES = tuple(
    to_bytes("MDE ", ccsid) + np.array([2, SIZE], f"{order}i4").tobytes()
    for ccsid in _CCSIDS
    for order in "><"
)
_HEAD = len(SIGNATURES[0])
_FIRST = np.array([int.from_bytes(signature[:8], "little") for signature in SIGNATURES], np.uint64)
_REST = np.array([int.from_bytes(signature[8:], "little") for signature in SIGNATURES], np.uint64)


@dataclass(frozen=True)
class Mqmdes:
    """The MQMDEs of n payloads: those of ``rows``, rising. All columns are theirs.

    ``reason``: IBM's reason code where one is refused, and ``error_at`` the offset of the field; of a payload that ends
    within it nothing else is right. ``at``: where the payload begins among the bytes ``data``; ``length``: bytes behind
    the MQMDE. ``group_id``: the 24 bytes as three words. ``format``: a dictionary column, without the blanks behind it.
    """

    rows: Rows
    reason: npt.NDArray[np.int16]
    error_at: npt.NDArray[np.int32]
    data: npt.NDArray[np.uint8]
    at: Ints
    length: Ints
    group_id: npt.NDArray[np.uint64]
    seq: Ints
    offset: Ints
    flags: Ints
    original_length: npt.NDArray[np.int32]
    encoding: npt.NDArray[np.int32]
    ccsid: npt.NDArray[np.int32]
    format: Any


def decode(payloads: Any) -> Mqmdes:
    """Read a binary Arrow array; payloads that are null have none."""
    _, starts, data_ = payloads.buffers()
    edges = np.frombuffer(starts or bytes(4), np.int32)[payloads.offset : payloads.offset + len(payloads) + 1]
    data = np.frombuffer(data_ or b"", np.uint8)
    rows, form = _sniff(data, edges)
    at = edges[rows].astype(np.int64)
    size = edges[rows + 1] - at
    length = np.maximum(size - SIZE, 0)
    whole = size >= SIZE
    heads = np.zeros(len(rows), f"V{SIZE}")
    if whole.any():
        # The 72 bytes at every offset, without a copy.
        every: Any = np.ndarray((len(data) - SIZE + 1,), f"V{SIZE}", data, strides=(1,))
        if whole.all():
            heads = every[at]
        else:
            heads[whole] = every[at[whole]]
    found = _fields(heads, form & 1 == 0)
    reason = np.zeros(len(rows), np.int16)
    error_at = np.zeros(len(rows), np.int32)
    group_id = heads.view(_FIELDS["<"])["GroupId"].copy().view(np.uint64).reshape(-1, 3)
    numbers = (found["MsgSeqNumber"], found["Offset"], length, found["MsgFlags"])
    for kind, where in reversed(checks(*numbers, ~group_id.any(axis=1))):
        code, name, _ = FAULTS[kind]
        reason[where], error_at[where] = code, _AT[name]
    reason[~whole] = MQMDE[1]
    error_at[~whole] = _cut_at(size[~whole])
    return Mqmdes(
        rows,
        reason,
        error_at,
        data,
        at,
        length,
        group_id,
        found["MsgSeqNumber"].astype(np.int64),
        found["Offset"].astype(np.int64),
        found["MsgFlags"].astype(np.int64),
        found["OriginalLength"],
        found["Encoding"],
        found["CodedCharSetId"],
        _formats(heads, form >= 2),
    )


def _sniff(data: npt.NDArray[np.uint8], edges: Any) -> tuple[Rows, npt.NDArray[np.int64]]:
    """The rows that begin with a signature, and with which of them."""
    rows = np.flatnonzero(np.diff(edges) >= _HEAD)
    if not len(rows):
        return rows, rows
    words: Any = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    first = words[edges[rows]]
    rows = rows[np.isin(first, _FIRST)]
    # The last four of the twelve bytes stand in the upper half of the word that ends with them.
    ends = edges[rows].astype(np.int64) + _HEAD - 8
    first, rest = words[edges[rows]], words[ends] >> np.uint64(32)
    form = np.full(len(rows), -1)
    for k in range(len(SIGNATURES)):
        form[(first == _FIRST[k]) & (rest == _REST[k])] = k
    known = form >= 0
    return rows[known], form[known]


def _fields(heads: Any, big: Bools) -> dict[str, Any]:
    little_endian, big_endian = (heads.view(_FIELDS[order]) for order in "<>")
    names = [name for name, _, _, kind, _ in MQMDE[3] if kind in _NUMBERS]
    if not big.any():
        return {name: np.ascontiguousarray(little_endian[name]) for name in names}
    return {name: np.where(big, big_endian[name], little_endian[name]) for name in names}


def _cut_at(size: Ints) -> Any:
    """Where the field begins that a payload of ``size`` bytes does not have whole."""
    ends = [at + width for _, at, width, *_ in MQMDE[3]]
    return np.array(list(_AT.values()))[np.searchsorted(ends, size, "right")]


def _formats(heads: Any, is_ebcdic: Bools) -> Any:
    words = heads.view(_FIELDS["<"])["Format"].copy().view("<u8")
    texts: list[str] = []
    codes = np.zeros(len(words), np.int32)
    for ccsid, mine in zip(_CCSIDS, (~is_ebcdic, is_ebcdic), strict=True):
        found, inverse = np.unique(words[mine], return_inverse=True)
        codes[mine] = inverse + len(texts)
        texts += [to_text(int(word).to_bytes(8, "little"), ccsid).rstrip(" \0") for word in found]
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(texts, pa.string()))


def refusal(reason: int, error_at: int) -> str:
    """What is wrong with an MQMDE, in words."""
    field = next(name for name, at in _AT.items() if at == error_at)
    return f"MQMDE: {field} at byte {error_at}: {reason} {REASONS[reason]}"
