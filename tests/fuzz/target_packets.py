"""Targets: what MQTT's packets are made of, against the reference; what looks alike against each other.

A packet's input is its bytes. A block of properties has in front of it where it stands (a packet type, 0 for the will).
A topic name and a topic filter have a line feed between them.
"""

from collections.abc import Callable
from typing import Any

from headwater import errors
from headwater.mqtt import packets, packets_server, spec, spec5, topics
from headwater.mqtt import properties as props
from headwater.reasons import REASONS
from headwater.wire import check_utf8, get_u16
from headwater_host.topics import check_name as host_check_name
from tests.fuzz import mqtt_reference as reference
from tests.fuzz.guarded import Guarded
from tests.fuzz.mqtt_reference import Malformed, Meaning

PROTOCOLS = {3: spec.PROTOCOL_31, 4: packets.PROTOCOL, 5: spec5.PROTOCOL}
BEFORE, BEHIND = b"\xd5\x30", b"\x00\xffa"

# -- what a cursor says ------------------------------------------------------------------------------------------------


def _text(p: packets.Packet, at: int, end: int) -> str | None:
    return str(p.buf[at:end], "utf-8") if at >= 0 else None


def _bytes(p: packets.Packet, at: int, end: int) -> bytes | None:
    return bytes(p.buf[at:end]) if at >= 0 else None


def _block(p: packets.Packet, at: int) -> bytes:
    return bytes(p.buf[at + 2 : at + 2 + get_u16(p.buf, at)])


def _value(p: packets.Packet, at: int, ident: int) -> Any:
    kind = props.kind_of(ident)
    if kind < props.BINARY:
        return props.number(p.buf, at, ident)
    first = _block(p, at)
    if kind == props.BINARY:
        return first
    return (
        (str(first, "utf-8"), str(_block(p, at + 2 + len(first)), "utf-8"))
        if kind == props.PAIR
        else first.decode()
    )


def properties(p: packets.Packet, at: int, end: int) -> list[tuple[int, Any]]:
    """The properties of a block that was checked, walked in both ways that there are."""
    found = []
    while at < end:
        ident = p.buf[at]
        assert props.find(p.buf, at, end, ident) == at + 1
        found.append((ident, _value(p, at + 1, ident)))
        at = props.skip(p.buf, at)
    assert at == end
    return found


def _said_properties(p: packets.Packet) -> list[tuple[int, Any]]:
    if not isinstance(p, props.Packet5):
        return []
    found = properties(p, p.props_at, p.props_end)
    present = {ident for ident, _ in found}
    for ident in range(props.LAST + 1):
        assert (props.find(p.buf, p.props_at, p.props_end, ident) >= 0) == (ident in present)
        if props.allowed(ident) >> p.kind() & 1 and ident != spec5.USER_PROPERTY:
            assert props.has(p, ident) == (ident in present) or ident == spec5.SUBSCRIPTION_IDENTIFIER
    return found


def _connect(p: packets.Packet, c: packets_server.Connect) -> Meaning:
    five = c.level == 5
    will = None
    if c.will_topic_at >= 0:
        will = (
            _text(p, c.will_topic_at, c.will_topic_end),
            _bytes(p, c.will_payload_at, c.will_payload_end),
            c.will_qos(),
            c.will_retain(),
            properties(p, c.will_props_at, c.will_props_end) if five else [],
        )
    return (
        spec.CONNECT,
        c.clean_start(),
        c.keep_alive,
        properties(p, c.props_at, c.props_end) if five else [],
        _text(p, c.client_id_at, c.client_id_end),
        will,
        _text(p, c.user_at, c.user_end),
        _bytes(p, c.password_at, c.password_end),
    )


def _filters(p: packets.Packet) -> list[Any]:
    found: list[Any] = []
    options = packets_server.next_filter(p)
    while options >= 0:
        name = p.topic_text()
        found.append((name, options) if p.kind() == spec.SUBSCRIBE else name)
        options = packets_server.next_filter(p)
    assert len(found) == p.code
    return found


def said(p: packets.Packet, level: int) -> Meaning:
    """What a cursor says of a packet that its decoder took, in the reference's words."""
    kind = p.kind()
    if kind == spec.CONNECT:
        c = packets_server.Connect((PROTOCOLS[level],))
        assert packets_server.decode_connect(p, c) == 0
        return _connect(p, c)
    if kind == spec.PUBLISH:
        name = p.topic_bytes()
        assert p.topic_is(name) and not p.topic_is(name + b"x")
        payload = p.payload_bytes()
        found = _said_properties(p)
        return kind, p.topic_text(), payload, p.qos(), p.dup(), p.retain(), p.packet_id, found
    if kind == spec.CONNACK:
        return kind, p.session_present, p.code, _said_properties(p)
    if spec.PUBACK <= kind <= spec.PUBCOMP or (kind == spec.UNSUBACK and level < 5):
        return kind, p.packet_id, p.code if level == 5 else 0, _said_properties(p)
    if kind in (spec.SUBACK, spec.UNSUBACK):
        return kind, p.packet_id, _said_properties(p), list(p.buf[p.payload_at : p.end])
    if kind in (spec.SUBSCRIBE, spec.UNSUBSCRIBE):
        return kind, p.packet_id, _said_properties(p), _filters(p)
    if kind in (spec.DISCONNECT, spec5.AUTH) and level == 5:
        return kind, p.code, _said_properties(p)
    return (kind,)


