"""Reassemble logical messages from segments, column by column.

numpy finds the usual groups: their segments are contiguous up to one last segment, their messages count from 1 to
one last message, and nothing is duplicated. Arrow joins their bytes without Python code for each message. Every
other group goes through the rules of `headwater_host.mq.reassembly.logical`, one at a time.

Memory: about 200 bytes for each segment, 300 more in an unusual group, and payloads up to a limit. More payloads go
to an unnamed file in `TMPDIR`, so a message may be larger than the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headwater_host.mq import CMQC
from headwater_host.mq.fields import IN_GROUP, SEGMENT
from headwater_host.mq.reassembly.verdicts import Segment, Verdict, judge
from headwater_spark.arrow import Bools, Rows, strings, times
from headwater_spark.segments import Hashes, Ints, Segments, collect
from headwater_spark.sizes import MAX_MESSAGE
from headwater_spark.tables import LOGICAL_MESSAGES

#: Default limit of payload bytes in memory, per task.
MEMORY = 256 << 20
#: Reason code of a message that is larger than the limit of a row.
TOO_LARGE = CMQC.MQRC_MSG_TOO_BIG_FOR_Q
# Maximum number of missing ranges that a row lists.
_NAMED = 100
# Limits of a batch of rows.
_BATCH_ROWS = 1 << 14
_BATCH_BYTES = 32 << 20

_LAST_SEGMENT, _LAST_IN_GROUP = CMQC.MQMF_LAST_SEGMENT, CMQC.MQMF_LAST_MSG_IN_GROUP


def assemble(
    batches: Iterable[Any], *, max_message: int = MAX_MESSAGE, memory: int = MEMORY
) -> Iterator[dict[str, Any]]:
    """Yield batches of rows of `logical_messages`, as Arrow columns by name.

    `batches` are record batches with `topic`, `payload` and `time_ns` that contain all segments of each (topic,
    GroupId). Payloads without a valid MQMDE are ignored. A message outside of a group and of segments is a row of
    its own. A message larger than `max_message` bytes gets no payload and a reason. `memory` limits the bytes of
    payloads held in memory.
    """
    found = collect(batches, memory)
    if found is None:
        return
    single = found.flags & (SEGMENT | IN_GROUP) == 0
    alone = np.flatnonzero(single)
    if len(alone):
        yield from _whole(found, alone, np.arange(len(alone) + 1), max_message)
    order, group = _in_order(found, np.flatnonzero(~single))
    if not len(order):
        return
    new = np.append(True, group[1:] != group[:-1])
    starts = np.flatnonzero(new)
    sizes = np.diff(np.append(starts, len(order)))
    odd = np.logical_or.reduceat(_unusual(found, order, new), starts)
    is_usual = np.repeat(~odd, sizes)
    usual = order[is_usual]
    if len(usual):
        seq = found.seq[usual]
        first = new[is_usual]
        first[1:] |= seq[1:] != seq[:-1]
        yield from _whole(found, usual, np.append(np.flatnonzero(first), len(usual)), max_message)
    places = zip(starts[odd].tolist(), sizes[odd].tolist(), strict=True)
    yield from _judged(found, (order[start : start + size] for start, size in places), max_message)


def _in_order(found: Segments, rows: Rows) -> tuple[Rows, Hashes]:
    """Sort rows by group, MsgSeqNumber and Offset; also return numbers that are equal within a group."""
    order = rows[np.argsort(found.seq[rows] << 30 | found.offset[rows])]
    # Hash and index in one number: numpy sorts numbers faster than indexes by key.
    bits = np.uint64(len(order).bit_length())
    key = found.hash[order] >> bits << bits | np.arange(len(order), dtype=np.uint64)
    key.sort()
    group = key >> bits
    ordered = order[key & ((np.uint64(1) << bits) - np.uint64(1))]
    if (_others(found, ordered) & (group[1:] == group[:-1])).any():
        # Two groups share a hash.
        words = (found.group_id[order, k] for k in range(3))
        ordered = order[np.lexsort((*words, found.topic[order]))]
        group = np.append(False, _others(found, ordered)).cumsum().astype(np.uint64)
    return ordered, group


def _others(found: Segments, rows: Rows) -> Bools:
    """Return where a row has another topic or GroupId than the row before it."""
    topic, group_id = found.topic[rows], found.group_id[rows]
    other: Bools = topic[1:] != topic[:-1]
    for k in range(3):
        other |= group_id[1:, k] != group_id[:-1, k]
    return other


def _unusual(found: Segments, order: Rows, new_group: Bools) -> Bools:
    """Return the sorted rows that make their group unusual, so that it needs the rules."""
    seq, offset, flags = found.seq[order], found.offset[order], found.flags[order]
    encoding, ccsid = found.encoding[order], found.ccsid[order]
    stop = offset + found.length[order]
    is_segment, member = flags & SEGMENT != 0, flags & IN_GROUP != 0
    last = flags & _LAST_IN_GROUP != 0
    new = new_group.copy()
    new[1:] |= seq[1:] != seq[:-1]
    ends, ends_group = np.append(new[1:], True), np.append(new_group[1:], True)
    odd: Bools = new & (offset != 0)
    odd |= ends != (~is_segment | (flags & _LAST_SEGMENT != 0))
    odd |= member & ((new_group & (seq != 1)) | (ends_group & ~last))
    # Within a message.
    differs = (offset[1:] != stop[:-1]) | ~is_segment[1:] | ~is_segment[:-1] | (last[1:] != last[:-1])
    differs |= (encoding[1:] != encoding[:-1]) | (ccsid[1:] != ccsid[:-1])
    odd[1:] |= ~new[1:] & differs
    # Within a group.
    follows = new[1:] & ~new_group[1:] & member[1:]
    odd[1:] |= follows & ((seq[1:] != seq[:-1] + 1) | last[:-1])
    odd[1:] |= ~new_group[1:] & (member[1:] != member[:-1])
    return odd


def _whole(found: Segments, order: Rows, bounds: Rows, max_message: int) -> Iterator[dict[str, Any]]:
    """Yield rows of complete messages. The segments of message k are `order[bounds[k] : bounds[k + 1]]`."""
    totals = np.add.reduceat(found.length[order], bounds[:-1])
    large = totals > max_message
    # A row without a payload needs no bytes.
    room = np.cumsum(np.where(large, 0, totals))
    begin = 0
    while begin < len(totals):
        taken = int(room[begin - 1]) if begin else 0
        end = int(np.searchsorted(room, taken + _BATCH_BYTES, "right"))
        end = min(max(end, begin + 1), begin + _BATCH_ROWS)
        some = bounds[begin : end + 1]
        yield _whole_rows(
            found, order[some[0] : some[-1]], some - some[0], totals[begin:end], large[begin:end]
        )
        begin = end


def _whole_rows(found: Segments, order: Rows, bounds: Rows, totals: Ints, large: Bools) -> dict[str, Any]:
    n = len(totals)
    starts, sizes = bounds[:-1], np.diff(bounds)
    first = order[starts]
    times, flags = found.time_ns[order], found.flags[first]
    member = flags & IN_GROUP != 0
    missing = pa.nulls(n, pa.string())
    if large.any():
        texts = [_too_large(size) if is_large else None for size, is_large in zip(totals, large, strict=True)]
        missing = pa.array(texts, pa.string())
        order = order[np.repeat(~large, sizes)]
    return _columns(
        found,
        first,
        np.minimum.reduceat(times, starts),
        np.maximum.reduceat(times, starts),
        complete=~large,
        payload=_payloads(found, order, np.where(large, 0, totals), large),
        length=totals,
        segments=sizes.astype(np.int32),
        duplicates=np.zeros(n, np.int32),
        missing=missing,
        reason=pa.array(np.full(n, TOO_LARGE, np.int32), mask=~large),
        last_in_group=pa.array(flags & _LAST_IN_GROUP != 0, mask=~member),
        group_complete=pa.array(member, mask=~member),
        group_missing=pa.nulls(n, pa.string()),
    )


def _payloads(found: Segments, rows: Rows, sizes: Ints, missing: Bools) -> Any:
    """Join the data of consecutive segments into a binary column with these sizes."""
    edges = found.edges
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(found.data)]
    source = pa.Array.from_buffers(pa.large_binary(), len(edges) - 1, buffers)
    # The MQMDE of a segment lies between its data and the previous segment's.
    data = source.take(pa.array(2 * rows)).buffers()[2]
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    valid = pa.py_buffer(np.packbits(~missing, bitorder="little")) if missing.any() else None
    return pa.Array.from_buffers(
        pa.binary(), len(sizes), [valid, pa.py_buffer(ends), data or pa.py_buffer(b"")]
    )


def _judged(found: Segments, groups: Iterable[Rows], max_message: int) -> Iterator[dict[str, Any]]:
    """Yield rows of groups that go through the rules."""
    lines: list[_Line] = []
    size = 0
    for rows in groups:
        received = np.sort(rows)
        received = received[np.argsort(found.time_ns[received], kind="stable")]
        for line in _judge(found, received, max_message):
            lines.append(line)
            size += len(line.payload or b"")
            if len(lines) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                yield _lines(found, lines)
                lines, size = [], 0
    if lines:
        yield _lines(found, lines)


class _Line(NamedTuple):
    """One row of a group that went through the rules. `first` is the segment whose MQMDE describes the payload."""

    first: int
    first_ns: int
    last_ns: int
    complete: bool
    payload: bytes | None
    length: int
    segments: int
    duplicates: int
    missing: str | None
    reason: int | None
    last_in_group: bool | None
    group_complete: bool | None
    group_missing: str | None


def _said(verdict: Verdict) -> str | None:
    return None if verdict.complete else str(verdict.fault or verdict.missing)


def _too_large(size: int) -> str:
    return f"nothing, but its {size} bytes are too large for a row"


def _judge(found: Segments, rows: Rows, max_message: int) -> Iterator[_Line]:
    columns = (found.seq, found.offset, found.length, found.flags, found.encoding, found.ccsid)
    segments = [Segment(*one) for one in zip(*(column[rows].tolist() for column in columns), strict=True)]
    verdict = judge(segments, lambda i: found.content(int(rows[i])), _NAMED)
    by_seq = rows[np.argsort(found.seq[rows], kind="stable")]
    numbers, starts = np.unique(found.seq[by_seq], return_index=True)
    for seq, mine in zip(numbers.tolist(), np.split(by_seq, starts[1:]), strict=True):
        one = verdict.messages[seq]
        payload, reason, said = None, one.reason or None, _said(one)
        if one.complete and one.length > max_message:
            reason, said = TOO_LARGE, _too_large(one.length)
        elif one.complete:
            payload = b"".join(
                found.content(int(rows[i]))[skip : skip + size] for i, skip, size in one.pieces
            )
        flags = int(np.bitwise_or.reduce(found.flags[mine]))
        member = flags & IN_GROUP != 0
        times = found.time_ns[mine]
        yield _Line(
            # If the first segment is missing, the one with the lowest Offset.
            first=int(rows[one.first]) if one.first >= 0 else int(mine[np.argmin(found.offset[mine])]),
            first_ns=int(times.min()),
            last_ns=int(times.max()),
            complete=payload is not None,
            payload=payload,
            length=one.length,
            segments=len(mine) - one.duplicates,
            duplicates=one.duplicates,
            missing=said,
            reason=reason,
            last_in_group=flags & _LAST_IN_GROUP != 0 if member else None,
            group_complete=verdict.complete if member else None,
            group_missing=_said(verdict) if member else None,
        )


def _lines(found: Segments, lines: list[_Line]) -> dict[str, Any]:
    columns: dict[str, Any] = dict(zip(_Line._fields, zip(*lines, strict=True), strict=True))
    first, first_ns, last_ns = (
        np.array(columns.pop(name), np.int64) for name in ("first", "first_ns", "last_ns")
    )
    kinds = LOGICAL_MESSAGES.plain
    arrays = {name: pa.array(values, kinds.field(name).type) for name, values in columns.items()}
    return _columns(found, first, first_ns, last_ns, **arrays)


def _columns(found: Segments, first: Rows, first_ns: Ints, last_ns: Ints, **columns: Any) -> dict[str, Any]:
    """Return all columns of rows, taking the common ones from the first segment of each."""
    ends = np.arange(0, 24 * len(first) + 1, 24, dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(found.group_id[first])]
    return {
        "time": times(first_ns),
        "time_ns": pa.array(first_ns),
        "last_ns": pa.array(last_ns),
        "topic": strings(found.topic[first], found.topics),
        "group_id": pa.Array.from_buffers(pa.binary(), len(first), buffers),
        "seq": pa.array(found.seq[first].astype(np.int32)),
        "format": strings(found.format[first], found.formats),
        "encoding": pa.array(found.encoding[first]),
        "ccsid": pa.array(found.ccsid[first]),
        **{
            name: pa.array(column) if isinstance(column, np.ndarray) else column
            for name, column in columns.items()
        },
    }
