"""What may follow what: the tables of FMQ's session (docs/protocols/fmq.md).

The connection:

- IDLE: nothing is connected. ``OPEN``: a transport is there, and AUTH is sent.
- CONNECTING: only an ACK may arrive, AUTH's. ``ACCEPT`` follows, or ``FAIL``.
- ONLINE: everything the hub may send may arrive.
- CLOSING: the last frame is on its way out; what arrives is not looked at.
- ERROR: the session broke the connection; the status stays until the next ``OPEN``.

The loss of the transport leads from every state to IDLE, but from ERROR.

Delivery of what we publish at QoS 1 and 2:

- AT1: PUBLISH at QoS 1; ACK ends it.
- AT2: PUBLISH at QoS 2; PUBREC makes it REL.
- REL: PUBREL is to be sent, or was; PUBCOMP ends it. After PUBREC again it is sent again.
- DONE: answered to its end.

An ACK that refuses ends a message in any of them. An answer to what is not under way is STRAY: counted, and a PUBREC is
answered, so that the hub can forget the id. One that does not fit the QoS is the hub's error: WRONG.
"""

from headwater.wire import const

# States of the connection.
IDLE = const(0)
CONNECTING = const(1)
ONLINE = const(2)
CLOSING = const(3)
ERROR = const(4)

# Events of the connection.
OPEN = const(0)
ACCEPT = const(1)
FINISH = const(2)
FAIL = const(3)
LOST = const(4)
EVENTS = const(5)

#: The next state: ``NEXT[state * EVENTS + event]``; an event that a state does not know leaves it as it is.
NEXT = (
    # OPEN  ACCEPT FINISH FAIL LOST
    b"\x01\x00\x00\x00\x00"  # IDLE
    b"\x01\x02\x03\x04\x00"  # CONNECTING
    b"\x01\x02\x03\x04\x00"  # ONLINE
    b"\x01\x03\x03\x04\x00"  # CLOSING
    b"\x01\x04\x04\x04\x04"  # ERROR
)

#: The types of frames that may arrive at a client, a bit each, by state.
TAKES = (0, 1 << 14, 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 11 | 1 << 12 | 1 << 14, 0, 0)

# States of an outgoing message. In the outbox there is no REL: what is one is told by its first byte (``sender``).
FREE = const(0)
AT1 = const(1)
AT2 = const(2)
REL = const(3)
DONE = const(4)
STRAY = const(5)
WRONG = const(6)

#: The next state of a message: ``DELIVERY[state * 3 + answer]``, the answer being ACK (0), PUBREC (1) or PUBCOMP (2).
DELIVERY = (
    # ACK PUBREC PUBCOMP
    b"\x05\x05\x05"  # FREE
    b"\x04\x06\x06"  # AT1
    b"\x06\x03\x06"  # AT2
    b"\x06\x03\x04"  # REL
)
