"""The history of a hub's state: which leaders have written it, and whether one state continues another.

Each time a hub begins to lead, it adds a start: the epoch, a random id, and the last change that it has. A promotion
begins an epoch; a restart, or a takeover in a cluster, continues one. The list of starts is a change itself (counter
``lineage``), so slaves have it exactly as far as they have the rest. Two histories with a start in common are equal up
to it, also if a leader's storage was restored from a backup afterwards.
"""

import json
import os
from collections.abc import Sequence
from typing import NamedTuple

from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage.records import encoded

#: Starts that are kept. A slave without any of them needs an empty storage.
KEPT = 200


class Start(NamedTuple):
    """A start: the number of its epoch, its random id, and the last change before it."""

    epoch: int
    ident: str
    after: int


class Lineage(tuple[Start, ...]):
    """The starts, oldest first. Empty: no hub has led this state yet."""

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
        """The id of the last start."""
        return self[-1].ident if self else ""

    def followed_by(self, epoch: int, ident: str, after: int) -> "Lineage":
        """Return this history with another start."""
        return Lineage((*self[1 - KEPT :], Start(epoch, ident, after)))

    def began(self, epoch: int, ident: str) -> bool:
        """Return whether this history has the start with an id."""
        return any((start.epoch, start.ident) == (epoch, ident) for start in self)

    def fork(self, slave: Sequence[Start], seq: int) -> int | None:
        """Return the last change that this leader's history shares with a slave's that ends at the change ``seq``.

        Equal to ``seq``: the slave continues with the next change. Less: the slave has changes after it that the leader
        does not have. None: the histories have nothing in common, except when the slave is empty.
        """
        if not slave:
            return 0 if seq == 0 else None
        shared = [start for start in slave if start in self]
        if not shared:
            return None
        # Each history may have gone on differently after the last shared start.
        ends = (history[history.index(shared[-1]) + 1 :] for history in (self, slave))
        return min([seq, *(rest[0].after for rest in ends if rest)])


def new_ident() -> str:
    """Return a random id for an epoch."""
    return os.urandom(8).hex()
