"""MQTT's packets again, from the specifications and in another way: what the real decoders are held against.

Slices, exceptions and Python's own UTF-8; one reader for 3.1 (level 3), 3.1.1 (4) and 5.0 (5). A packet's meaning is a
tuple: its type, then its fields in their order. Properties are (identifier, value) pairs, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Meaning = tuple[Any, ...]

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE = range(1, 9)
SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(9, 16)
WILL = 0

NAMES = {3: (b"MQIsdp", 3), 4: (b"MQTT", 4), 5: (b"MQTT", 5)}


class Malformed(Exception):  # noqa: N818 (the specification's word)
    """This is no packet of the version, whatever may follow."""


def demand(condition: object) -> None:
    """Raises Malformed unless ``condition`` holds."""
    if not condition:
        raise Malformed


class Reader:
    """Takes values off the front of ``data``."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, n: int) -> bytes:
        """The next ``n`` bytes."""
        demand(n <= len(self.data))
        value, self.data = self.data[:n], self.data[n:]
        return value

    def number(self, n: int) -> int:
        """A big-endian number of ``n`` bytes."""
        return int.from_bytes(self.take(n), "big")

    def varint(self) -> int:
        """A variable byte integer (1.5.5)."""
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.number(1)
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise Malformed

    def binary(self) -> bytes:
        """Binary data (1.5.6)."""
        return self.take(self.number(2))

    def text(self) -> str:
        """A UTF-8 encoded string (1.5.4)."""
        try:
            value = self.binary().decode()
        except UnicodeDecodeError:
            raise Malformed from None
        demand("\0" not in value)
        return value

    def name(self) -> str:
        """A topic name (4.7)."""
        value = self.text()
        demand(value and not {"#", "+"} & set(value))
        return value

    def filter(self, shared: bool) -> str:
        """A topic filter (4.7), from 5.0 on also a shared subscription's (4.8.2)."""
        value = self.text()
        levels = value.split("/")
        demand(value)
        for i, level in enumerate(levels):
            demand(level in ("+", "#") or not {"#", "+"} & set(level))
            demand(level != "#" or i == len(levels) - 1)
        if shared and levels[0] == "$share" and len(levels) > 1:
            demand(levels[1] not in ("", "+", "#") and "/".join(levels[2:]))
        return value

    def end(self) -> None:
        """Nothing may follow."""
        demand(not self.data)


# -- properties (2.2.2.2) ----------------------------------------------------------------------------------------------

_TYPES: dict[str, Callable[[Reader], Any]] = {
    "byte": lambda r: r.number(1),
    "two": lambda r: r.number(2),
    "four": lambda r: r.number(4),
    "varint": Reader.varint,
    "binary": Reader.binary,
    "text": Reader.text,
    "name": Reader.name,
    "pair": lambda r: (r.text(), r.text()),
}
_REASONED = {CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH}
_EVERYWHERE = {WILL, CONNECT, PUBLISH, SUBSCRIBE, UNSUBSCRIBE} | _REASONED

#: Table 2-4: the value's type, and the packets.
PROPERTIES: dict[int, tuple[str, set[int]]] = {
    1: ("byte", {PUBLISH, WILL}),
    2: ("four", {PUBLISH, WILL}),
    3: ("text", {PUBLISH, WILL}),
    8: ("name", {PUBLISH, WILL}),
    9: ("binary", {PUBLISH, WILL}),
    11: ("varint", {PUBLISH, SUBSCRIBE}),
    17: ("four", {CONNECT, CONNACK, DISCONNECT}),
    18: ("text", {CONNACK}),
    19: ("two", {CONNACK}),
    21: ("text", {CONNECT, CONNACK, AUTH}),
    22: ("binary", {CONNECT, CONNACK, AUTH}),
    23: ("byte", {CONNECT}),
    24: ("four", {WILL}),
    25: ("byte", {CONNECT}),
    26: ("text", {CONNACK}),
    28: ("text", {CONNACK, DISCONNECT}),
    31: ("text", _REASONED),
    33: ("two", {CONNECT, CONNACK}),
    34: ("two", {CONNECT, CONNACK}),
    35: ("two", {PUBLISH}),
    36: ("byte", {CONNACK}),
    37: ("byte", {CONNACK}),
    38: ("pair", _EVERYWHERE),
    39: ("four", {CONNECT, CONNACK}),
    40: ("byte", {CONNACK}),
    41: ("byte", {CONNACK}),
    42: ("byte", {CONNACK}),
}
#: Those of which 3.1.2.11, 3.2.2.3 and 3.3.2.3 say that 0 is a protocol error.
NOT_0 = {11, 33, 35, 39}


