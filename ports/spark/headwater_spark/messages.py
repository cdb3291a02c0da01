"""Received messages of one part of the log, and which of them are the same message.

``Messages`` are rows as the table ``messages`` has them, with what deciding needs beside. The rules:

- **By message id**, for FMQ. Rows are one message when type, process, thread and time of their ids are equal:
  ``origin`` and ``made_ns``. The first received stays. One with another payload is a conflict, not a copy.
- **By identity**, for MQTT. Rows whose payload has a board, boot and seq are one message when topic, board, boot and
  seq are equal. First and conflict as above.
- **By packet id**, for MQTT's rows without an identity. A PUBLISH with DUP repeats the PUBLISH before it with the
  same packet id from the same peer, when QoS, topic and payload are equal, and nothing says that the first
  one was finished: over the same connection a PUBACK (QoS 1) between them does; PUBREL or PUBCOMP (QoS 2)
  do over any. (MQTT 3.1.1, 4.3 and 4.4: over a new connection the PUBACK may have been lost, so DUP is
  believed.) QoS 0 without an identity is never a copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.mqtt.spec import PUBACK, PUBCOMP, PUBREL
from headwater_spark.arrow import Bools, Rows, codes, flags, null_codes, numbers, one, values
from headwater_spark.tables import MESSAGES

#: The columns of rows that are not settled yet: all of the table but ``copies``, and what only the rules
#: need.
COLUMNS: Any = pa.schema(
    [f for f in MESSAGES.arrow if f.name != "copies"]
    + [
        pa.field("position", pa.int64()),
        pa.field("dup", pa.bool_()),
        pa.field("packet_id", pa.int32()),
        pa.field("origin", pa.dictionary(pa.int32(), pa.string())),
        pa.field("made_ns", pa.int64()),
    ]
)


Name = tuple[str, str, int]


class Key(NamedTuple):
    """What a packet id is unique for, in one direction."""

    peer: str
    packet_id: int


#: Acknowledgements that may end the exchange of a received message: PUBACK and PUBCOMP that were sent,
#: PUBREL that was received.
ACKS: Any = pa.schema(
    [
        COLUMNS.field("position"),
        pa.field("kind", pa.int16()),
        COLUMNS.field("peer"),
        COLUMNS.field("packet_id"),
        COLUMNS.field("connection"),
    ]
)


@dataclass
class Settled:
    """What became of each row: kept, with how many frames it came in; a conflict; or else a copy.

    Or it is settled elsewhere.
    """

    keep: Bools
    copies: npt.NDArray[np.int32]
    conflict: Bools
    elsewhere: Bools
    #: Packet ids of repetitions whose first PUBLISH is not in these rows.
    unresolved: set[Key] = field(default_factory=set)


class Groups:
    """The rows with an identity that are settled here, by (topic, board, boot) or origin, in order of ``seq``.

    ``seq`` is made_ns for an origin's: what grows from message to message.
    """

    def __init__(self, table: Any, elsewhere: Bools):
        board, origin = codes(table["board"]), codes(table["origin"])
        of_origin = origin >= 0
        self.rows: Rows = np.flatnonzero(((board >= 0) | of_origin) & ~elsewhere)
        topic = codes(table["topic"])[self.rows]
        boots = one(table["boot"]).dictionary_encode()
        boot = codes(boots)[self.rows]
        self.topics = values(table["topic"])
        self.boards = values(table["board"])
        self.boots: list[int] = boots.dictionary.to_pylist()
        self.origins = values(table["origin"])
        group = (topic * np.int64(len(self.boards)) + board[self.rows]) * len(self.boots) + boot
        seq = numbers(table["seq"])[self.rows]
        #: Groups of origins are numbered behind the others.
        self.first_origin = len(self.topics) * len(self.boards) * len(self.boots)
        if len(self.origins):
            mine = of_origin[self.rows]
            group = np.where(mine, self.first_origin + origin[self.rows].astype(np.int64), group)
            seq = np.where(mine, numbers(table["made_ns"])[self.rows], seq)
        size = self.first_origin + len(self.origins)
        # Sorting 16-bit numbers is linear; a board's messages mostly come in the order of seq.
        order = np.argsort(group.astype(np.uint16) if size <= 0x10000 else group, kind="stable")
        if not _rises(group[order], seq[order]):
            order = np.lexsort((seq, group))
        self.rows = self.rows[order]
        self.group = group[order]
        self.seq = seq[order]

    def name(self, group: int) -> Name:
        """(topic, board, boot) of a group's number; of an origin ("", origin, 0): no topic is empty."""
        if group >= self.first_origin:
            return "", self.origins[group - self.first_origin], 0
        rest, boot = divmod(group, len(self.boots))
        topic, board = divmod(rest, len(self.boards))
        return self.topics[topic], self.boards[board], self.boots[boot]

    def parts(self) -> Iterable[tuple[Name, slice]]:
        """The name of each group and where it stands in ``rows`` and ``seq``."""
        if not len(self.group):
            return
        edges = np.flatnonzero(np.diff(self.group)) + 1
        bounds = [0, *edges.tolist(), len(self.group)]
        for start, end in pairwise(bounds):
            yield self.name(int(self.group[start])), slice(start, end)


