"""The identity of a capture log: 32 hexadecimal digits that stay the same for the life of the log and of its copies.

The file ``log-id`` contains it. A log that an earlier version wrote has no such file until a writer opens it. Its id
is derived from the random name of its first segment, which the manifest keeps when the segment is removed.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from headwater_host.capture.filesystem import Folder, Location, Storage, folder
from headwater_host.capture.manifest import Listing, list_log
from headwater_host.capture.problem import BAD, Problem
from headwater_host.private import replace_file, restrict

NAME = "log-id"
_ID = re.compile(rb"[0-9a-f]{32}\n")
_BYTES = 16


class LogIdError(ValueError):
    """A log's id is damaged, or it has none yet."""


def log_id(directory: Location, storage: Storage = ()) -> str:
    """Return the id of the log in ``directory``, a path or URI.

    Raises LogIdError if the id is damaged or the log is an empty one of an earlier version; FileNotFoundError or
    NotADirectoryError without a log.
    """
    log = folder(directory, storage)
    found = _stored(log)
    if found is None:
        found = _derived(list_log(directory, storage))
    if found is None:
        raise LogIdError(f"the log in {log.location} is empty and has no id yet: start its gateway once")
    return found


def ensure_log_id(directory: Path, listing: Listing, *, group_readable: bool = False) -> Iterator[Problem]:
    """Store the id of a log that this process has open for writing, unless it has one.

    Yields a problem if the id is damaged: recording goes on, and readers that need the id report it. Raises OSError if
    it cannot be read or written.
    """
    try:
        if _stored(folder(directory)) is None:
            found = _derived(listing) or secrets.token_hex(_BYTES)
            replace_file(
                directory / NAME, found.encode() + b"\n", group_readable=group_readable, durable=True
            )
        else:
            restrict(directory / NAME, group_readable=group_readable)
    except LogIdError as error:
        yield Problem(BAD, NAME, 0, 0, str(error))


def _stored(log: Folder) -> str | None:
    try:
        data = log.read(NAME)
    except FileNotFoundError:
        return None
    if not _ID.fullmatch(data):
        raise LogIdError(
            f"{log.locate(NAME)} is damaged: restore its 32 hexadecimal digits, or remove it to begin a new id"
        )
    return data[:-1].decode()


def _derived(listing: Listing) -> str | None:
    names = [*listing.manifest.entries, *(segment.name for segment in listing.segments)]
    return blake2b(min(names).encode(), digest_size=_BYTES).hexdigest() if names else None