def properties(r: Reader, where: int) -> list[tuple[int, Any]]:
    """A block of properties, in the packet or the will ``where``."""
    block = Reader(r.take(r.varint()))
    found: list[tuple[int, Any]] = []
    while block.data:
        ident = block.number(1)
        kind, packets = PROPERTIES.get(ident, ("", set()))
        demand(where in packets)
        repeatable = ident == 38 or (ident == 11 and where == PUBLISH)
        demand(repeatable or ident not in dict(found))
        value = _TYPES[kind](block)
        demand(kind != "byte" or value < 2)
        demand(ident not in NOT_0 or value)
        found.append((ident, value))
    demand(22 not in dict(found) or 21 in dict(found))
    return found


# -- reason codes (2.4) ------------------------------------------------------------------------------------------------


def _codes(text: str) -> set[int]:
    return {int(code, 16) for code in text.split()}


_PUB = _codes("00 10 80 83 87 90 91 97 99")
# What mosquitto says above its message_size_limit, against 3.4.2.1 and 3.5.2.1: docs/mqtt-session.md.
_TOO_LARGE = {0x95}
#: Tables of 3.2.2.2, 3.4.2.1 to 3.7.2.1, 3.9.3, 3.11.3, 3.14.2.1 and 3.15.2.1; 0x8c in DISCONNECT is only in 2.4's.
CODES = {
    CONNACK: _codes("00 80 81 82 83 84 85 86 87 88 89 8a 8c 90 95 97 99 9a 9b 9c 9d 9f"),
    PUBACK: _PUB | _TOO_LARGE,
    PUBREC: _PUB | _TOO_LARGE,
    PUBREL: _codes("00 92"),
    PUBCOMP: _codes("00 92"),
    SUBACK: _codes("00 01 02 80 83 87 8f 91 97 9e a1 a2"),
    UNSUBACK: _codes("00 11 80 83 87 8f 91"),
    DISCONNECT: _codes(
        "00 04 80 81 82 83 87 89 8b 8c 8d 8e 8f 90 93 94 95 96 97 98 99 9a 9b 9c 9d 9e 9f a0 a1 a2"
    ),
    AUTH: _codes("00 18 19"),
}


def _code(r: Reader, kind: int) -> int:
    code = r.number(1)
    demand(code in CODES[kind])
    return code


# -- packets -----------------------------------------------------------------------------------------------------------


def split(data: bytes, level: int) -> tuple[int, bytes, int] | None:
    """(first byte, body, size) of the packet that ``data`` begins with; None when more is needed."""
    if not data:
        return None
    kind, flags = data[0] >> 4, data[0] & 15
    demand(1 <= kind <= (15 if level == 5 else 14))
    if kind == PUBLISH:
        demand(flags & 6 != 6 and (flags & 8 == 0 or flags & 6))
    elif level > 3:
        demand(flags == (2 if kind in (PUBREL, SUBSCRIBE, UNSUBSCRIBE) else 0))
    elif kind in (PUBREL, SUBSCRIBE, UNSUBSCRIBE):
        # 3.1 has QoS 1 in them, and DUP where it may.
        demand(flags & 6 == 2)
    size = 0
    for i in range(1, 5):
        if i == len(data):
            return None
        size |= (data[i] & 127) << 7 * (i - 1)
        if data[i] < 128:
            end = i + 1 + size
            return (data[0], data[i + 1 : end], end) if end <= len(data) else None
    raise Malformed


def _connect(r: Reader, level: int) -> Meaning:
    demand((r.binary(), r.number(1)) == NAMES[level])
    flags = r.number(1)
    demand(not flags & 1)
    if flags & 4:
        demand(flags & 0x18 != 0x18)
    else:
        demand(not flags & 0x38)
    demand(level == 5 or flags & 0x80 or not flags & 0x40)
    keep_alive = r.number(2)
    said = properties(r, CONNECT) if level == 5 else []
    client_id = r.text()
    will = None
    if flags & 4:
        will_said = properties(r, WILL) if level == 5 else []
        will = (r.name(), r.binary(), flags >> 3 & 3, bool(flags & 0x20), will_said)
    # 3.1, 3.1: a string that the flags promise may be missing, with what would follow it.
    has_user = flags & 0x80 and (level > 3 or r.data)
    user = r.text() if has_user else None
    has_password = flags & 0x40 and (level > 3 or r.data)
    password = r.binary() if has_password else None
    r.end()
    return CONNECT, bool(flags & 2), keep_alive, said, client_id, will, user, password


