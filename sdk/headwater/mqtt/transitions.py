"""What may follow what in the MQTT session, beside ``headwater.transitions``. ``docs/mqtt-session.md`` is drawn from
both.

In CONNECTING only CONNACK (client) or CONNECT (server) may arrive [3.1.0-1, 3.2.0-1]; in ONLINE a second one is wrong
[3.1.0-2]. In CLOSING the last packet, DISCONNECT or a CONNACK that refuses, is on its way out; what arrives is not
looked at [3.14.4-2].

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

#: The packet types that may arrive, a bit each, by state: at a client, and at a server.
CLIENT_TAKES = (0, 1 << 2, 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 9 | 1 << 11 | 1 << 13, 0, 0)
SERVER_TAKES = (
    0,
    1 << 1,
    1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 12 | 1 << 14,
    0,
    0,
)

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
