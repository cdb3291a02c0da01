"""The contract between the store and its database engines, ``sqlite`` and ``postgres``; no SQL here.

An engine holds the tables of ``records.TABLES``, the messages, the retained messages, the remembered ids, the changes
for followers with the last change of each transaction (``turns``), and one row ``leader``: epoch, turn, lineage. The
**turn** counts the transactions of an epoch. Each transaction first moves it from k - 1 to k in its own epoch. So a
transaction is written once and in order, nothing is written after another hub began a new epoch, and the row tells
what became of a COMMIT whose reply was lost.

The kinds of statements are those of changes (``counter``, ``register``, ``unregister``, ``position``, ``open``,
``close``, ``detach``, ``client``, ``forget``, ``session``, ``end``, ``subscribe``, ``unsubscribe``, ``hold``,
``release``, ``will``, ``unwill``), and three that are no change, since a follower tidies up by itself: ``forget_ids``,
``forget_changes`` and ``left``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage.records import Message, Seen

#: The values of a row, in the order of its columns.
Row = tuple[Any, ...]
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Transaction:
    """Everything that one turn of the event loop changed. ``number``: its turn. ``last``: its last change."""

    number: int
    last: int
    messages: Sequence[Message]
    #: The number of each message's topic.
    topics: Sequence[int]
    seen: Sequence[Seen]
    #: By number of topic: a row of ``records.row``, or None to clear.
    retained: Mapping[int, Row | None]
    #: Kind, and its values as ``records.stored_row`` returns them, in the order of writing.
    statements: Sequence[tuple[str, Row]]
    #: Sequence number, kind and values as JSON, for followers.
    changes: Sequence[tuple[int, str, str]]
    #: The sequence numbers of messages to remove.
    gone: Sequence[int]


class Leader(NamedTuple):
    """The row ``leader``."""

    epoch: int
    turn: int
    #: A random name of the history that the storage holds.
    lineage: str


class Mark(NamedTuple):
    """The state of a storage that several hubs share, as a follower compares it with its own."""

    #: The epoch of the transaction that made the follower's last change, 0 if there is no such transaction.
    epoch: int
    #: The last change of the last transaction.
    last: int
    #: The last change that is not kept for followers any more.
    forgotten: int


class Engine(Protocol):
    """A database. ``write`` is called in one thread, everything else in the event loop's.

    All calls raise StorageError: try again. ``write`` and ``lead`` raise FencedError: another hub leads.
    """

    #: What errors and logs call the storage, without a password.
    name: str

    def leader(self) -> Leader:
        """Return the row ``leader`` as others see it."""
        ...

    def lead(self, epoch: int | None) -> int:
        """Begin to write in an epoch and return its turn. None: the engine makes sure that no other hub writes.

        What the storage held before counts as committed afterwards: the call makes a synchronous write of its own.
        """
        ...

    def write(self, transaction: Transaction) -> None:
        """Write a transaction, or nothing. It is durable afterwards.

        After an error the same transaction may be written again; an engine that does not know whether it committed
        reads the row ``leader`` first.
        """
        ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Have all reads in the context see one state of the storage."""
        ...

    def consistently(self, read: Callable[[], _Result]) -> _Result:
        """Return the result of reads in one snapshot. The event loop waits for it for a bounded time."""
        ...

    def last(self) -> int:
        """Return the sequence number of the last change."""
        ...

    def rows(self, table: str) -> Iterator[Row]:
        """Yield the rows of one of ``records.TABLES``, the checksum last."""
        ...

    def leaving(self) -> list[int]:
        """Return the numbers of deleted topics that have messages left."""
        ...

    def index(self) -> Iterator[list[tuple[int, int, int, int, int]]]:
        """Yield all messages by sequence number, many at once and without payloads: topic, queue, sequence number,
        bytes of payload, id and tags, time."""
        ...

    def retained(self) -> Iterator[Row]:
        """Yield the retained messages as rows of ``records.row``."""
        ...

    def ids(self) -> Iterator[tuple[bytes, int]]:
        """Yield the remembered ids as rows of ``records.pack_ids`` without the sequence number, newest first."""
        ...

    def read(self, seqs: Sequence[int]) -> list[Row]:
        """Return those of these messages that are there, as rows of ``records.row``, in any order."""
        ...

    def changes_after(self, seq: int, limit: int, size: int) -> list[tuple[int, str, str]]:
        """Return the first changes after a sequence number: their own, kind, values as JSON.

        At most ``limit``, and none after those that have ``size`` bytes or more (``change_size``, ``message_size``).
        """
        ...

    def messages_after(self, seq: int, limit: int, size: int) -> list[Row]:
        """Return the first messages after a sequence number. ``size``: as in ``changes_after``."""
        ...

    def retained_after(self, seq: int, limit: int, size: int) -> list[Row]:
        """Return the first retained messages after a sequence number, in its order, as ``messages_after``."""
        ...

    def ids_after(self, seq: int) -> Iterable[tuple[bytes, int]]:
        """Yield the remembered ids as ``ids`` does, those after a sequence number and more, oldest first."""
        ...

    def turn_after(self, seq: int) -> int | None:
        """Return the last change of the transaction that made a change, if it is kept."""
        ...

    def mark(self, seq: int) -> Mark:
        """Return the state of the storage, for a follower whose last change is ``seq``."""
        ...

    def damaged(self, what: str) -> StorageError:
        """Return the error for a storage that does not hold what was written."""
        ...

    def abort(self) -> None:
        """Let what waits for a server fail, in any thread. Nothing is written afterwards.

        Without a server it does nothing: a write ends when the disk allows it.
        """
        ...

    def close(self) -> None:
        """Release the storage. May be called twice."""
        ...