# -- and back ----------------------------------------------------------------------------------------------------------


def encoded_properties(found: list[tuple[int, Any]], where: int) -> bytes:
    """The block that the encoder makes of them."""
    made = props.Properties(2000, where)
    for ident, value in found:
        first, second = value if isinstance(value, tuple) else (value, "")
        if isinstance(first, str):
            first = first.encode()
        assert made.add(ident, first, second.encode()) == 0, (ident, value)
    return bytes(made.block)


def encode(m: Meaning, level: int, buf: bytearray, at: int, limit: int) -> int:
    """Encode a meaning at ``at``: the end, an error, or 0 for what there is no encoder for."""
    kind = m[0]
    five = level == 5
    where = buf, at, limit

    def block(found: list[tuple[int, Any]]) -> tuple[bytes, ...]:
        return (encoded_properties(found, 1 << kind),) if five else ()

    if kind == spec.CONNECT:
        _, clean, keep_alive, found, client_id, will, user, password = m
        if not five and not clean and not client_id:
            # Well-formed, and refused by every server: not written.
            return 0
        topic, message, qos, retain, will_found = will or (None, b"", 0, False, [])
        return packets.encode_connect(
            *where, client_id.encode(), keep_alive, clean,
            None if topic is None else topic.encode(), message, qos, retain,
            None if user is None else user.encode(), password, PROTOCOLS[level],
            *block(found), *([encoded_properties(will_found, props.WILL_PROPERTIES)] if five else []),
        )  # fmt: skip
    if kind == spec.CONNACK:
        return packets_server.encode_connack(*where, m[1], m[2], *block(m[3]))
    if kind == spec.PUBLISH:
        _, name, payload, qos, dup, retain, packet_id, found = m
        head = 0x30 | qos << 1 | dup << 3 | retain
        return packets.encode_publish(*where, name.encode(), payload, head, packet_id, *block(found))
    if kind in (spec.SUBSCRIBE, spec.UNSUBSCRIBE):
        if len(m[3]) > 1:
            return 0
        name, options = m[3][0] if kind == spec.SUBSCRIBE else (m[3][0], -1)
        return packets.encode_subscribe(*where, m[1], name.encode(), options, *block(m[2]))
    if kind == spec.SUBACK or (kind == spec.UNSUBACK and five):
        return packets_server.encode_suback(
            *where, m[1], bytes(m[3]), *((*block(m[2]), kind) if five else ())
        )
    if len(m) == 4:
        if five:
            return props.encode_reason(*where, kind, m[1], m[2], *block(m[3]))
        return packets.encode_ack(*where, kind, m[1])
    if len(m) == 3:
        return props.encode_reason(*where, kind, 0, m[1], *block(m[2]))
    return packets.encode_bare(*where, kind)


# -- packets -----------------------------------------------------------------------------------------------------------


def _cursor(level: int, data: bytes) -> packets.Packet:
    buf = Guarded(BEFORE + data + BEHIND)
    buf.start = len(BEFORE)
    buf.end = buf.start + len(data)
    p = props.Packet5(buf) if level == 5 else packets.Packet(buf)
    if level == 3:
        p.flags = spec.FLAGS_31
    return p


def _verdict(data: bytes, level: int) -> tuple[Meaning, int] | int:
    """What the reference makes of ``data``: -1 for malformed, 0 for not all there."""
    try:
        return reference.decode(data, level) or 0
    except Malformed:
        return -1


def _rightly_early(data: bytes, level: int) -> bool:
    """Whether a packet of which this is the beginning is malformed, whatever follows."""
    size = 0
    for i in range(1, len(data)):
        size |= (data[i] & 127) << 7 * (i - 1)
        if data[i] < 128:
            # The fixed header alone may be answered before the rest is here: its size is wrong for any content.
            kinds = {2: 2, 4: 2, 5: 2, 6: 2, 7: 2, 11: 2, 12: 0, 13: 0, 14: 0}
            if level == 5:
                kinds = {12: 0, 13: 0}
            return size != kinds.get(data[0] >> 4, size)
    return False


