"""Numbers of FMQ (docs/protocols/fmq.md) for programs: frame types, flags, tags of values, errors.

No client imports it.
"""

from headwater.wire import const

#: Types of frames (section 3).
AUTH = const(0)
SLAVEOF = const(1)
REGISTER = const(2)
PUBLISH = const(3)
PUBREC = const(5)
PUBREL = const(6)
PUBCOMP = const(7)
SUBSCRIBE = const(8)
UNSUBSCRIBE = const(9)
CONSUME = const(10)
CONSUMERESP = const(11)
PINGREQ = const(12)
ELECT = const(13)
ACK = const(14)
UNREGISTER = const(15)

#: Types without length and body, as bits.
NO_BODY = const(1 << 5 | 1 << 6 | 1 << 7 | 1 << 12)

#: Flags; those of PUBLISH are MQTT's.
REG = const(1)
NEEDACK = const(1)
ONCE = const(2)
VOTE = const(1)
APPROVE = const(2)

#: Tags of values (section 1). The form beyond the range of Int has the next tag, except for BigInt.
NONE = const(0)
STRING = const(1)
BOOL = const(2)
INT = const(3)
FLOAT = const(4)
BIGINT = const(6)
DECIMAL = const(7)
DURATION = const(9)
DATETIME = const(11)
LIST = const(13)
MAP = const(14)
OBJECT = const(15)

#: The maximum sizes of a message id (section 2) and of a frame without its body.
ID_SIZE = const(18)
HEADER_SIZE = const(24)

# Errors in addition to ``headwater.errors``. No room: a value is nested too deeply.
E_DEPTH = const(-28)
# The peer's fault: an invalid tag, range or form of a value; an invalid message id.
E_FORM = const(-58)
E_ID = const(-59)
