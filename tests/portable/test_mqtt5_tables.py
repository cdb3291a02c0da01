# heap: 1M
"""MQTT 5.0's tables, cell by cell: every property and every reason code in every packet.

What is allowed where is taken from the vectors, which were written out from the specification.
"""

import vectors
from mqtt_rows import NAMES

from headwater import errors
from headwater.mqtt import packets, packets_server, spec, spec5
from headwater.mqtt import properties as props
from headwater.mqtt.properties import Packet5, Properties, check_filter5, unshared
from headwater.names5 import CODES, PROPERTIES, code_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

WILL = 0
# By type: a value, and the same with too little.
VALUES = {
    props.BYTE: b"\x01",
    props.TWO: b"\x01\x02",
    props.TWO_NOT_0: b"\x01\x02",
    props.FOUR: b"\x01\x02\x03\x04",
    props.FOUR_NOT_0: b"\x01\x02\x03\x04",
    props.VARINT: b"\x81\x82\x83\x04",
    props.BINARY: b"\x00\x02\x00\xff",
    props.TEXT: b"\x00\x02\xc3\xa9",
    props.NAME: b"\x00\x03a/b",
    props.PAIR: b"\x00\x01k\x00\x01v",
}
# What stands before and behind the properties in a packet of each type, or of the will (0).
AROUND = {
    WILL: (b"\x00\x04MQTT\x05\x06\x00\x3c\x00\x00\x01c", b"\x00\x01w\x00\x00"),
    spec.CONNECT: (b"\x00\x04MQTT\x05\x02\x00\x3c", b"\x00\x01c"),
    spec.CONNACK: (b"\x00\x00", b""),
    spec.PUBLISH: (b"\x00\x01a", b"payload"),
    spec.PUBACK: (b"\x00\x01\x00", b""),
    spec.PUBREC: (b"\x00\x01\x00", b""),
    spec.PUBREL: (b"\x00\x01\x00", b""),
    spec.PUBCOMP: (b"\x00\x01\x00", b""),
    spec.SUBSCRIBE: (b"\x00\x01", b"\x00\x01a\x00"),
    spec.SUBACK: (b"\x00\x01", b"\x00"),
    spec.UNSUBSCRIBE: (b"\x00\x01", b"\x00\x01a"),
    spec.UNSUBACK: (b"\x00\x01", b"\x00"),
    spec.DISCONNECT: (b"\x00", b""),
    spec5.AUTH: (b"\x18", b""),
}
METHOD = b"\x15\x00\x01m"


def packet(kind: int, block: bytes) -> bytes:
    """A packet with these properties."""
    before, behind = AROUND[kind]
    body = before + bytes([len(block)]) + block + behind
    assert len(body) < 128
    kind = kind or spec.CONNECT
    return bytes([packets.HEADS[kind], len(body)]) + body


def outcome(kind: int, block: bytes) -> "tuple[int, int]":
    """0 or the error, and where in the block."""
    data = packet(kind, block)
    p = Packet5(data)
    stop = packets_server.decode_packet(p, 0, len(data))
    assert stop < 0 or stop == len(data)
    return min(stop, 0), p.bad_at - len(AROUND[kind][0]) - 3


def needs(kind: int, ident: int) -> bytes:
    """What must stand beside a property (3.1.2.11.10, 3.15.2.2.2)."""
    if ident == spec5.AUTHENTICATION_METHOD:
        return b""
    return METHOD if kind == spec5.AUTH or ident == spec5.AUTHENTICATION_DATA else b""


def standing() -> "set[tuple[int, int]]":
    """(packet type, identifier) as the vectors have them."""
    idents = {name: ident for ident, name in PROPERTIES.items()}
    found = set()
    for row in vectors.rows("mqtt5", "packets"):
        said = row.get("packet", {})
        for name, _ in said.get("properties", ()):
            found.add((NAMES.index(said["type"]), idents[name]))
        for name, _ in (said.get("will") or {}).get("properties", ()):
            found.add((WILL, idents[name]))
    return found


def test_every_property_in_every_packet() -> None:
    legal = standing()
    for ident in range(256):
        for kind in AROUND:
            allowed = (kind, ident) in legal
            assert (props.allowed(ident) >> kind & 1 != 0) == allowed, (ident, kind)
            value = VALUES[props.kind_of(ident)] if ident in PROPERTIES else b"\x01"
            before = needs(kind, ident)
            got = outcome(kind, before + bytes([ident]) + value)
            assert got[0] == 0 if allowed else got[0] == errors.E_PROPERTY, (ident, kind, got)
            if allowed or before:
                continue
            assert got[1] == 0, (ident, kind, got)


