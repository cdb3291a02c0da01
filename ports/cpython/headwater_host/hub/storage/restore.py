"""Reads a storage into memory, row by row. A row that is not what was written raises StorageError."""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from headwater_host.hub.storage.contract import Engine, Row
from headwater_host.hub.storage.positions import Positions
from headwater_host.hub.storage.queues import Queue
from headwater_host.hub.storage.records import (
    OVERHEAD,
    TABLES,
    Message,
    Seen,
    checksum,
    encoded,
    message,
    unpack_ids,
)
from headwater_host.hub.storage.removal import Removal
from headwater_host.hub.storage.sessions import Sessions
from headwater_host.hub.storage.topic import Topics


def rows(engine: Engine, kind: str) -> Iterator[Row]:
    """Yield the values of each change of a kind that still holds."""
    table, as_json = TABLES[kind]
    for row in engine.rows(table):
        values: list[Any] = list(row[:-1])
        try:
            for n in as_json:
                values[n] = json.loads(values[n])
            right = row[-1] == checksum(encoded(tuple(values)))
        except (TypeError, ValueError, RecursionError):
            right = False
        if not right:
            raise engine.damaged(f"a row of {table} is not what was written")
        yield tuple(values)


class Some(NamedTuple):
    """Some messages of a queue, in order: their sequence numbers, sizes and times."""

    topic: int
    queue: int
    seqs: Sequence[int]
    sizes: Sequence[int]
    times: Sequence[int]


def index(engine: Engine) -> Iterator[Some]:
    """Yield all messages, oldest first in each queue, many at once and without payloads: there may be millions."""
    place = itemgetter(0, 1)
    for piece in engine.index():
        piece.sort(key=place)
        for (topic, queue), some in groupby(piece, place):
            _, _, seqs, sizes, times = zip(*some, strict=True)
            yield Some(topic, queue, seqs, [size + OVERHEAD for size in sizes], times)


def state(
    engine: Engine,
    renewed: tuple[int, int],
    topics: Topics,
    positions: Positions,
    removal: Removal,
    sessions: Sessions,
) -> dict[int, str]:
    """Fill all of these; return the names of the topics by number. ``renewed``: see ``Counters``."""
    last, at = renewed
    names: dict[int, str] = {}
    for number, name, queues in rows(engine, "register"):
        names[number] = name
        topics.restore(number, name, queues)
    try:
        leaving: dict[int, list[Queue]] = {number: [] for number in engine.leaving()}
        if not leaving.keys().isdisjoint(names):
            raise LookupError("a topic that is gone is there")
        for number, queue, seqs, sizes, times in index(engine):
            if number in leaving:
                # Each piece as a queue of its own: those of several are not in order.
                leaving[number].append(Queue())
                leaving[number][-1].extend(seqs, sizes, times)
                continue
            if seqs[0] <= last:
                times = [one if seq > last else at for seq, one in zip(seqs, times, strict=True)]
            topics.extend(topics[names[number]], queue, seqs, sizes, times)
        for number, rest in leaving.items():
            removal.mark_topic(number, rest)
        opened: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
        for group, number, queue, seq, tries in rows(engine, "open"):
            opened.setdefault((group, number, queue), []).append((seq, tries))
        for group, number, queue, through in rows(engine, "position"):
            found = opened.pop((group, number, queue), ())
            positions.restore(topics[names[number]], queue, group, through, found)
        if opened:
            raise LookupError("messages of groups that are not there")
        for kind in ("client", "session", "subscribe", "hold", "will"):
            for values in rows(engine, kind):
                sessions.restore(kind, values)
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise engine.damaged(f"its tables do not fit together: {error!r}") from error
    return names


def retained(engine: Engine, names: dict[int, str]) -> Iterator[Message]:
    """Yield the retained messages; ``names`` are the topics' by number."""
    for row in engine.retained():
        found = message(row, names[row[2]]) if row[2] in names else None
        if found is None:
            raise engine.damaged("a retained message is not what was written")
        yield found


def ids(engine: Engine, most: int) -> list[Seen]:
    """Return the newest remembered message ids up to a limit, oldest first."""
    found: list[list[Seen]] = []
    count = 0
    for body, crc in engine.ids():
        if count >= most:
            break
        try:
            found.append(unpack_ids(body, crc))
        except (TypeError, ValueError) as error:
            raise engine.damaged(str(error)) from None
        count += len(found[-1])
    return [one for some in reversed(found) for one in some][max(0, count - most) :]
