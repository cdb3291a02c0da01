"""Numbers of MQTT 3.1 and 3.1.1 (2.2 and 3): packet types, flags, return codes.

The core defines the numbers that it needs as private constants, which cost a board nothing
(tests/host/test_numbers.py compares them). ``spec5`` has those of 5.0.
"""

from headwater.wire import const

CONNECT = const(1)
CONNACK = const(2)
PUBLISH = const(3)
PUBACK = const(4)
PUBREC = const(5)
PUBREL = const(6)
PUBCOMP = const(7)
SUBSCRIBE = const(8)
SUBACK = const(9)
UNSUBSCRIBE = const(10)
UNSUBACK = const(11)
PINGREQ = const(12)
PINGRESP = const(13)
DISCONNECT = const(14)

#: The bits of PUBLISH's first byte (3.3.1).
RETAIN = const(1)
QOS_SHIFT = const(1)
DUP = const(8)

#: The largest remaining length (2.2.3).
MAX_REMAINING = const(268435455)

#: CONNECT's flag bits (3.1.2).
CLEAN_SESSION = const(2)
WILL = const(4)
WILL_QOS_SHIFT = const(3)
WILL_RETAIN = const(32)
PASSWORD = const(64)
USER_NAME = const(128)

#: CONNACK's return codes (3.2.2.3).
ACCEPTED = const(0)
BAD_LEVEL = const(1)
BAD_CLIENT_ID = const(2)
SERVER_UNAVAILABLE = const(3)
BAD_USER_OR_PASSWORD = const(4)
NOT_AUTHORIZED = const(5)

#: SUBACK's code for a refused filter (3.9.3).
SUBSCRIBE_FAILED = const(0x80)

#: MQTT 3.1: CONNECT's protocol name and level, as encoded (3.1).
PROTOCOL_31 = b"\x00\x06MQIsdp\x03"

#: ``packets.FLAGS`` for MQTT 3.1. PUBREL, SUBSCRIBE and UNSUBSCRIBE may have DUP (2.1); flags that a packet type does
#: not use are ignored.
FLAGS_31 = b"\x00\x00\x00\x00\x00\x00\x62\x00\x62\x00\x62\x00\x00\x00\x00\x00"
