"""What may follow what: the tables of the MQTT session. ``docs/mqtt-session.md`` is drawn from them.

The connection:

- IDLE: nothing is connected. ``OPEN``: a transport is there; the client sends CONNECT, the server waits for it.
- CONNECTING: only CONNACK (client) or CONNECT (server) may arrive [3.1.0-1, 3.2.0-1]; ``ACCEPT`` or ``REFUSE``
  follow.
- ONLINE: everything the other end may send may arrive. A second CONNECT or CONNACK is an error [3.1.0-2].
- CLOSING: the last packet (DISCONNECT, or a refusing CONNACK) is on its way out; what arrives is not looked at
  [3.14.4-2].
- ERROR: the session broke the connection; nothing is sent or read until the next ``OPEN``, and the status stays.

The loss of the transport leads from every state to IDLE, but from ERROR.

Delivery of what we publish at QoS 1 and 2 [4.3.2, 4.3.3]:

- AT1: PUBLISH (QoS 1) is stored; PUBACK ends it.
- AT2: PUBLISH (QoS 2) is stored; PUBREC moves it to REL.
- REL: PUBREL is to be sent, or was; PUBCOMP ends it. PUBREC again means that the other end did not get our
  PUBREL: it is sent again.
- DONE: acknowledged; its place is free once everything older is acknowledged.

An acknowledgement for a packet id that is not in flight is STRAY: counted and otherwise ignored, because after a
lost session it is nobody's error; a stray PUBREC is still answered with PUBREL, so that the other end can forget
the id. One of the wrong kind for the QoS of its message is the peer's error: WRONG.
"""

from headwater.wire import const

# States of the connection.
IDLE = const(0)
CONNECTING = const(1)
ONLINE = const(2)
CLOSING = const(3)
ERROR = const(4)
STATES = const(5)

# Events of the connection.
OPEN = const(0)
ACCEPT = const(1)
REFUSE = const(2)
FINISH = const(3)
FAIL = const(4)
LOST = const(5)
EVENTS = const(6)

#: The next state: ``NEXT[state * EVENTS + event]``; an event that a state does not know leaves it as it is.
NEXT = (
    # OPEN  ACCEPT REFUSE FINISH FAIL LOST
    b"\x01\x00\x00\x00\x00\x00"  # IDLE
    b"\x01\x02\x03\x03\x04\x00"  # CONNECTING
    b"\x01\x02\x02\x03\x04\x00"  # ONLINE
    b"\x01\x03\x03\x03\x04\x00"  # CLOSING
    b"\x01\x04\x04\x04\x04\x04"  # ERROR
)

#: The packet types that may arrive, a bit each, by state: at a client, and at a server.
CLIENT_TAKES = (0, 1 << 2, 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 9 | 1 << 11 | 1 << 13, 0, 0)
SERVER_TAKES = (
    0,
    1 << 1,
    1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 12 | 1 << 14,
    0,
    0,
)

# States of an outgoing message.
FREE = const(0)
AT1 = const(1)
AT2 = const(2)
REL = const(3)
DONE = const(4)
STRAY = const(5)
WRONG = const(6)

#: The next state of a message: ``DELIVERY[state * 4 + type - 4]`` for PUBACK (4), PUBREC (5), PUBREL (not
#: ours) and PUBCOMP (7).
DELIVERY = (
    # PUBACK PUBREC - PUBCOMP
    b"\x05\x05\x05\x05"  # FREE
    b"\x04\x06\x06\x06"  # AT1
    b"\x06\x03\x06\x06"  # AT2
    b"\x06\x03\x06\x04"  # REL
    b"\x05\x05\x05\x05"  # DONE
)
