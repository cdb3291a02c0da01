"""What an assembler hands out: whole messages, whole groups, and problems. Their contents are to be read at once: they
are gone when the assembler is called again."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from headwater_host.mq.errors import REASONS
from headwater_host.mq.reassembly.logical import NOTHING, Missing


class Writable(Protocol):
    """A file, as far as a message needs it."""

    def write(self, data: bytes, /) -> object:
        """Take all of these bytes."""


class GoneError(RuntimeError):
    """The content was to be read before the assembler was called again."""


class Lease:
    """Whether what was handed out can still be read."""

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over = False

    def check(self) -> None:
        """Raises GoneError when it cannot."""
        if self.over:
            raise GoneError("read what an assembler hands out before it is called again")


class Whole:
    """A logical message. Format (with its blanks), Encoding and CodedCharSetId describe its content.

    ``group_id`` and ``seq`` are as in its MQMDE, NULs and 1 when it had none. ``flags`` are those that any of its
    segments had: whether it is in a group, and the last. ``length`` in bytes.
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
        """The content, in pieces as they came; so it need not fit into memory. Raises GoneError."""
        self._lease.check()
        for chunk in self._chunks():
            yield chunk
            self._lease.check()

    def read(self) -> bytes:
        """The content at once. Raises GoneError."""
        return b"".join(self.chunks())

    def write_to(self, file: Writable) -> int:
        """Write the content to a file: how many bytes that were. Raises GoneError, and whatever the file raises."""
        for chunk in self.chunks():
            file.write(chunk)
        return self.length


class WholeGroup:
    """A group, of which all messages are there: ``count`` of them, with ``length`` bytes."""

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
        """Its messages in order, 1 to ``count``. Raises GoneError."""
        self._lease.check()
        for message in self._messages():
            yield message
            self._lease.check()


class Problem:
    """What is not handed out, and why. ``seq`` is 0 when it is about all that has this GroupId.

    ``kind``: "incomplete" (nothing of it came for too long; ``missing`` says what), a key of ``logical.FAULTS``,
    "malformed" (``at``: offset of the field in the payload), "room" (it was not taken: there is no more room), "late"
    (it belongs to what was reported before). ``reason``: IBM's. ``aside``: whether more than the payload that was just
    given is set aside: ``pieces`` are its bytes.
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
        """What there is of it: MsgSeqNumber, Offset, bytes; in order, none twice. Raises GoneError."""
        if self._pieces is None or self._lease is None:
            return
        self._lease.check()
        for piece in self._pieces():
            yield piece
            self._lease.check()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
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
