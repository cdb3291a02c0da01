"""What MQTT 3.1 has otherwise than 3.1.1: its name, and the fixed header's flags."""

#: CONNECT's variable header up to the level (3.1).
PROTOCOL = b"\x00\x06MQIsdp\x03"

#: As ``decode.FLAGS``. DUP may stand on PUBREL, SUBSCRIBE and UNSUBSCRIBE (2.1); what a packet type does not
#: use is not looked at.
FLAGS = b"\x00\x00\x00\x00\x00\x00\x62\x00\x62\x00\x62\x00\x00\x00\x00\x00"