def test_every_property_twice() -> None:
    for kind, ident in standing():
        one = bytes([ident]) + VALUES[props.kind_of(ident)]
        before = needs(kind, ident)
        many = ident == spec5.USER_PROPERTY or (
            ident == spec5.SUBSCRIPTION_IDENTIFIER and kind == spec.PUBLISH
        )
        # Also with another one between them, where there is one.
        for between in (b"", b"\x26\x00\x00\x00\x00"):
            got = outcome(kind, before + one + between + one)
            at = len(before) + len(one) + len(between)
            assert got[0] == 0 if many else got == (errors.E_REPEATED, at), (kind, ident, got)


def test_two_properties_may_stand_more_than_once() -> None:
    many = [ident for ident in PROPERTIES if props.many(ident)]
    assert sorted(many) == [spec5.SUBSCRIPTION_IDENTIFIER, spec5.USER_PROPERTY]


def test_all_properties_of_a_packet_beside_each_other() -> None:
    """None is taken for another: the set of those that were there tells them apart."""
    legal = standing()
    for kind in AROUND:
        idents = sorted([ident for other, ident in legal if other == kind])
        block = b"".join([bytes([i]) + VALUES[props.kind_of(i)] for i in idents])
        for part in (block, b"".join([bytes([i]) + VALUES[props.kind_of(i)] for i in idents[::-1]])):
            p = Packet5(bytes([128 | len(part) & 127, len(part) >> 7]) + part)
            assert props.check(p, 0, len(p.buf), 1 << kind) == len(p.buf), kind
            for ident in idents:
                assert ident == spec5.USER_PROPERTY or props.has(p, ident), (kind, ident)
                at = props.find(p.buf, p.props_at, p.props_end, ident)
                assert p.buf[at - 1] == ident
                assert props.find(p.buf, props.skip(p.buf, at - 1), p.props_end, ident) == -1
        for missing in idents:
            rest = b"".join([bytes([i]) + VALUES[props.kind_of(i)] for i in idents if i != missing])
            p = Packet5(bytes([128 | len(rest) & 127, len(rest) >> 7]) + rest)
            stop = props.check(p, 0, len(p.buf), 1 << kind)
            if missing == spec5.AUTHENTICATION_METHOD:
                assert stop == errors.E_VALUE, kind
                continue
            assert stop == len(p.buf), (kind, missing)
            assert missing == spec5.USER_PROPERTY or not props.has(p, missing), (kind, missing)
            assert props.find(p.buf, p.props_at, p.props_end, missing) == -1


def test_every_value_has_the_length_of_its_type() -> None:
    """One byte less is a field beyond its block; one more is the next property's identifier."""
    for kind, ident in standing():
        before = needs(kind, ident)
        one = before + bytes([ident]) + VALUES[props.kind_of(ident)]
        for n in range(len(before) + 1, len(one)):
            assert outcome(kind, one[:n])[0] == errors.E_FIELD, (kind, ident, n)
        assert outcome(kind, one + b"\x00") == (errors.E_PROPERTY, len(one)), (kind, ident)


def test_every_type_in_place_of_every_other() -> None:
    """A value of another type is refused, or is one of this type as well."""
    for kind, ident in standing():
        right = props.kind_of(ident)
        for wrong in VALUES:
            before = needs(kind, ident)
            block = before + bytes([ident]) + VALUES[wrong]
            got = outcome(kind, block)
            if got[0]:
                assert got[0] in (errors.E_FIELD, errors.E_PROPERTY, errors.E_REPEATED, errors.E_VALUE, errors.E_UTF8,
                                  errors.E_RX_TOPIC), (kind, ident, wrong, got)  # fmt: skip
                assert wrong != right
                continue
            p = Packet5(bytes([len(block)]) + block)
            assert props.check(p, 0, len(p.buf), 1 << kind) == len(p.buf)
            at = len(before) + 1
            while at < len(p.buf):
                at = props.skip(p.buf, at)
            assert at == len(p.buf), (kind, ident, wrong)


