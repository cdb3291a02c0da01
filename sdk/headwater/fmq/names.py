"""Printable names of FMQ's types, values and reasons. A board need not import this."""

from headwater import errors as e
from headwater import reasons
from headwater.fmq import spec as s

#: Frame types; type 4 is reserved.
TYPES = (
    "AUTH",
    "SLAVEOF",
    "REGISTER",
    "PUBLISH",
    "RESERVED",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "UNSUBSCRIBE",
    "CONSUME",
    "CONSUMERESP",
    "PINGREQ",
    "ELECT",
    "ACK",
    "UNREGISTER",
)

#: Values, by kind.
VALUES = {
    s.NONE: "None",
    s.STRING: "String",
    s.BOOL: "Bool",
    s.INT: "Int",
    s.FLOAT: "Float",
    s.BIGINT: "BigInt",
    s.DECIMAL: "Decimal",
    s.DURATION: "Duration",
    s.DATETIME: "DateTime",
    s.LIST: "List",
    s.MAP: "Map",
    s.OBJECT: "Object",
}

#: Reasons, as a table for ``headwater.reasons.reason`` and ``describe``.
REASONS = dict(reasons.REASONS)
REASONS.update(
    {
        e.E_LENGTH: ("malformed_body_length", "the body's length has more than four bytes after its first"),
        e.E_TYPE: ("reserved_frame_type", "the frame's type is 4"),
        e.E_FLAGS: (
            "bad_flags",
            "a flag is set that this type of frame does not allow here",
        ),
        e.E_RX_QOS: ("bad_qos", "the QoS is 3"),
        e.E_SIZE: ("bad_body_length", "bytes follow the last field of the body"),
        e.E_FIELD: (
            "field_beyond_end",
            "a value reaches beyond the end of its frame or of the input, or a mandatory value is missing",
        ),
        e.E_UTF8: ("bad_utf8", "a string is not well-formed UTF-8"),
        e.E_CODE: ("bad_code", "a reason code is above 255"),
        e.E_RX_TOO_LARGE: ("body_too_large", "the body's length is above the limit"),
        s.E_DEPTH: (
            "nesting_too_deep",
            "lists, maps and objects are nested more deeply than allowed",
        ),
        s.E_FORM: ("bad_value", "a value has a tag, a range or a form that is not allowed here"),
        s.E_ID: (
            "bad_message_id",
            "a message id is longer than 18 bytes, or has no time where one is required",
        ),
    }
)
