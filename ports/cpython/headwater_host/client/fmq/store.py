"""The SQLite outbox of FMQ, which also stores message ids.

That is the process number that the hub assigned, and a time that no id has reached yet.
"""

import sqlite3
import zlib
from os import PathLike
from typing import Any

from headwater.fmq.frames import NO_TAGS
from headwater_host.client.outbox import OUTBOX_LIMIT
from headwater_host.client.store import KeepsOver, SqliteOutbox
from headwater_host.client.store_file import damaged

_IDS = """
CREATE TABLE IF NOT EXISTS ids (id INTEGER PRIMARY KEY CHECK (id = 0), process BLOB, ceiling INTEGER, crc INTEGER)
"""
_SIZE = 1 << 16


class FmqOutbox(SqliteOutbox):
    """``SqliteOutbox`` of FMQ frames."""

    PROTOCOLS = ("fmq",)

    def __init__(
        self,
        path: "str | PathLike[str]",
        identifier: str,
        *,
        slots: int = 1024,
        keeps_over: KeepsOver = "power",
        size: int = _SIZE,
        limit: int = OUTBOX_LIMIT,
    ):
        #: The process number, little-endian, empty before it is known; nanoseconds since 1970, above those of every id.
        self.process = b""
        self.ceiling = 0
        super().__init__(
            path, identifier, protocol="fmq", slots=slots, keeps_over=keeps_over, size=size, limit=limit
        )

    def keep_ids(self, process: bytes, ceiling: int) -> int:
        """Store both with the next commit: 0, or E_STORE."""
        self.process = process
        self.ceiling = ceiling
        return self.commits.execute(*self._ids())

    def _ids(self) -> tuple[str, tuple[object, ...]]:
        row = (self.process, self.ceiling)
        return "INSERT OR REPLACE INTO ids VALUES (0, ?, ?, ?)", (*row, _crc(*row))

    def _load_more(self, db: sqlite3.Connection) -> None:
        db.execute(_IDS)
        for process, ceiling, crc in db.execute("SELECT process, ceiling, crc FROM ids"):
            if (
                not isinstance(process, bytes)
                or not isinstance(ceiling, int)
                or crc != _crc(process, ceiling)
            ):
                raise damaged(self.path, "the parts of message ids are not what was written")
            self.process = process
            self.ceiling = ceiling

    def _write_more(self, db: sqlite3.Connection) -> None:
        db.execute(*self._ids())

    def pack(self, more: Any) -> bytes:
        """Encode the tags of a message."""
        return bytes(more or NO_TAGS)

    def unpack(self, block: bytes) -> Any:
        """Decode the tags of a message."""
        return block if block != NO_TAGS else b""


def _crc(process: bytes, ceiling: int) -> int:
    return zlib.crc32(process, zlib.crc32(str(ceiling).encode()))
