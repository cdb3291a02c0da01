# paths: write publish, write publish with properties, change a property, scan publish, scan publish with properties
# paths: decode publish with properties, find and read properties, acknowledgements, malformed publish
# frames: change a property, acknowledgements
"""Packets of MQTT 5.0 with properties: written, taken apart, read, refused."""

from prove import prove

from headwater.errors import E_REPEATED
from headwater.mqtt import spec5
from headwater.mqtt.decode import fixed_header
from headwater.mqtt.decode5 import Packet5, message5, packet_id, publish
from headwater.mqtt.encode5 import acknowledge, disconnect, put_publish
from headwater.mqtt.encode5 import publish as write
from headwater.mqtt.properties import Properties, find, has, number, skip

TOPIC = b"board/telemetry"
PAYLOAD = b"0123456789abcdef"
NONE = spec5.NO_PROPERTIES

made = Properties(80)
assert made.add(spec5.MESSAGE_EXPIRY_INTERVAL, 3600) == 0
assert made.add(spec5.RESPONSE_TOPIC, b"board/answer") == 0
assert made.add(spec5.CORRELATION_DATA, b"0001") == 0
assert made.add(spec5.SUBSCRIPTION_IDENTIFIER, 300) == 0
assert made.add(spec5.USER_PROPERTY, b"unit", b"K") == 0
block = made.block

plain = bytearray(128)
plain_end = write(plain, 0, 128, TOPIC, PAYLOAD, 0x32, 7)
full = bytearray(160)
full_end = write(full, 0, 160, TOPIC, PAYLOAD, 0x32, 7, block)
double = bytearray(128)
twice = bytes(block)[1:6]
double_end = write(double, 0, 128, TOPIC, PAYLOAD, 0x32, 7, bytes([10]) + twice + twice)
assert min(plain_end, full_end, double_end) > 0
scanned = Packet5(plain)
full_cursor = Packet5(full)
double_cursor = Packet5(double)
out = bytearray(160)
acks = bytearray(64)
ack_cursor = Packet5(acks)
values = [b"0001", b"0002"]
turn = [0]


def write_plain() -> None:
    assert put_publish(out, 0, TOPIC, PAYLOAD, 0x30, NONE) > 0


def write_full() -> None:
    assert put_publish(out, 0, TOPIC, PAYLOAD, 0x32 | 7 << 8, block) == full_end


def change() -> None:
    turn[0] ^= 1
    assert made.set(spec5.CORRELATION_DATA, values[turn[0]]) == 0
    assert made.set(spec5.MESSAGE_EXPIRY_INTERVAL, 3600 + turn[0]) == 0


def scan_plain() -> None:
    assert message5(scanned, 0, plain_end) == plain_end


def scan_full() -> None:
    assert message5(full_cursor, 0, full_end) == full_end


def decode_full() -> None:
    assert fixed_header(full_cursor, 0, full_end) == full_end
    assert publish(full_cursor) == 0


def read_full() -> None:
    p = full_cursor
    buf = p.buf
    at = p.props_at
    end = p.props_end
    count = 0
    while at < end:
        count += 1
        at = skip(buf, at)
    assert count == 5
    i = find(buf, p.props_at, end, 11)
    assert number(buf, i, 11) == 300
    assert has(p, 9)
    assert not has(p, 35)


def acknowledgements() -> None:
    end = acknowledge(acks, 0, 64, 4, 7, 0, NONE)
    assert end == 4
    assert fixed_header(ack_cursor, 0, end) == end
    assert packet_id(ack_cursor) == 0
    end = acknowledge(acks, 0, 64, 5, 7, 0x97, NONE)
    assert end == 5
    assert fixed_header(ack_cursor, 0, end) == end
    assert packet_id(ack_cursor) == 0
    assert ack_cursor.code == 0x97
    assert disconnect(acks, 0, 64, 0x82, NONE) == 3


def malformed() -> None:
    assert message5(double_cursor, 0, double_end) == 0
    assert fixed_header(double_cursor, 0, double_end) == double_end
    assert publish(double_cursor) == E_REPEATED


prove("write publish", write_plain)
prove("write publish with properties", write_full)
prove("change a property", change)
prove("scan publish", scan_plain)
prove("scan publish with properties", scan_full)
prove("decode publish with properties", decode_full)
prove("find and read properties", read_full)
prove("acknowledgements", acknowledgements)
prove("malformed publish", malformed)
