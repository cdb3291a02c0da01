"""Copy a whole storage into an empty one, of the same engine or another.

Sequence numbers stay. The log of changes is not copied: a follower that has everything continues, others need a
snapshot. Until the copy is complete, the counter ``copying`` keeps hubs from using it.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage import restore
from headwater_host.hub.storage.contract import Engine, Row, Transaction
from headwater_host.hub.storage.records import TABLES, Message, Seen, encoded, message, stored_row, unpack_ids
from headwater_host.hub.storage.sqlite import SqliteEngine

#: Counters that a copy does not get: those of one hub, and of a copy.
_OWN = frozenset({"fence", "leads", "deposed", "copying"})
#: Rows, and bytes of messages, that are written at once.
_AT_ONCE = 10_000
_BYTES = 4 << 20


class Copied(NamedTuple):
    """The last change, and the number of messages."""

    last: int
    messages: int


def copy(source: Engine, target: Engine) -> Copied:
    """Copy everything in one snapshot of ``source``. Raises StorageError, also if ``target`` is not empty."""
    with target.snapshot():
        empty = _is_empty(target)
    if not empty:
        raise StorageError(f"the storage {target.name} is not empty: give an empty one")
    writer = _Writer(target)
    with source.snapshot():
        last = source.last()
        if not last:
            raise StorageError(f"the storage {source.name} is empty: there is nothing to copy")
        writer.write(last, statements=[_counter("copying", 1)])
        # The storage's last change has to be found in one of its tables.
        writer.write(last, changes=source.changes_after(last - 1, 1, 1))
        names = {number: name for number, name, _ in restore.rows(source, "register")}
        messages = 0
        for some in _messages(source, names):
            messages += len(some)
            writer.write(some[-1][0].seq, messages=some)
        for row in source.retained():
            writer.write(last, retained={row[2]: row})
        for seen in _pieces(_ids(source)):
            writer.write(last, seen=seen)
        for statements in _pieces(_statements(source)):
            writer.write(last, statements=statements)
        writer.write(last, statements=[_counter("followed", last), _counter("copying", 0)])
    return Copied(last, messages)


def copy_to_file(source: Engine, path: str) -> Copied:
    """Copy a storage into a new file, which is complete when this returns. Raises StorageError."""
    target = SqliteEngine.open(path)
    try:
        return copy(source, target)
    finally:
        target.close()


def _is_empty(engine: Engine) -> bool:
    return engine.last() == 0 and all(next(engine.rows(table), None) is None for table, _ in TABLES.values())


class _Writer:
    """Writes transactions, one after the other."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._turn = engine.lead(None)

    def write(
        self,
        last: int,
        messages: list[tuple[Message, int]] | None = None,
        seen: list[Seen] | None = None,
        retained: dict[int, Row | None] | None = None,
        statements: list[tuple[str, Row]] | None = None,
        changes: list[tuple[int, str, str]] | None = None,
    ) -> None:
        self._turn += 1
        stored, topics = zip(*messages, strict=True) if messages else ((), ())
        self._engine.write(
            Transaction(
                self._turn,
                last,
                stored,
                topics,
                seen or [],
                retained or {},
                statements or [],
                changes or [],
                [],
            )
        )


def _messages(source: Engine, names: dict[int, str]) -> Iterator[list[tuple[Message, int]]]:
    """Yield the messages with their topics' numbers, some at once. Those of deleted topics are left out."""
    last = 0
    while some := source.messages_after(last, _AT_ONCE, _BYTES):
        last = some[-1][0]
        found: list[tuple[Message, int]] = []
        for row in some:
            if row[2] in names:
                one = message(row, names[row[2]])
                if one is None:
                    raise source.damaged(f"message {row[0]} is not what was written")
                found.append((one, row[2]))
        if found:
            yield found


def _ids(source: Engine) -> Iterator[Seen]:
    for body, crc in source.ids_after(0):
        try:
            yield from unpack_ids(body, crc)
        except (TypeError, ValueError) as error:
            raise source.damaged(str(error)) from None


def _statements(source: Engine) -> Iterator[tuple[str, Row]]:
    for kind in TABLES:
        for values in restore.rows(source, kind):
            if kind != "counter" or values[0] not in _OWN:
                yield kind, stored_row(kind, values, encoded(values))


def _counter(name: str, value: int) -> tuple[str, Row]:
    return "counter", stored_row("counter", (name, value), encoded((name, value)))


def _pieces(rows: Iterator[Any]) -> Iterator[list[Any]]:
    while some := list(islice(rows, _AT_ONCE)):
        yield some