def test_every_reason_code_in_every_packet() -> None:
    legal = set()
    for row in vectors.rows("mqtt5", "packets"):
        said = row.get("packet", {})
        if "reason_code" in said:
            legal.add((NAMES.index(said["type"]), said["reason_code"]))
        for code in said.get("reason_codes", ()):
            legal.add((NAMES.index(said["type"]), code))
    assert {code for _, code in legal} == set(CODES)
    shapes = {
        spec.CONNACK: (b"\x20\x03\x00", b"\x00"),
        spec.PUBACK: (b"\x40\x03\x00\x01", b""),
        spec.PUBREC: (b"\x50\x03\x00\x01", b""),
        spec.PUBREL: (b"\x62\x03\x00\x01", b""),
        spec.PUBCOMP: (b"\x70\x03\x00\x01", b""),
        spec.SUBACK: (b"\x90\x05\x00\x01\x00\x00", b""),
        spec.UNSUBACK: (b"\xb0\x05\x00\x01\x00\x00", b""),
        spec.DISCONNECT: (b"\xe0\x01", b""),
        spec5.AUTH: (b"\xf0\x06", b"\x04\x15\x00\x01m"),
    }
    for kind, (before, behind) in shapes.items():
        for code in range(256):
            data = before + bytes([code]) + behind
            p = Packet5(data)
            got = packets_server.decode_packet(p, 0, len(data))
            good = (kind, code) in legal
            assert got == len(data) if good else (got, p.bad_at) == (errors.E_CODE, len(before)), (
                kind,
                code,
                got,
            )
            assert not good or code_name(code, kind) != "unknown"
    assert code_name(0, spec.SUBACK) == "granted_qos_0"
    assert code_name(0, spec.DISCONNECT) == "normal_disconnection"
    assert code_name(0, spec.PUBACK) == "success"
    assert code_name(3, spec.PUBACK) == "unknown"


# -- writing -----------------------------------------------------------------------------------------------------------

# By type: values that are right, and values that are not.
RIGHT: "dict[int, tuple[int | bytes, ...]]" = {
    props.BYTE: (0, 1),
    props.TWO: (0, 1, 65535),
    props.TWO_NOT_0: (1, 65535),
    props.FOUR: (0, 1, 0xFFFFFFFF),
    props.FOUR_NOT_0: (1, 0xFFFFFFFF),
    props.VARINT: (1, 127, 128, 16383, 16384, 2097151, 2097152, 268435455),
    props.BINARY: (b"", b"\x00\xff", bytes(300)),
    props.TEXT: (b"", b"a", "é温".encode()),
    props.NAME: (b"a", b"$r/\xc3\xa9"),
    props.PAIR: (b"", b"k"),
}
WRONG: "dict[int, tuple[object, ...]]" = {
    props.BYTE: (2, -1, 256),
    props.TWO: (-1, 65536),
    props.TWO_NOT_0: (0, -1, 65536),
    props.FOUR: (-1, 1 << 32),
    props.FOUR_NOT_0: (0, -1, 1 << 32),
    props.VARINT: (0, -1, 268435456),
    props.BINARY: (bytes(65536),),
    props.TEXT: (b"\xff", b"a\x00", bytes(65536), b"\xed\xa0\x80"),
    props.NAME: (b"", b"a/#", b"+", b"\xff", b"a\x00"),
    props.PAIR: (b"\xff", b"\x00", bytes(65536)),
}
NO_NUMBERS = (None, "", "a", b"", b"a", (), [1], 1.5, 1.0)
NO_BYTES: "tuple[object, ...]" = (None, 0, 1, 1.5, "", "a", "é", [97], ("a",), {})


def test_every_value_that_is_right() -> None:
    for ident in PROPERTIES:
        kind = props.kind_of(ident)
        for value in RIGHT[kind]:
            made = Properties(400)
            other = b"value" if kind == props.PAIR else b""
            assert made.add(ident, value, other) == 0, (ident, value)
            size = props.size_of(ident, value, other)
            assert size == props.skip(made.block, len(made.block) - size) - (len(made.block) - size)
            p = Packet5(bytes(made.block))
            assert props.check(p, 0, len(p.buf), props.allowed(ident)) in (len(p.buf), errors.E_VALUE)
            at = props.find(p.buf, p.props_at, p.props_end, ident)
            if kind < props.BINARY:
                assert props.number(p.buf, at, ident) == value, (ident, value)
            else:
                n = p.buf[at] << 8 | p.buf[at + 1]
                assert p.buf[at + 2 : at + 2 + n] == value, (ident, value)
                assert p.buf[at + 2 + n :] == (b"\x00\x05value" if other else b"")


