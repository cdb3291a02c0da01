"""FMQ's numbers (docs/protocols/fmq.md): types of frames, flags, tags of values, and what only FMQ can refuse."""

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

#: Types without a body, nor a length of it: as bits.
NO_BODY = const(1 << 5 | 1 << 6 | 1 << 7 | 1 << 12)

#: Flags, beside PUBLISH's, which are MQTT's.
REG = const(1)
NEEDACK = const(1)
ONCE = const(2)
VOTE = const(1)
APPROVE = const(2)

#: Tags of values (section 1). Those of what is beyond Int's range are one more, but BigInt's.
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

#: The longest message id (section 2), and the longest frame but for its body.
ID_SIZE = const(18)
HEADER_SIZE = const(24)

# As of ``headwater.errors``, for what only FMQ knows. No room: a value is nested deeper than is allowed here.
E_DEPTH = const(-28)
# The peer's fault: a value has a tag, a range or a form that it cannot have; a message id is none.
E_FORM = const(-58)
E_ID = const(-59)
