"""Outcomes of an assembler: complete messages, complete groups, problems.

Contents are readable until the next call of the assembler.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, TypeVar

from headwater_host.mq.errors import REASONS
from headwater_host.mq.reassembly.logical import NOTHING, Missing

_T = TypeVar("_T")


class GoneError(RuntimeError):
    """The assembler was called before the content was read."""


@dataclass(slots=True)
class Lease:
    """Tells whether outcomes are still readable."""

    over: bool = False

    def each(self, items: "Callable[[], Iterator[_T]]") -> "Iterator[_T]":
        """Yield items while they are readable. Raises GoneError."""
        self._check()
        for item in items():
            yield item
            self._check()

    def _check(self) -> None:
        if self.over:
            raise GoneError("read the outcomes of an assembler before its next call")


@dataclass(slots=True, eq=False)
class Whole:
    """A logical message. Format (with its blanks), Encoding and CodedCharSetId describe its content.

    ``group_id`` and ``seq`` are those of its MQMDE, NULs and 1 without one. ``flags`` are those of all its segments.
    ``length`` is in bytes.
    """

    topic: str
    group_id: bytes
    seq: int
    flags: int
    length: int
    format: str
    encoding: int
    ccsid: int
    contents: "Callable[[], Iterator[bytes]]" = field(repr=False)
    lease: Lease = field(repr=False)

    def chunks(self) -> Iterator[bytes]:
        """Return the content in pieces of the size of the segments. Raises GoneError."""
        return self.lease.each(self.contents)

    def read(self) -> bytes:
        """Return the content. Raises GoneError."""
        return b"".join(self.chunks())

    def write_to(self, file: IO[bytes]) -> int:
        """Write the content to a file and return its length. Raises GoneError and errors of the file."""
        for chunk in self.chunks():
            file.write(chunk)
        return self.length


@dataclass(slots=True, eq=False)
class WholeGroup:
    """A complete group of ``count`` messages with ``length`` bytes."""

    topic: str
    group_id: bytes
    count: int
    length: int
    contents: "Callable[[], Iterator[Whole]]" = field(repr=False)
    lease: Lease = field(repr=False)

    def messages(self) -> Iterator[Whole]:
        """Return its messages in order. Raises GoneError."""
        return self.lease.each(self.contents)


@dataclass(slots=True, eq=False)
class Problem:
    """A message or group that is not handed out. ``seq`` is 0 if it concerns the whole GroupId.

    ``kind``: "incomplete" (timeout; see ``missing``), a key of ``fields.FAULTS`` (contradiction), "malformed" (``at``
    is the offset of the field in the payload), "room" (the payload was not taken), or "late" (its message or group was
    reported before). ``reason`` is IBM's reason code.
    """

    topic: str
    group_id: bytes
    seq: int
    kind: str
    reason: int
    text: str
    missing: Missing = NOTHING
    at: int = -1
    contents: "Callable[[], Iterator[tuple[int, int, bytes]]] | None" = field(default=None, repr=False)
    lease: Lease = field(default_factory=Lease, repr=False)

    @property
    def aside(self) -> bool:
        """True if earlier payloads are set aside as well; ``pieces`` returns their bytes."""
        return self.contents is not None

    def pieces(self) -> Iterator[tuple[int, int, bytes]]:
        """Return (MsgSeqNumber, Offset, bytes), ordered and disjoint. Raises GoneError."""
        return iter(()) if self.contents is None else self.lease.each(self.contents)

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
