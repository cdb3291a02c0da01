"""Reads an input as a series of decisions, for targets that are not fed bytes but driven."""


class Script:
    """The decisions in ``data``, taken off its front; when it is used up, each is 0."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def more(self) -> bool:
        """Whether anything is left."""
        return self._at < len(self._data)

    def byte(self) -> int:
        """0 to 255."""
        at = self._at
        self._at += 1
        return self._data[at] if at < len(self._data) else 0

    def word(self) -> int:
        """0 to 65535."""
        return self.byte() << 8 | self.byte()

    def below(self, n: int) -> int:
        """0 to ``n`` - 1; ``n`` up to 65536."""
        return (self.byte() if n <= 256 else self.word()) % n

    def take(self, n: int) -> bytes:
        """Up to ``n`` bytes as they are."""
        value = self._data[self._at : self._at + n]
        self._at += n
        return value

    def rest(self) -> bytes:
        """All that is left."""
        return self.take(len(self._data))
