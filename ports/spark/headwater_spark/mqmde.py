"""Decode MQMDEs column by column.

A payload has an MQMDE if it begins with its StrucId, Version and StrucLength in either byte order, in ASCII or
EBCDIC. The fields follow the core's table. Flags that MQPUT refuses, and the cases of `refused` in
`headwater_host.mq.reassembly`, are refused. Encoding, CodedCharSetId and Format describe the payload and are not
checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headwater.ibmmq.header import MQMDE
from headwater_host.mq.errors import REASONS
from headwater_host.mq.fields import FAULTS, checks
from headwater_host.mq.structures import to_bytes, to_text
from headwater_spark.arrow import Bools, Rows, octets, strings

Ints = npt.NDArray[np.int64]

#: Size of an MQMDE in bytes.
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
# ASCII, and EBCDIC 500, which encodes the characters of IBM's names like the other EBCDICs.
_CCSIDS = (819, 500)
#: The first 12 bytes of an MQMDE: ASCII big-endian and little-endian, then EBCDIC.
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
    """The MQMDEs of n payloads. `rows` are those that have one, in order; all columns are theirs.

    `reason` is IBM's reason code of a refusal and `error_at` the field's offset; the other fields of a truncated
    MQMDE are undefined. `at` is where the payload begins in `data`, `length` the number of bytes after the MQMDE.
    `group_id` has the 24 bytes as three words. `format` is a dictionary column without trailing blanks.
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
    """Decode the MQMDEs of a binary Arrow array. Null payloads have none."""
    edges, data = octets(payloads)
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
    """Return the rows that begin with a signature, and which one."""
    rows = np.flatnonzero(np.diff(edges) >= _HEAD)
    if not len(rows):
        return rows, rows
    words: Any = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    first = words[edges[rows]]
    rows = rows[np.isin(first, _FIRST)]
    # The last 4 of the 12 bytes are the upper half of the word that ends with them.
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
    """Return the offset of the first field that is truncated in a payload of `size` bytes."""
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
    return strings(codes, texts)


def refusal(reason: int, error_at: int) -> str:
    """Describe why an MQMDE was refused."""
    field = next(name for name, at in _AT.items() if at == error_at)
    return f"MQMDE: {field} at byte {error_at}: {reason} {REASONS[reason]}"