def _rises(group: Rows, seq: Rows) -> bool:
    return bool(np.all((seq[1:] >= seq[:-1]) | (group[1:] != group[:-1])))


def in_order(batches: Iterable[Any], schema: Any) -> Any:
    """Record batches as one table of one chunk; columns that one lacks are null there."""
    batches = list(batches)
    lacking = {name for batch in batches for name in schema.names if name not in batch.schema.names}
    # Those that all lack are made once.
    there = pa.schema([f for f in schema if any(f.name in batch.schema.names for batch in batches)])
    if lacking:
        batches = [_completed(batch, there) for batch in batches]
    table = pa.Table.from_batches(batches, there if batches else schema)
    table = table.unify_dictionaries().combine_chunks()
    if table.schema.names == schema.names:
        return table
    columns = {f.name: _nulls(table.num_rows, f.type) for f in schema if f.name not in there.names}
    columns |= {name: table[name] for name in there.names}
    return pa.table([columns[name] for name in schema.names], schema)


def _completed(batch: Any, schema: Any) -> Any:
    names = batch.schema.names
    n = batch.num_rows
    return pa.record_batch(
        [batch[f.name] if f.name in names else _nulls(n, f.type) for f in schema], schema=schema
    )


def _nulls(n: int, type_: Any) -> Any:
    return null_codes(n) if pa.types.is_dictionary(type_) else pa.nulls(n, type_)


def settle(table: Any, groups: Groups, acks: Any, elsewhere: Bools) -> Settled:
    """Apply the rules to rows of COLUMNS, in the order of the log.

    ``groups`` are theirs and ``acks`` (ACKS) those between them. Rows ``elsewhere`` are not to be settled
    here: they only show how packet ids were used.
    """
    n = table.num_rows
    settled = Settled(~elsewhere, np.ones(n, np.int32), np.zeros(n, np.bool_), elsewhere)
    _by_identity(table, groups, settled)
    _by_packet_id(table, acks, settled)
    return settled


def _by_identity(table: Any, groups: Groups, settled: Settled) -> None:
    same = (groups.group[1:] == groups.group[:-1]) & (groups.seq[1:] == groups.seq[:-1])
    if not same.any():
        return
    # Only the rows that are not alone, by message, then by receipt.
    member = np.append(same, False) | np.append(False, same)
    message = np.cumsum(np.append(True, ~same))[member]
    rows = groups.rows[member]
    order = np.lexsort((numbers(table["position"])[rows], numbers(table["time_ns"])[rows], message))
    rows, message = rows[order], message[order]
    is_first = np.append(True, message[1:] != message[:-1])
    first = rows[is_first][np.cumsum(is_first) - 1]
    payload = one(table["payload"])
    equal = pc.equal(payload.take(pa.array(rows)), payload.take(pa.array(first))).to_numpy(
        zero_copy_only=False
    )
    settled.keep[rows[~is_first]] = False
    settled.conflict[rows[~equal]] = True
    np.add.at(settled.copies, first[~is_first & equal], 1)


