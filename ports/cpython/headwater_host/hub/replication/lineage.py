"""The history of a hub's state: which leaders have written it, and whether one state continues another.

Each promotion begins an epoch with a random id, at the last change that the new leader had. The list of these is a
change itself (counter ``lineage``), so slaves have it exactly as far as they have the rest.
"""

import json
import os
from collections.abc import Sequence
from typing import NamedTuple

from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage.records import encoded


class Start(NamedTuple):
    """The start of an epoch: its number, its random id, and the last change before it."""

    epoch: int
    ident: str
    after: int


class Lineage(tuple[Start, ...]):
    """The starts of all epochs, oldest first. Empty: no hub has led this state yet."""

    @classmethod
    def parse(cls, text: str) -> "Lineage":
        """Return the lineage that ``text`` says. Raises StorageError."""
        try:
            found = json.loads(text) if text else []
            return cls(Start(int(epoch), str(ident), int(after)) for epoch, ident, after in found)
        except (TypeError, ValueError) as error:
            raise StorageError(f"{text!r} is no lineage") from error

    def text(self) -> str:
        """Return the text for ``parse``."""
        return encoded([list(start) for start in self])

    @property
    def epoch(self) -> int:
        """The number of the last epoch, 0 for none."""
        return self[-1].epoch if self else 0

    @property
    def ident(self) -> str:
        """The id of the last epoch."""
        return self[-1].ident if self else ""

    def followed_by(self, epoch: int, ident: str, after: int) -> "Lineage":
        """Return this history with another epoch."""
        return Lineage((*self, Start(epoch, ident, after)))

    def fork(self, slave: Sequence[Start], seq: int) -> int | None:
        """Return the last change that this leader's history shares with a slave's that ends at the change ``seq``.

        Equal to ``seq``: the slave continues with the next change. Less: the slave has changes after it that the leader
        does not have. None: the histories have nothing in common, except when the slave is empty.
        """
        if not slave:
            return 0 if seq == 0 else None
        shared = 0
        for ours, theirs in zip(self, slave, strict=False):
            if ours != theirs:
                break
            shared += 1
        if not shared:
            return None
        # Each history may have gone on differently after the last shared start.
        ends = [history[shared].after for history in (self, slave) if len(history) > shared]
        return min([seq, *ends])


def new_ident() -> str:
    """Return a random id for an epoch."""
    return os.urandom(8).hex()
