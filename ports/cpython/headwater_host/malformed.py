"""The error for bytes that a protocol does not allow."""

from typing import Any

from headwater import reasons


class MalformedError(Exception):
    """The input is malformed. ``code``: a status of the core; ``offset``: the position in the input."""

    #: The names of the codes. A subclass may have its own.
    names = reasons.REASONS

    def __init__(self, code: int, offset: int):
        super().__init__(code, offset)
        self.code = code
        self.offset = offset

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.reason!r}, offset={self.offset})"

    def __str__(self) -> str:
        return f"at {self.offset}: {self.description}"

    @property
    def reason(self) -> str:
        """The short name of ``code``."""
        return reasons.reason(self.code, self.names)

    @property
    def description(self) -> str:
        """A sentence that describes ``code``."""
        return reasons.describe(self.code, self.names)

    def shown(self) -> dict[str, Any]:
        """Return the error for JSON output."""
        return {"reason": self.reason, "offset": self.offset}
