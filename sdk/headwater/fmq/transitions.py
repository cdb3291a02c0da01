"""What may follow what in FMQ's session (docs/protocols/fmq.md), beside ``headwater.transitions``.

In CONNECTING only an ACK may arrive, AUTH's.

Delivery of what we publish at QoS 1 and 2:

- AT1: PUBLISH at QoS 1; ACK ends it.
- AT2: PUBLISH at QoS 2; PUBREC makes it REL.
- REL: PUBREL is to be sent, or was; PUBCOMP ends it. After PUBREC again it is sent again. In the outbox there is no
  REL: what is one is told by its first byte (``sender``).
- DONE: answered to its end.

An ACK that refuses ends a message in any of them. An answer to what is not under way is STRAY: counted, and a PUBREC is
answered, so that the hub can forget the id. One that does not fit the QoS is the hub's error: WRONG.
"""

#: The types of frames that may arrive at a client, a bit each, by state.
TAKES = (0, 1 << 14, 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 11 | 1 << 12 | 1 << 14, 0, 0)

#: The next state of a message: ``DELIVERY[state * 3 + answer]``, the answer being ACK (0), PUBREC (1) or PUBCOMP (2).
DELIVERY = (
    # ACK PUBREC PUBCOMP
    b"\x05\x05\x05"  # FREE
    b"\x04\x06\x06"  # AT1
    b"\x06\x03\x06"  # AT2
    b"\x06\x03\x04"  # REL
)
