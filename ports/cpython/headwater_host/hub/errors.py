"""What the hub refuses, and what it cannot do."""

from headwater.names5 import code_name

#: Reason codes of refusals (MQTT 5.0, 2.4).
NO_MATCH = 0x10
NO_SUBSCRIPTION = 0x11
UNSPECIFIED = 0x80
MALFORMED = 0x81
CLIENT_ID_INVALID = 0x85
BAD_CREDENTIALS = 0x86
SHUTTING_DOWN = 0x8B
KEEP_ALIVE_TIMEOUT = 0x8D
TAKEN_OVER = 0x8E
PACKET_TOO_LARGE = 0x95
CONNECTION_RATE = 0x9F
NOT_AUTHORIZED = 0x87
TOPIC_FILTER_INVALID = 0x8F
TOPIC_NAME_INVALID = 0x90
IDENTIFIER_IN_USE = 0x91
QUOTA_EXCEEDED = 0x97
PROTOCOL_ERROR = 0x82
IMPLEMENTATION_ERROR = 0x83
PAYLOAD_FORMAT_INVALID = 0x99


class RefusedError(Exception):
    """What a client asked for is not done. ``reason`` is a reason code of MQTT 5, the text is for its user."""

    def __init__(self, reason: int, text: str):
        super().__init__(text)
        self.reason = reason

    def __repr__(self) -> str:
        return f"RefusedError({code_name(self.reason, 0)}: {self})"


class StorageError(Exception):
    """The file cannot be opened, is damaged, is something else; or it cannot be written."""
