"""Export the whole state of a storage as canonical text: equal states give equal bytes.

Each line is a JSON array: the kind of row, then its values, bytes in hexadecimal. Rows are in the order of their keys.
What belongs to one storage instead of the hub's state is left out: its age time, its log of changes and how far that
reaches, its fence, its row ``leader``, and messages of deleted topics that have not been removed yet.
"""

from collections.abc import Iterator
from typing import Any

from headwater_host.hub.storage import restore
from headwater_host.hub.storage.contract import Engine, Row
from headwater_host.hub.storage.records import TABLES, encoded, unpack_ids

#: Counters that are no part of the hub's state.
LOCAL = frozenset({"age", "renewed", "followed", "fence", "leads", "copying", "deposed"})
#: Messages, and bytes of them, that are read at once.
_AT_ONCE = 1000
_BYTES = 1 << 20


def export(engine: Engine) -> Iterator[str]:
    """Yield the lines of a storage, from one snapshot. Raises StorageError when a row is not what was written."""
    with engine.snapshot():
        for kind in TABLES:
            found = (row for row in restore.rows(engine, kind) if kind != "counter" or row[0] not in LOCAL)
            yield from sorted(encoded((kind, *row)) for row in found)
        leaving = set(engine.leaving())
        yield from (_line("message", row) for row in _messages(engine) if row[2] not in leaving)
        yield from (_line("retained", row) for row in sorted(engine.retained()))
        counters = dict[str, Any](restore.rows(engine, "counter"))
        forgotten = counters.get("forgotten", 0)
        for body, crc in engine.ids_after(forgotten):
            for seq, ident, time_ns in unpack_ids(body, crc):
                if seq > forgotten:
                    yield encoded(("seen", seq, ident.hex(), time_ns))


def _messages(engine: Engine) -> Iterator[Row]:
    last = 0
    while some := engine.messages_after(last, _AT_ONCE, _BYTES):
        yield from some
        last = some[-1][0]


def _line(kind: str, row: Row) -> str:
    seq, ident, topic, queue, flags, time_ns, tags, payload, _ = row
    return encoded((kind, seq, ident.hex(), topic, queue, flags, time_ns, tags, payload.hex()))
