"""Payloads that begin with an MQMDE, and what the plain rules say of many of them."""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from headwater.ibmmq.header import BIG, EBCDIC, MQMDE, sniff
from headwater_host.mq.fields import IN_GROUP, SEGMENT, refused
from headwater_host.mq.reassembly.verdicts import Segment, judge
from headwater_host.mq.structures import decode, encode
from headwater_spark.assembly import TOO_LARGE

GROUP = bytes(range(1, 25))
S, LS, G, LG = 2, 6, 8, 24


def mqmde(
    data: bytes,
    flags: int = 0,
    *,
    seq: int = 1,
    offset: int = 0,
    group: bytes = GROUP,
    big: bool = False,
    ccsid: int = 819,
    **more: Any,
) -> bytes:
    """An MQMDE and these data behind it."""
    fields = {"Format": "MQSTR", "CodedCharSetId": 1208, "MsgSeqNumber": seq, "Offset": offset, **more}
    head = encode(MQMDE, {**fields, "MsgFlags": flags, "GroupId": group}, big=big, ccsid=ccsid)
    return head + data


def segmented(data: bytes, size: int, flags: int = 0, **more: Any) -> list[bytes]:
    """A logical message as segments of ``size`` bytes."""
    starts = range(0, max(len(data), 1), size)
    return [
        mqmde(data[at : at + size], flags | (LS if at + size >= len(data) else S), offset=at, **more)
        for at in starts
    ]


class Come(NamedTuple):
    """A payload that has come."""

    topic: str
    payload: bytes
    time_ns: int = 0


def batches(rows: Iterable[Come], size: int) -> Iterator[Any]:
    """Record batches of so many rows."""
    rows = list(rows)
    for at in range(0, len(rows), size):
        some = rows[at : at + size]
        columns = [
            pa.array([row.topic for row in some]),
            pa.array([row.payload for row in some], pa.binary()),
        ]
        columns.append(pa.array([row.time_ns for row in some]))
        yield pa.record_batch(columns, ["topic", "payload", "time_ns"])


def some_groups() -> list[Come]:
    """Two hundred groups, some of them not whole, as if a thousand boards had sent at a time."""
    chance = random.Random(5)
    come = []
    for k in range(200):
        more = {"group": chance.randbytes(24), "big": bool(k % 2)}
        pieces = [
            piece
            for seq in (1, 2)
            for piece in segmented(
                chance.randbytes(chance.randrange(60)), 7, LG if seq == 2 else G, seq=seq, **more
            )
        ]
        if k % 10 == 3:
            pieces.pop(chance.randrange(len(pieces)))
        if k % 10 == 4:
            pieces.append(chance.choice(pieces))
        come += [Come(f"t/{k % 3}", piece, chance.randrange(1 << 40)) for piece in pieces]
    come += [Come("t/none", mqmde(b"%d" % k, group=bytes(24)), k) for k in range(20)]
    come += [Come("t/none", b"no MQMDE", 1), Come("t/none", mqmde(b"x", seq=0), 1)]
    chance.shuffle(come)
    return come


def plain(rows: Iterable[Come], max_message: int) -> list[dict[str, Any]]:
    """The rows of ``logical_messages``, by the rules and nothing else."""
    groups: dict[tuple[str, bytes], list[tuple[int, dict[str, Any], bytes]]] = defaultdict(list)
    found = []
    for topic, payload, time_ns in rows:
        form = sniff(payload, 0, len(payload))
        if not form or len(payload) < 72:
            continue
        fields: Any = decode(MQMDE, payload, big=form & 3 == BIG, ccsid=500 if form & EBCDIC else 819)
        data, flags = payload[72:], fields["MsgFlags"]
        numbers = (fields["MsgSeqNumber"], fields["Offset"], len(data), flags)
        if refused(*numbers, fields["GroupId"]):
            continue
        if flags & (SEGMENT | IN_GROUP):
            groups[topic, fields["GroupId"]].append((time_ns, fields, data))
        else:
            found.append(_row(topic, [(time_ns, fields, data)], 0, max_message))
    for (topic, _), some in groups.items():
        some.sort(key=lambda row: row[0])
        contents = [data for _, _, data in some]
        verdict = judge([_segment(fields, data) for _, fields, data in some], contents.__getitem__, 100)
        for seq, one in verdict.messages.items():
            mine = [row for row in some if row[1]["MsgSeqNumber"] == seq]
            row = _row(topic, mine, one.duplicates, max_message, some[one.first] if one.first >= 0 else None)
            row |= {"length": one.length, "reason": one.reason or None}
            if one.complete and row["complete"]:
                row["payload"] = b"".join(contents[i][skip : skip + size] for i, skip, size in one.pieces)
            if not one.complete:
                row |= {"complete": False, "payload": None, "missing": str(one.fault or one.missing)}
            elif one.length > max_message:
                row = _large(row)
            if any(fields["MsgFlags"] & IN_GROUP for _, fields, _ in mine):
                row["last_in_group"] = any(fields["MsgFlags"] & 16 for _, fields, _ in mine)
                row["group_complete"] = verdict.complete
                row["group_missing"] = None if verdict.complete else str(verdict.fault or verdict.missing)
            found.append(row)
    return in_order(found)


def _segment(fields: dict[str, Any], data: bytes) -> Segment:
    names = ("MsgFlags", "Encoding", "CodedCharSetId")
    return Segment(fields["MsgSeqNumber"], fields["Offset"], len(data), *(fields[name] for name in names))


def _row(topic: str, mine: list[Any], duplicates: int, max_message: int, first: Any = None) -> dict[str, Any]:
    def offset(row: Any) -> int:
        return row[1]["Offset"] if row[1]["MsgFlags"] & SEGMENT else 0

    _, fields, data = first or min(mine, key=offset)
    row = {
        "time_ns": min(row[0] for row in mine),
        "last_ns": max(row[0] for row in mine),
        "topic": topic,
        "group_id": fields["GroupId"],
        "seq": fields["MsgSeqNumber"],
        "complete": True,
        "payload": data,
        "length": len(data),
        "format": fields["Format"].rstrip(" \0"),
        "encoding": fields["Encoding"],
        "ccsid": fields["CodedCharSetId"],
        "segments": len(mine) - duplicates,
        "duplicates": duplicates,
        "missing": None,
        "reason": None,
        "last_in_group": None,
        "group_complete": None,
        "group_missing": None,
    }
    return _large(row) if len(data) > max_message and len(mine) == 1 else row


def _large(row: dict[str, Any]) -> dict[str, Any]:
    missing = f"nothing, but its {row['length']} bytes are too large for a row"
    return row | {"complete": False, "payload": None, "reason": TOO_LARGE, "missing": missing}


def in_order(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of ``logical_messages`` as they can be compared; time is time_ns once more."""
    return sorted(({name: row[name] for name in row if name != "time"} for row in rows), key=repr)