def test_the_longest_values() -> None:
    most = bytearray(b"a" * 65535)
    assert props.size_of(spec5.REASON_STRING, most) == props.size_of(spec5.CORRELATION_DATA, most) == 65538
    assert props.size_of(spec5.RESPONSE_TOPIC, most) == 65538
    assert props.size_of(spec5.USER_PROPERTY, most, most) == 131075
    buf = bytearray(65540)
    assert props.put(buf, 1, len(buf), spec5.REASON_STRING, most) == 65539
    assert buf[:5] == b"\x00\x1f\xff\xffa" and buf[65538:] == b"a\x00"
    assert props.put(buf, 1, 65538, spec5.REASON_STRING, most) == errors.E_TOO_LARGE


def test_every_value_that_is_wrong() -> None:
    for ident in PROPERTIES:
        kind = props.kind_of(ident)
        made = Properties(100)
        assert made.add(spec5.USER_PROPERTY, b"k", b"v") == 0
        before = bytes(made.block)
        for value in WRONG[kind] + (NO_NUMBERS if kind < props.BINARY else NO_BYTES):
            assert made.add(ident, value) == errors.E_ARGUMENT, (ident, value)  # type: ignore[arg-type]
            if kind == props.PAIR:
                assert made.add(ident, b"k", value) == errors.E_ARGUMENT, (ident, value)  # type: ignore[arg-type]
            assert made.block == before
            buf = bytearray(10)
            assert props.put(buf, 0, 10, ident, value) == errors.E_ARGUMENT  # type: ignore[arg-type]
            assert len(buf) == 10


def test_what_is_no_property() -> None:
    made = Properties(100)
    for ident in list(range(-2, 300)) + [1 << 40]:
        if ident not in PROPERTIES:
            assert made.add(ident, 1) == errors.E_ARGUMENT, ident
            assert props.put(bytearray(9), 0, 9, ident, b"a") == errors.E_ARGUMENT
            assert props.kind_of(ident) == props.allowed(ident) == 0
            assert not props.many(ident)
    assert made.block == b"\x00"


def test_a_block_is_for_its_packets() -> None:
    made = Properties(100, 1 << spec.SUBSCRIBE)
    assert made.add(spec5.TOPIC_ALIAS, 1) == errors.E_ARGUMENT
    assert made.add(spec5.SUBSCRIPTION_IDENTIFIER, 300) == 0
    assert made.add(spec5.SUBSCRIPTION_IDENTIFIER, 301) == errors.E_ARGUMENT
    assert made.add(spec5.USER_PROPERTY, b"k", b"v") == made.add(spec5.USER_PROPERTY, b"k", b"v") == 0
    made = Properties(100, 1 << spec.PUBLISH)
    assert made.add(spec5.SUBSCRIPTION_IDENTIFIER, 300) == made.add(spec5.SUBSCRIPTION_IDENTIFIER, 301) == 0
    assert made.add(spec5.TOPIC_ALIAS, 1) == 0
    assert made.add(spec5.TOPIC_ALIAS, 2) == errors.E_ARGUMENT
    assert made.block == b"\x09\x0b\xac\x02\x0b\xad\x02\x23\x00\x01"


def test_a_block_has_an_end() -> None:
    for size in range(12):
        made = Properties(size)
        fits = size // 5
        for k in range(4):
            assert made.add(spec5.USER_PROPERTY, b"", b"") == (0 if k < fits else errors.E_TOO_LARGE), (
                size,
                k,
            )
        assert len(made.block) == 1 + 5 * fits
        assert made.block[0] == 5 * fits


def test_a_block_is_changed_in_place() -> None:
    made = Properties(200)
    assert made.set(spec5.MESSAGE_EXPIRY_INTERVAL, 1) == errors.E_ARGUMENT
    for bad in (made.add(spec5.MESSAGE_EXPIRY_INTERVAL, 1), made.add(spec5.CORRELATION_DATA, b"abcd")):
        assert bad == 0
    assert made.add(spec5.USER_PROPERTY, b"k", b"v") == 0
    block = made.block
    assert made.set(spec5.MESSAGE_EXPIRY_INTERVAL, 0xFFFFFFFF) == 0
    assert made.set(spec5.CORRELATION_DATA, b"wxyz") == 0
    assert made.set(spec5.USER_PROPERTY, b"n", b"w") == 0
    assert made.block is block
    assert block == b"\x13\x02\xff\xff\xff\xff\x09\x00\x04wxyz\x26\x00\x01n\x00\x01w"
    for value in (b"abc", b"abcde", 4, None, "wxyz"):
        assert made.set(spec5.CORRELATION_DATA, value) == errors.E_ARGUMENT  # type: ignore[arg-type]
    assert made.set(spec5.MESSAGE_EXPIRY_INTERVAL, -1) == errors.E_ARGUMENT
    assert made.set(spec5.TOPIC_ALIAS, 1) == errors.E_ARGUMENT
    assert block == b"\x13\x02\xff\xff\xff\xff\x09\x00\x04wxyz\x26\x00\x01n\x00\x01w"
    # A length of two bytes, and back.
    assert made.add(spec5.CONTENT_TYPE, b"t" * 120) == 0
    assert bytes(made.block[:3]) == b"\x8e\x01\x02"
    made.clear()
    assert made.block == b"\x00"
    assert made.add(spec5.TOPIC_ALIAS, 7) == 0
    assert made.block == b"\x03\x23\x00\x07"


