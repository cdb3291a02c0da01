"""Outcomes of an assembler: complete messages, complete groups, problems.

Contents are readable until the next call of the assembler.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from headwater_host.mq.errors import REASONS
from headwater_host.mq.reassembly.logical import NOTHING, Missing

_T = TypeVar("_T")


class Writable(Protocol):
    """A file for the bytes of a message."""

    def write(self, data: bytes, /) -> object:
        """Write all of the bytes."""


class GoneError(RuntimeError):
    """The assembler was called before the content was read."""


class Lease:
    """Tells whether outcomes are still readable."""

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over = False

    def each(self, items: "Callable[[], Iterator[_T]]") -> "Iterator[_T]":
        """Yield items while they are readable. Raises GoneError."""
        self._check()
        for item in items():
            yield item
            self._check()

    def _check(self) -> None:
        if self.over:
            raise GoneError("read the outcomes of an assembler before its next call")


class Whole:
    """A logical message. Format (with its blanks), Encoding and CodedCharSetId describe its content.

    ``group_id`` and ``seq`` are those of its MQMDE, NULs and 1 without one. ``flags`` are those of all its segments.
    ``length`` is in bytes.
    """

    __slots__ = (
        "_chunks",
        "_lease",
        "ccsid",
        "encoding",
        "flags",
        "format",
        "group_id",
        "length",
        "seq",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        group_id: bytes,
        seq: int,
        flags: int,
        length: int,
        described: tuple[str, int, int],
        chunks: "Callable[[], Iterator[bytes]]",
        lease: Lease,
    ):
        self.topic = topic
        self.group_id = group_id
        self.seq = seq
        self.flags = flags
        self.length = length
        self.format, self.encoding, self.ccsid = described
        self._chunks = chunks
        self._lease = lease

    def chunks(self) -> Iterator[bytes]:
        """Return the content in pieces of the size of the segments. Raises GoneError."""
        return self._lease.each(self._chunks)

    def read(self) -> bytes:
        """Return the content. Raises GoneError."""
        return b"".join(self.chunks())

    def write_to(self, file: Writable) -> int:
        """Write the content to a file and return its length. Raises GoneError and errors of the file."""
        for chunk in self.chunks():
            file.write(chunk)
        return self.length


class WholeGroup:
    """A complete group of ``count`` messages with ``length`` bytes."""

    __slots__ = ("_lease", "_messages", "count", "group_id", "length", "topic")

    def __init__(
        self,
        topic: str,
        group_id: bytes,
        count: int,
        length: int,
        messages: "Callable[[], Iterator[Whole]]",
        lease: Lease,
    ):
        self.topic = topic
        self.group_id = group_id
        self.count = count
        self.length = length
        self._messages = messages
        self._lease = lease

    def messages(self) -> Iterator[Whole]:
        """Return its messages in order. Raises GoneError."""
        return self._lease.each(self._messages)


class Problem:
    """A message or group that is not handed out. ``seq`` is 0 if it concerns the whole GroupId.

    ``kind``: "incomplete" (timeout; see ``missing``), a key of ``fields.FAULTS`` (contradiction), "malformed" (``at``
    is the offset of the field in the payload), "room" (the payload was not taken), or "late" (its message or group was
    reported before). ``reason`` is IBM's reason code. ``aside`` tells whether earlier payloads are set aside as well;
    ``pieces`` returns their bytes.
    """

    __slots__ = (
        "_lease",
        "_pieces",
        "aside",
        "at",
        "group_id",
        "kind",
        "missing",
        "reason",
        "seq",
        "text",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        group_id: bytes,
        seq: int,
        kind: str,
        reason: int,
        text: str,
        *,
        missing: Missing = NOTHING,
        at: int = -1,
        pieces: "Callable[[], Iterator[tuple[int, int, bytes]]] | None" = None,
        lease: Lease | None = None,
    ):
        self.topic = topic
        self.group_id = group_id
        self.seq = seq
        self.kind = kind
        self.reason = reason
        self.text = text
        self.missing = missing
        self.at = at
        self.aside = pieces is not None
        self._pieces = pieces
        self._lease = lease

    def pieces(self) -> Iterator[tuple[int, int, bytes]]:
        """Return (MsgSeqNumber, Offset, bytes), ordered and disjoint. Raises GoneError."""
        if self._pieces is None or self._lease is None:
            return iter(())
        return self._lease.each(self._pieces)

    def as_dict(self) -> dict[str, Any]:
        """Convert for JSON."""
        return {
            "topic": self.topic,
            "group_id": self.group_id.hex(),
            "seq": self.seq,
            "kind": self.kind,
            "reason": self.reason,
            "name": REASONS.get(self.reason, ""),
            "text": self.text,
            "missing": self.missing.as_dict() if self.missing else None,
            "offset": None if self.at < 0 else self.at,
        }

    def __str__(self) -> str:
        what = f"{self.text} ({self.reason} {REASONS.get(self.reason, '')})"
        whose = f", GroupId {self.group_id.hex()}" if any(self.group_id) else ""
        return f"{self.topic}{whose}: {what}"
