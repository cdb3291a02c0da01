"""The changes of a storage, for a follower."""

import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage.contract import Engine, Row
from headwater_host.hub.storage.records import (
    Change,
    Seen,
    change_size,
    message,
    message_size,
    unpack_ids,
)


class Some(NamedTuple):
    """Some changes in order. ``turn`` is the last change of the transaction that contains the last of ``changes``.

    A follower writes whole transactions. If there are no further changes, ``turn`` is the last of ``changes``.
    """

    changes: list[Change]
    turn: int


#: Called with the kind and the row of a message that is not what was written.
Damaged = Callable[[str, Row], None]


def changes(
    engine: Engine, name: Callable[[int], str], damaged: Damaged, after: int, limit: int, size: int
) -> Some:
    """Return at most ``limit`` changes after a sequence number, at least one if there are any.

    Their messages have about ``size`` bytes at most, unless one has more. ``name`` returns the name of a topic by its
    number. A removed message is only a "seen" id, or "retained"; so is a message that is not what was written.
    """
    # In one snapshot: a transaction that commits between the queries would leave gaps.
    return engine.consistently(lambda: read_changes(engine, name, damaged, after, limit, size))


def read_changes(
    engine: Engine, name: Callable[[int], str], damaged: Damaged, after: int, limit: int, size: int
) -> Some:
    """Return what ``changes`` returns. Only in a snapshot."""
    found: list[Change] = []
    end: int | None = after
    while not found and end is not None:
        found, end = _some(engine, name, damaged, end, limit, size)
    last = found[-1].seq if found else after
    turn = (engine.turn_after(last) or last) if end is not None else last
    if turn > last:
        # Leave out the begun transaction, if another one ends here: a follower would wait for the rest of it.
        ends = partial(_end, engine, turn)
        whole = bisect_right(found, last, key=ends)
        if whole:
            turn = ends(found[whole - 1])
            found = [change for change in found if change.seq <= turn]
    return Some(found, turn)


def _end(engine: Engine, otherwise: int, change: Change) -> int:
    """Return the last change of the transaction that made a change."""
    return engine.turn_after(change.seq) or otherwise


def _some(
    engine: Engine, name: Callable[[int], str], damaged: Damaged, after: int, limit: int, size: int
) -> tuple[list[Change], int | None]:
    """Return some changes, and the last change examined, or None if there are no further ones."""
    kept = engine.changes_after(after, limit, size)
    stored = engine.messages_after(after, limit, size)
    retained = engine.retained_after(after, limit, size)
    leaving = set(engine.leaving())
    seen: list[Seen] = []
    for body, crc in engine.ids_after(after):
        seen += (one for one in _unpacked(body, crc) if one[0] > after)
        if len(seen) >= limit:
            break
    # What is after the end of a full list is not known from that list.
    lists: list[tuple[Sequence[Row], Callable[[Row], int]]] = [
        (kept, change_size),
        (stored, message_size),
        (retained, message_size),
        (seen, lambda row: 0),
    ]
    ends = [some[-1][0] for some, size_of in lists if len(some) >= limit or sum(map(size_of, some)) >= size]
    end = min(ends) if ends else None
    found = {seq: Change(seq, kind, _values(seq, body)) for seq, kind, body in kept}
    # Topics that the follower does not have yet.
    fresh = {change.values[0]: change.values[1] for change in found.values() if change.kind == "register"}
    for kind, rows in (("message", stored), ("retained", retained)):
        for row in rows:
            if row[2] not in leaving and (end is None or row[0] <= end):
                made = message(row, "")
                if made is None:
                    damaged(kind, row)
                    continue
                made = made._replace(topic=fresh.get(row[2]) or name(row[2]))
                found.setdefault(row[0], Change(row[0], kind, (made,)))
    for seq, ident, time_ns in seen:
        found.setdefault(seq, Change(seq, "seen", (ident, time_ns)))
    seqs = [seq for seq in sorted(found) if end is None or seq <= end]
    if len(seqs) > limit:
        # No list is full, and together they are.
        seqs, end = seqs[:limit], seqs[limit - 1]
    return [found[seq] for seq in seqs], end


def _values(seq: int, body: str) -> tuple[Any, ...]:
    try:
        return tuple(json.loads(body))
    except (TypeError, ValueError, RecursionError) as error:
        raise StorageError(f"change {seq} of the hub's storage is not what was written") from error


def _unpacked(body: bytes, crc: int) -> list[Seen]:
    try:
        return unpack_ids(body, crc)
    except (TypeError, ValueError) as error:
        raise StorageError(f"{error}, in the hub's storage") from None