def judged(data: bytes, level: int) -> tuple[int, int]:
    """Decode the packet at the beginning of ``data`` and compare with the reference: size or error, offset of the
    error."""
    want = _verdict(data, level)
    p = _cursor(level, data)
    start, end = len(BEFORE), len(BEFORE) + len(data)
    got = packets_server.decode_packet(p, start, end, PROTOCOLS[level])
    bad_at = p.bad_at
    if got < 0:
        assert errors.blame(got) == errors.PEER and got in REASONS
        assert start <= bad_at <= end
        assert want == -1 or (want == 0 and _rightly_early(data, level)), (want, REASONS[got])
        return got, bad_at - start
    if got == 0:
        assert want == 0, want
        return 0, 0
    assert isinstance(want, tuple), want
    assert got - start == want[1]
    assert said(p, level) == want[0]
    _and_back(want[0], level, len(data))
    return got - start, 0


def packet(data: bytes, level: int) -> None:
    """The packet at the beginning of ``data``."""
    whole = judged(data, level)
    # Whatever of it came first was either not enough, or showed the same error.
    for n in {len(data) // 2, len(data) - 1} - {-1}:
        early = judged(data[:n], level)
        assert early in ((0, 0), whole), (n, early, whole)


def _and_back(m: Meaning, level: int, size: int) -> None:
    buf = bytearray(size + 16)
    end = encode(m, level, buf, 0, len(buf))
    assert end >= 0, REASONS[end]
    if end:
        assert reference.decode(bytes(buf[:end]), level) == (m, end)


def packet_3(data: bytes) -> None:
    """MQTT 3.1."""
    packet(data, 3)


def packet_4(data: bytes) -> None:
    """MQTT 3.1.1."""
    packet(data, 4)


def packet_5(data: bytes) -> None:
    """MQTT 5.0."""
    packet(data, 5)


# -- properties --------------------------------------------------------------------------------------------------------


def property_block(data: bytes) -> None:
    """A block of properties, in the packet that the first byte names."""
    where, data = data[0] & 15 if data else 0, data[1:]
    p = _cursor(5, data)
    assert isinstance(p, props.Packet5)
    r = reference.Reader(data)
    try:
        want = reference.properties(r, where)
    except Malformed:
        want = None
    start = len(BEFORE)
    end = props.check(p, start, start + len(data), 1 << where)
    if end < 0:
        assert errors.blame(end) == errors.PEER and end in REASONS
        assert start <= p.bad_at <= start + len(data)
        assert want is None, (want, REASONS[end])
        return
    assert want is not None
    assert end - start == len(data) - len(r.data)
    found = properties(p, p.props_at, p.props_end)
    assert found == want
    for ident in range(props.LAST + 1):
        if props.allowed(ident) >> where & 1 and ident not in (
            spec5.USER_PROPERTY,
            spec5.SUBSCRIPTION_IDENTIFIER,
        ):
            assert props.has(p, ident) == (ident in dict(want))
    block = encoded_properties(found, 1 << where)
    assert reference.properties(reference.Reader(block), where) == want


# -- topics ------------------------------------------------------------------------------------------------------------


def _taken(read: Callable[[reference.Reader], str], data: bytes) -> bool:
    r = reference.Reader(len(data).to_bytes(2, "big") + data)
    try:
        read(r)
    except Malformed:
        return False
    return True


def topic(data: bytes) -> None:
    """A topic name and a topic filter."""
    name, _, pattern = data.partition(b"\n")
    buf = Guarded(b"#" + name + b"\xff")
    buf.start, buf.end = 1, 1 + len(name)
    got = packets.check_name(buf, 1, buf.end)
    assert (got == 0) == _taken(reference.Reader.name, name)
    assert (got == packets.BAD_UTF8) == (not _taken(reference.Reader.text, name))
    assert host_check_name(b"+" + name, 1, 1 + len(name)) == got
    assert (check_utf8(buf, 1, buf.end) < 0) == _taken(reference.Reader.text, name)

    plain = packets.check_filter(pattern, 0, len(pattern))
    assert (plain == 0) == _taken(lambda r: r.filter(False), pattern)
    five = props.check_filter5(pattern, 0, len(pattern))
    assert (five == 0) == _taken(lambda r: r.filter(True), pattern)
    if plain == 0:
        inner = props.unshared(pattern, 0, len(pattern))
        shared = pattern.startswith(b"$share/")
        assert (inner > 0) == (shared and five == 0) and (inner < 0) == (five != 0)
        if inner > 0:
            assert pattern[inner:] == pattern.split(b"/", 2)[2]
        if got == 0:
            matches = topics.matches(pattern, buf, 1, buf.end)
            assert matches == reference.matches(pattern.decode(), name.decode())