class PacketIds:
    """The (peer, packet id) of each row, as one number."""

    def __init__(self, table: Any):
        self.peers = values(table["peer"])
        self.number: Rows = codes(table["peer"]).astype(np.int64) << 16 | numbers(table["packet_id"])

    def key(self, number: int) -> Key:
        """What a number stands for."""
        return Key(self.peers[number >> 16], number & 0xFFFF)

    def among(self, keys: Iterable[Key]) -> Bools:
        """The rows with one of the keys."""
        place = {peer: i for i, peer in enumerate(self.peers)}
        wanted = [place[key.peer] << 16 | key.packet_id for key in keys if key.peer in place]
        return np.isin(self.number, wanted)


@dataclass
class _Open:
    """The last PUBLISH with some packet id; ``first`` is the row that it repeats, or its own."""

    row: int
    first: int
    connection: int
    qos: int
    acknowledged: bool = False
    released: bool = False

    def open_to(self, qos: int, connection: int) -> bool:
        """Whether a repetition at this QoS, over this connection, can be of this message."""
        done = self.released or (self.acknowledged and self.connection == connection)
        return self.qos == qos and not done


def _by_packet_id(table: Any, acks: Any, settled: Settled) -> None:
    qos, plain = numbers(table["qos"]), (codes(table["board"]) < 0) & (codes(table["origin"]) < 0)
    repeats = flags(table["dup"]) & plain & (qos > 0) & ~settled.elsewhere
    if not repeats.any():
        return
    ids, ack_ids = PacketIds(table), PacketIds(acks)
    numbers_ = ids.number
    rows = np.flatnonzero((qos > 0) & np.isin(numbers_, np.unique(numbers_[repeats])))
    keys = {number: ids.key(number) for number in np.unique(numbers_[rows]).tolist()}
    position, connection = numbers(table["position"]), numbers(table["connection"])
    topic, payload = codes(table["topic"]), one(table["payload"])
    ends = np.flatnonzero(ack_ids.among(keys.values()))
    ack_position, ack_kind, ack_connection = (
        numbers(acks[name]) for name in ("position", "kind", "connection")
    )
    events = [(int(position[row]), True, row) for row in rows.tolist()]
    events += ((int(ack_position[row]), False, row) for row in ends.tolist())
    last: dict[Key, _Open] = {}
    for _, is_publish, row in sorted(events):
        if not is_publish:
            _end(
                last.get(ack_ids.key(int(ack_ids.number[row]))), int(ack_kind[row]), int(ack_connection[row])
            )
            continue
        key = keys[int(numbers_[row])]
        before = last.get(key)
        if before is None and repeats[row]:
            settled.unresolved.add(key)
        if (
            before is not None
            and repeats[row]
            and before.open_to(int(qos[row]), int(connection[row]))
            and topic[before.row] == topic[row]
            and payload[before.row] == payload[row]
        ):
            settled.keep[row] = False
            settled.copies[before.first] += 1
            last[key] = _Open(row, before.first, int(connection[row]), before.qos)
        else:
            # One with an identity ends what was before it as well; its payload is never that of one without.
            last[key] = _Open(row, row, int(connection[row]), int(qos[row]))


def _end(before: _Open | None, kind: int, connection: int) -> None:
    if before is None:
        return
    if kind == PUBACK:
        before.acknowledged |= before.qos == 1 and connection == before.connection
    elif kind in (PUBREL, PUBCOMP):
        before.released |= before.qos == 2
