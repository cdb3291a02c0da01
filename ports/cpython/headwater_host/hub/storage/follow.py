"""The changes of a storage, for a replica."""

import json

from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage.contract import Engine
from headwater_host.hub.storage.records import Change, Seen, message, unpack_ids


def changes(engine: Engine, names: dict[int, str], after: int, limit: int) -> list[Change]:
    """Return at most ``limit`` changes after a sequence number. A removed message is only a "seen" id."""
    # In one snapshot: a transaction that commits between the queries would leave gaps.
    with engine.snapshot():
        kept = engine.changes_after(after, limit)
        stored = engine.messages_after(after, limit)
        found = [Change(seq, kind, tuple(json.loads(body))) for seq, kind, body in kept]
        for row in stored:
            if row[2] not in names:
                continue  # its topic is gone
            one = message(row, names[row[2]])
            if one is None:
                raise StorageError(f"message {row[0]} of the hub's storage is not what was written")
            found.append(Change(one.seq, "message", (one,)))
        there = {change.seq for change in found}
        gone: list[Change] = []
        for body, crc in engine.ids_after(after):
            if len(gone) >= limit:
                break
            known = _unpacked(body, crc)
            gone += [
                Change(seq, "seen", (ident,)) for seq, ident, _ in known if seq > after and seq not in there
            ]
    return sorted(found + gone)[:limit]


def _unpacked(body: bytes, crc: int) -> list[Seen]:
    try:
        return unpack_ids(body, crc)
    except (TypeError, ValueError) as error:
        raise StorageError(f"{error}, in the hub's storage") from None
