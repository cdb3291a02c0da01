"""Errors of the hub. ``refusals`` says when each reason code is sent."""

from headwater.mqtt.spec5 import (
    BAD_USER_NAME_OR_PASSWORD,
    CLIENT_IDENTIFIER_NOT_VALID,
    IMPLEMENTATION_SPECIFIC_ERROR,
    KEEP_ALIVE_TIMEOUT,
    MALFORMED_PACKET,
    NO_MATCHING_SUBSCRIBERS,
    NO_SUBSCRIPTION_EXISTED,
    NOT_AUTHORIZED,
    PACKET_IDENTIFIER_IN_USE,
    PACKET_TOO_LARGE,
    PAYLOAD_FORMAT_INVALID,
    PROTOCOL_ERROR,
    QUOTA_EXCEEDED,
    SERVER_SHUTTING_DOWN,
    SESSION_TAKEN_OVER,
    TOPIC_FILTER_INVALID,
    TOPIC_NAME_INVALID,
    UNSPECIFIED_ERROR,
)
from headwater.names5 import code_name

__all__ = [
    "BAD_USER_NAME_OR_PASSWORD",
    "CLIENT_IDENTIFIER_NOT_VALID",
    "IMPLEMENTATION_SPECIFIC_ERROR",
    "KEEP_ALIVE_TIMEOUT",
    "MALFORMED_PACKET",
    "NOT_AUTHORIZED",
    "NO_MATCHING_SUBSCRIBERS",
    "NO_SUBSCRIPTION_EXISTED",
    "PACKET_IDENTIFIER_IN_USE",
    "PACKET_TOO_LARGE",
    "PAYLOAD_FORMAT_INVALID",
    "PROTOCOL_ERROR",
    "QUOTA_EXCEEDED",
    "SERVER_SHUTTING_DOWN",
    "SESSION_TAKEN_OVER",
    "TOPIC_FILTER_INVALID",
    "TOPIC_NAME_INVALID",
    "UNSPECIFIED_ERROR",
    "RefusedError",
    "StorageError",
]


class RefusedError(Exception):
    """A client's request is refused. ``reason`` is a reason code of MQTT 5.0 (2.4); the text is for its user."""

    def __init__(self, reason: int, text: str):
        super().__init__(text)
        self.reason = reason

    def __repr__(self) -> str:
        return f"RefusedError({code_name(self.reason, 0)}: {self})"


class StorageError(Exception):
    """The storage file cannot be opened or written, is damaged, or belongs to another program."""
