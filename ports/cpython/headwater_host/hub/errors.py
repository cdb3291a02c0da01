"""The errors of the hub. ``refusals`` says when each reason code is sent."""

from headwater.names5 import code_name


class RefusedError(Exception):
    """A client's request is refused. ``reason`` is a reason code of MQTT 5.0 (2.4); the text is for its user."""

    def __init__(self, reason: int, text: str):
        super().__init__(text)
        self.reason = reason

    def __repr__(self) -> str:
        return f"RefusedError({code_name(self.reason, 0)}: {self})"


class StorageError(Exception):
    """The storage cannot be opened or written, is damaged, or belongs to another program."""


class BehindError(StorageError):
    """A follower has to read the whole storage: changes are not kept so far back, or the storage has lost some."""


class FencedError(StorageError):
    """Another hub leads: nothing is written any more, and nothing is tried again."""
