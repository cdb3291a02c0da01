"""What may follow what, in every protocol here. What each has of its own is in its ``transitions``.

The connection:

- IDLE: nothing is connected. ``OPEN``: a transport is there; the client greets, the server waits for it.
- CONNECTING: only the greeting or the answer to it may arrive. ``ACCEPT`` follows, or the end.
- ONLINE: everything the other end may send may arrive.
- CLOSING: ``FINISH``: the last packet is on its way out, and what arrives is not looked at.
- ERROR: ``FAIL``: the session broke the connection. Nothing is sent or read until the next ``OPEN``, and the status
  stays.

The loss of the transport leads from every state to IDLE, but from ERROR.

A message of ours at QoS 1 or 2, in the outbox: FREE (there is none), AT1 and AT2 (by QoS; sent or not), REL (answered
with PUBREC), DONE (answered to its end). In the tables of answers also STRAY (it belongs to nothing that is under way)
and WRONG (it does not fit the QoS).
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

# States of a message.
FREE = const(0)
AT1 = const(1)
AT2 = const(2)
REL = const(3)
DONE = const(4)
STRAY = const(5)
WRONG = const(6)
