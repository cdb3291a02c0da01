# paths: write publish, write publish with properties, change a property, decode publish
# paths: decode publish with properties, find and read properties, acknowledgements, malformed publish
# frames: change a property, acknowledgements
"""Packets of MQTT 5.0 with properties: written, taken apart, read, refused."""

from prove import prove

from headwater.errors import E_REPEATED
from headwater.mqtt import spec5
from headwater.mqtt.packets import decode_ack, decode_header, decode_publish, packet_size, put_publish
from headwater.mqtt.packets import encode_publish as write
from headwater.mqtt.properties import Packet5, Properties, encode_reason, find, has, number, skip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

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
plain_end = write(plain, 0, 128, TOPIC, PAYLOAD, 0x32, 7, NONE)
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


def put(word: int, n: int, properties: "Bytes") -> int:
    """As a session encodes PUBLISH."""
    n += len(TOPIC) + len(PAYLOAD) + len(properties)
    i = put_publish(out, 0, TOPIC, n, word)
    k = i + len(properties)
    out[i:k] = properties
    n = packet_size(n)
    out[k:n] = PAYLOAD
    return n


def write_plain() -> None:
    assert put(0x30, 2, NONE) == plain_end - 2


def write_full() -> None:
    assert put(0x32 | 7 << 8, 4, block) == full_end
    assert out[full_end - 1] == full[full_end - 1]


def change() -> None:
    turn[0] ^= 1
    assert made.set(spec5.CORRELATION_DATA, values[turn[0]]) == 0
    assert made.set(spec5.MESSAGE_EXPIRY_INTERVAL, 3600 + turn[0]) == 0


def decode_plain() -> None:
    assert decode_header(scanned, 0, plain_end) == plain_end
    assert decode_publish(scanned, scanned.body, plain_end) == 0


def decode_full() -> None:
    assert decode_header(full_cursor, 0, full_end) == full_end
    assert decode_publish(full_cursor, full_cursor.body, full_end) == 0


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
    end = encode_reason(acks, 0, 64, 4, 7, 0, NONE)
    assert end == 4
    assert decode_header(ack_cursor, 0, end) == end
    assert decode_ack(ack_cursor) == 0
    end = encode_reason(acks, 0, 64, 5, 7, 0x97, NONE)
    assert end == 5
    assert decode_header(ack_cursor, 0, end) == end
    assert decode_ack(ack_cursor) == 0
    assert ack_cursor.code == 0x97
    assert encode_reason(acks, 0, 64, 14, 0, 0x82, NONE) == 3


def malformed() -> None:
    assert decode_header(double_cursor, 0, double_end) == double_end
    assert decode_publish(double_cursor, double_cursor.body, double_end) == E_REPEATED


prove("write publish", write_plain)
prove("write publish with properties", write_full)
prove("change a property", change)
prove("decode publish", decode_plain)
prove("decode publish with properties", decode_full)
prove("find and read properties", read_full)
prove("acknowledgements", acknowledgements)
prove("malformed publish", malformed)
