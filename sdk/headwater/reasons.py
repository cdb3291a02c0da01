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
    e.E_STATE: ("wrong_state", "the call does not fit the state of the session"),
    e.E_ARGUMENT: ("bad_argument", "an argument is of the wrong type or out of range"),
    e.E_UNKNOWN_ID: ("unknown_packet_id", "no message with this packet id waits for an acknowledgement"),
    e.E_AGAIN: ("try_again", "the transmit buffer is full until the transport takes more"),
    e.E_WINDOW: ("outbox_full", "the outbox is full of unacknowledged messages"),
    e.E_OFFLINE: ("offline", "there is no connection"),
    e.E_TOO_LARGE: ("too_large_to_send", "the packet is larger than the buffer it must be built in"),
    e.E_RX_TOO_LARGE: (
        "too_large_to_receive",
        "a packet is larger than what is taken, and cannot be skipped",
    ),
    e.E_RX_WINDOW: (
        "receive_window_full",
        "the peer has more unacknowledged messages than there is room for",
    ),
    e.E_STORE: ("store_failed", "the store cannot keep it: its file system is full, or failing"),
    e.E_LIMIT: ("not_offered", "the other end has said that it does not offer this, or not at this QoS"),
    e.E_LENGTH: (
        "malformed_remaining_length",
        "the remaining length, or another length of its kind, has more than four bytes",
    ),
    e.E_TYPE: ("reserved_packet_type", "the packet type is 0, or 15 before MQTT 5.0"),
    e.E_FLAGS: ("bad_flags", "the fixed header's flags are not what the packet type demands"),
    e.E_RX_QOS: ("bad_qos", "both QoS bits are set"),
    e.E_SIZE: ("bad_packet_length", "the remaining length does not fit the packet type"),
    e.E_FIELD: ("field_beyond_packet", "a field's length reaches beyond the end of the packet"),
    e.E_UTF8: ("bad_utf8", "a string is not well-formed UTF-8, or has U+0000"),
    e.E_RX_TOPIC: ("bad_topic", "a topic is empty or misuses a wildcard"),
    e.E_PACKET_ID: ("packet_id_zero", "the packet id is 0"),
    e.E_PROTOCOL: ("bad_protocol", "the protocol name or level is not one that is spoken here"),
    e.E_UNEXPECTED: ("unexpected_packet", "the packet is not allowed in this state or direction"),
    e.E_ACK_KIND: (
        "wrong_acknowledgement",
        "the acknowledgement does not fit the QoS of the message it names",
    ),
    e.E_CODE: (
        "bad_code",
        "a return code, a reason code, or an option of a subscription has a value that it cannot have here",
    ),
    e.E_TRUNCATED: ("truncated", "the input ends inside a packet"),
    e.E_PROPERTY: ("bad_property", "a property does not exist, or is not allowed in this packet"),
    e.E_REPEATED: ("repeated_property", "a property stands twice that may stand only once"),
    e.E_VALUE: (
        "bad_property_value",
        "a property's value is out of range, or the property it depends on is missing",
    ),
    e.E_ALIAS: ("bad_topic_alias", "the topic alias is none that was agreed on, or stands for no topic"),
    e.E_REFUSED: ("refused", "the server refused the connection"),
    e.E_TIMEOUT: ("timed_out", "the peer did not answer in time"),
    e.E_CLOSED: ("closed", "the connection was closed"),
    e.E_UNREACHABLE: ("unreachable", "no connection to the server could be opened"),
    e.E_DISCONNECTED: ("disconnected", "the server ended the connection, and said why"),
    e.E_AUTH: ("not_authenticated", "the application did not go on with the authentication"),
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
