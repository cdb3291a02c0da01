"""What the bodies of FMQ's frames are made of (docs/protocols/fmq.md, section 3): a table for who reads and who writes.

A row begins with how many of its fields must be there. Each further byte is a field:

====  ==========================================================================
T     String
N     String or None
P     a topic: a String, or the integer that is its hash
O     as P, or None
I     an integer from 0 on
Q     one that is a QoS, 0 to 2
C     one that is a reason code, 0 to 255
B     Bool
D     DateTime
L     a List of Strings
A, S  an address, addresses up to the end
M     a subscription id (an integer), or the message id of a CONSUME
R     the rest, as it is
====  ==========================================================================
"""

from headwater.fmq.spec import ACK, AUTH, CONSUME, ELECT, ONCE, REG, SLAVEOF, SUBSCRIBE
from headwater.wire import const

#: Letters as bits (``1 << (letter & 31)``): what a String may be, what an integer, and what None.
TEXTS = const(1 << 20 | 1 << 14 | 1 << 16 | 1 << 15)
NUMBERS = const(1 << 9 | 1 << 17 | 1 << 3 | 1 << 16 | 1 << 15 | 1 << 13)
NONES = const(1 << 14 | 1 << 15)
TOPICS = const(1 << 16 | 1 << 15)

NOTHING = b"\x00"
#: By type.
ROWS = (
    b"\x00TNNIBTQBR",
    b"\x02AA",
    b"\x01TI",
    b"\x03PLR",
    NOTHING,
    NOTHING,
    NOTHING,
    NOTHING,
    b"\x01PLTT",
    b"\x01I",
    b"\x01II",
    b"\x04MOLR",
    NOTHING,
    b"\x02AI",
    NOTHING,
    b"\x01T",
)
_ONCE = b"\x04PLTTR"
_REFUSED = b"\x01CT"
_AUTHENTICATED = b"\x04CIBD"
_SUBSCRIBED = b"\x02CI"
_SLAVES = b"\x01CS"
#: Of an ACK to ELECT that agrees.
AGREED = b"\x01N"


def row_of(head: int, asked: int, code: int) -> bytes:
    """The row of a frame with this first byte. Of ACK's, ``asked`` is the type of what it answers, ``code`` its reason
    code; -1 when it has none: nothing, or of an ELECT that is not refused, None or what another one says."""
    kind = head >> 4
    if kind == ACK:
        if code > 0:
            return _REFUSED
        if asked == ELECT and code < 0:
            return ROWS[ELECT]
        if code < 0:
            return NOTHING
        if asked == AUTH:
            return _AUTHENTICATED
        if asked == SUBSCRIBE:
            return _SUBSCRIBED
        return _SLAVES if asked == SLAVEOF else _REFUSED
    if kind == CONSUME and head & ONCE:
        return _ONCE
    return NOTHING if kind == SLAVEOF and head & REG else ROWS[kind]