def test_repetitions_are_walked() -> None:
    made = Properties(100)
    for k in range(3):
        assert made.add(spec5.USER_PROPERTY, bytes([97 + k]), b"") == 0
        assert made.add(spec5.SUBSCRIPTION_IDENTIFIER, 127 + k) == 0
    buf = bytes(made.block)
    found = []
    at = props.find(buf, 1, len(buf), spec5.SUBSCRIPTION_IDENTIFIER)
    while at >= 0:
        found.append(props.number(buf, at, spec5.SUBSCRIPTION_IDENTIFIER))
        at = props.find(buf, props.skip(buf, at - 1), len(buf), spec5.SUBSCRIPTION_IDENTIFIER)
    assert found == [127, 128, 129]
    assert props.find(buf, 1, len(buf), spec5.TOPIC_ALIAS) == -1


def test_connect_arguments() -> None:
    def write(
        client_id: "Bytes" = b"c",
        keep_alive: int = 0,
        will_qos: int = 0,
        user: "Bytes | None" = None,
        password: "Bytes | None" = None,
    ) -> int:
        buf = bytearray(100)
        return packets.encode_connect(
            buf,
            0,
            100,
            client_id,
            keep_alive,
            False,
            b"w",
            b"",
            will_qos,
            False,
            user,
            password,
            spec5.PROTOCOL,
            spec5.NO_PROPERTIES,
            spec5.NO_PROPERTIES,
        )

    assert write() > 0
    assert write(b"") > 0
    assert write(password=b"p") > 0
    for bad in (write(bytes(65536)), write(keep_alive=65536), write(keep_alive=-1), write(will_qos=3)):
        assert bad == errors.E_ARGUMENT
    for bad in (write(user=bytes(65536)), write(password=bytes(65536))):
        assert bad == errors.E_ARGUMENT


def test_shared_subscriptions() -> None:
    """4.8.2."""
    for name, begins in (
        ("a", 0),
        ("$share", 0),
        ("$share1/a", 0),
        ("share/a/b", 0),
        ("$shar", 0),
        ("$SHARE/a/b", 0),
    ):
        assert unshared(b"/" + name.encode(), 1, 1 + len(name)) == begins + 1, name
    for name, begins in (("$share/g/a", 9), ("$share/g//", 9), ("$share/g/#", 9), ("$share/ab/+/c", 10)):
        assert unshared(b"/" + name.encode() + b"x", 1, 1 + len(name)) == begins + 1, name
        assert check_filter5(name.encode(), 0, len(name)) == 0
    for name in ("$share/", "$share/g", "$share/g/", "$share//a", "$share/+/a", "$share/#"):
        assert unshared(name.encode() + b"/a", 0, len(name)) == -1, name
        assert check_filter5(name.encode(), 0, len(name)) == 2, name
    assert check_filter5(b"a+", 0, 2) == 2
    assert check_filter5(b"\xff", 0, 1) == 1


def test_connack_of_an_old_server() -> None:
    """Only a refusal of the level is taken from 3.1.1 (its 3.2.2.3)."""
    for flags in range(3):
        for code in range(7):
            data = bytes([0x20, 2, flags, code])
            p = Packet5(data)
            got = packets_server.decode_packet(p, 0, 4)
            if (flags, code) == (0, 1):
                assert got == 4 and p.code == spec5.UNSUPPORTED_PROTOCOL_VERSION
                assert p.props_at == p.props_end
            else:
                assert got == (errors.E_SIZE if flags < 2 else errors.E_FLAGS)
