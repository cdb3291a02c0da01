"""Printable names and texts of the status codes."""

from headwater import errors as e

#: Code: (reason, text). Tools print the reason; tests and vectors name it.
REASONS = {
    e.E_TOPIC: (
        "bad_topic_argument",
        "a topic name is empty, too long, not UTF-8, or has a wildcard or U+0000",
    ),
    e.E_FILTER: ("bad_filter_argument", "a topic filter is empty, too long, not UTF-8, or misuses + or #"),
    e.E_QOS: ("bad_qos_argument", "QoS is 0, 1 or 2"),
    e.E_STATE: ("wrong_state", "the call is not allowed in this state of the session"),
    e.E_ARGUMENT: ("bad_argument", "an argument is of the wrong type or out of range"),
    e.E_UNKNOWN_ID: (
        "unknown_packet_id",
        "no message with this packet identifier waits for an acknowledgement",
    ),
    e.E_AGAIN: ("try_again", "the transmit buffer is full; try again after the transport has accepted bytes"),
    e.E_WINDOW: ("outbox_full", "the outbox is full of unacknowledged messages"),
    e.E_OFFLINE: ("offline", "there is no connection"),
    e.E_TOO_LARGE: ("too_large_to_send", "the packet is larger than the buffer for it"),
    e.E_RX_TOO_LARGE: (
        "too_large_to_receive",
        "a packet is larger than the receive buffer and cannot be skipped",
    ),
    e.E_RX_WINDOW: (
        "receive_window_full",
        "the peer has more unacknowledged messages in flight than the receive window allows",
    ),
    e.E_STORE: ("store_failed", "the store cannot be written: its file system is full or fails"),
    e.E_LIMIT: ("not_offered", "the peer does not support this, or not at this QoS"),
    e.E_LENGTH: (
        "malformed_remaining_length",
        "a variable byte integer, such as the remaining length, has more than four bytes",
    ),
    e.E_TYPE: ("reserved_packet_type", "the packet type is 0, or 15 before MQTT 5.0"),
    e.E_FLAGS: ("bad_flags", "the fixed header's flags are wrong for the packet type"),
    e.E_RX_QOS: ("bad_qos", "both QoS bits are set"),
    e.E_SIZE: ("bad_packet_length", "the remaining length is wrong for the packet type"),
    e.E_FIELD: ("field_beyond_packet", "a field's length reaches beyond the end of the packet"),
    e.E_UTF8: ("bad_utf8", "a string is not well-formed UTF-8, or has U+0000"),
    e.E_RX_TOPIC: ("bad_topic", "a topic is empty or misuses a wildcard"),
    e.E_PACKET_ID: ("packet_id_zero", "the packet identifier is 0"),
    e.E_PROTOCOL: ("bad_protocol", "the protocol name or level is not supported"),
    e.E_UNEXPECTED: ("unexpected_packet", "the packet is not allowed in this state or direction"),
    e.E_ACK_KIND: (
        "wrong_acknowledgement",
        "the acknowledgement is wrong for the QoS of its message",
    ),
    e.E_CODE: (
        "bad_code",
        "a return code, a reason code or a subscription option has a value that is not allowed in this packet",
    ),
    e.E_TRUNCATED: ("truncated", "the input ends inside a packet"),
    e.E_PROPERTY: ("bad_property", "a property does not exist, or is not allowed in this packet"),
    e.E_REPEATED: ("repeated_property", "a property appears twice that may appear only once"),
    e.E_VALUE: (
        "bad_property_value",
        "a property's value is out of range, or the property it depends on is missing",
    ),
    e.E_ALIAS: ("bad_topic_alias", "the topic alias is out of range, or no topic is assigned to it"),
    e.E_REFUSED: ("refused", "the server refused the connection"),
    e.E_TIMEOUT: ("timed_out", "the peer did not answer in time"),
    e.E_CLOSED: ("closed", "the connection was closed"),
    e.E_UNREACHABLE: ("unreachable", "the connection to the server cannot be opened"),
    e.E_DISCONNECTED: ("disconnected", "the server ended the connection with a reason code"),
    e.E_AUTH: ("not_authenticated", "the application did not continue the authentication"),
}


def reason(code: int, table: "dict[int, tuple[str, str]]" = REASONS) -> str:
    """Return the name of a status code: ``"ok"`` for 0 and more, ``"unknown"`` if the table does not have it.

    A protocol may pass its own table.
    """
    return "ok" if code >= 0 else table.get(code, ("unknown", ""))[0]


def describe(code: int, table: "dict[int, tuple[str, str]]" = REASONS) -> str:
    """Return text and name of a status code; a code that the table does not have is printed as a number."""
    name, text = table.get(code, (str(code), "an unknown status"))
    return "ok" if code >= 0 else f"{text} ({name})"