def _connack(r: Reader, level: int) -> Meaning:
    flags = r.number(1)
    demand(flags < 2)
    if level < 5:
        code = r.number(1)
        demand(code < 6)
        r.end()
        said: list[tuple[int, Any]] = []
    elif len(r.data) == 1:
        # A server that does not know 5.0 says so in the words of 3.1.1.
        demand(flags == 0 and r.number(1) == 1)
        code, said = 0x84, []
    else:
        code = _code(r, CONNACK)
        said = properties(r, CONNACK)
        r.end()
    demand(not (flags and code))
    return CONNACK, bool(flags), code, said


def _publish(r: Reader, level: int, head: int) -> Meaning:
    topic = r.text()
    demand(not {"#", "+"} & set(topic))
    packet_id = 0
    if head & 6:
        packet_id = r.number(2)
        demand(packet_id)
    said = properties(r, PUBLISH) if level == 5 else []
    demand(topic or 35 in dict(said))
    return PUBLISH, topic, r.data, head >> 1 & 3, bool(head & 8), bool(head & 1), packet_id, said


def _reason(r: Reader, kind: int) -> tuple[int, list[tuple[int, Any]]]:
    """A reason code and properties at the end of a packet, which may be left out."""
    code = _code(r, kind) if r.data else 0
    said = properties(r, kind) if r.data else []
    r.end()
    return code, said


def _identified(r: Reader, level: int, kind: int) -> Meaning:
    packet_id = r.number(2)
    demand(packet_id)
    if level == 5:
        return kind, packet_id, *_reason(r, kind)
    r.end()
    return kind, packet_id, 0, []


def _listed(r: Reader, level: int, kind: int) -> Meaning:
    """SUBSCRIBE, SUBACK, UNSUBSCRIBE, and 5.0's UNSUBACK: a packet id, properties, and a list that is not empty."""
    packet_id = r.number(2)
    demand(packet_id)
    said = properties(r, kind) if level == 5 else []
    demand(r.data)
    items: list[Any] = []
    while r.data:
        items.append(_item(r, level, kind))
    return kind, packet_id, said, items


def _item(r: Reader, level: int, kind: int) -> Any:
    if kind in (SUBACK, UNSUBACK):
        if level == 5:
            return _code(r, kind)
        code = r.number(1)
        demand(code in (0, 1, 2, 0x80))
        return code
    pattern = r.filter(level == 5)
    if kind == UNSUBSCRIBE:
        return pattern
    options = r.number(1)
    if level == 5:
        demand(not options & 0xC0 and options & 3 != 3 and options & 0x30 != 0x30)
        demand(not (options & 4 and pattern.startswith("$share/")))
    else:
        demand(options < 3)
    return pattern, options


def meaning(head: int, body: bytes, level: int) -> Meaning:
    """What a whole packet says."""
    kind = head >> 4
    r = Reader(body)
    if kind == CONNECT:
        return _connect(r, level)
    if kind == CONNACK:
        return _connack(r, level)
    if kind == PUBLISH:
        return _publish(r, level, head)
    if kind in (PUBACK, PUBREC, PUBREL, PUBCOMP) or (kind == UNSUBACK and level < 5):
        return _identified(r, level, kind)
    if kind in (SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK):
        return _listed(r, level, kind)
    if kind in (PINGREQ, PINGRESP) or level < 5:
        r.end()
        return (kind,)
    code, said = _reason(r, kind)
    # 3.15.2.2.2; an empty AUTH is a success of a method that is known.
    demand(kind != AUTH or not body or 21 in dict(said))
    return kind, code, said


def decode(data: bytes, level: int) -> tuple[Meaning, int] | None:
    """The meaning and size of the packet that ``data`` begins with; None when more is needed; Malformed."""
    parts = split(data, level)
    if parts is None:
        return None
    head, body, size = parts
    return meaning(head, body, level), size


def stream(data: bytes, level: int) -> Iterator[tuple[Meaning, int] | None]:
    """The packets of a stream, with the offset behind each; None at its end for what is malformed."""
    at = 0
    while at < len(data):
        try:
            found = decode(data[at:], level)
        except Malformed:
            yield None
            return
        if found is None:
            return
        at += found[1]
        yield found[0], at


# -- matching (4.7) ----------------------------------------------------------------------------------------------------


def matches(pattern: str, name: str) -> bool:
    """Whether a topic name matches a well-formed filter: level by level."""
    if name.startswith("$") and pattern[0] in "+#":
        return False
    levels, parts = pattern.split("/"), name.split("/")
    for i, level in enumerate(levels):
        if level == "#":
            return True
        if i >= len(parts) or level not in ("+", parts[i]):
            return False
    return len(levels) == len(parts)
