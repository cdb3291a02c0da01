"""Strategies for MQTT packets of every version: well-formed ones, as meanings of the reference, and damaged ones."""

import functools
from typing import Any

from hypothesis import strategies as st

from tests.fuzz import mqtt_reference as reference
from tests.fuzz.mqtt_reference import CODES, PROPERTIES, WILL, Meaning
from tests.fuzz.target_packets import encode

Said = list[tuple[int, Any]]


def _texts(exclude: str, **size: int) -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_characters=exclude, exclude_categories=["Cs"]), **size)


names = _texts("\0#+", min_size=1, max_size=12)
_texts_of_clients = _texts("\0", min_size=1, max_size=12)
_short = _texts("\0", max_size=6)
_ids = st.integers(1, 65535)
_payloads = st.binary(max_size=20) | st.integers(100, 200).map(bytes)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "byte": st.integers(0, 1),
    "two": st.integers(0, 0xFFFF),
    "four": st.integers(0, 0xFFFFFFFF),
    "varint": st.integers(0, 268435455),
    "binary": st.binary(max_size=8),
    "text": _short,
    "name": names,
    "pair": st.tuples(_short, _short),
}


def _property(ident: int) -> st.SearchStrategy[tuple[int, Any]]:
    values = _VALUES[PROPERTIES[ident][0]]
    return st.tuples(st.just(ident), values.filter(bool) if ident in reference.NOT_0 else values)


@functools.cache
def properties(where: int) -> st.SearchStrategy[Said]:
    """Properties that may stand beside each other in a packet of this type (0: the will)."""

    def sound(found: Said) -> Said:
        kept: Said = []
        for one in found:
            repeatable = one[0] == 38 or (one[0] == 11 and where == reference.PUBLISH)
            if repeatable or one[0] not in dict(kept):
                kept.append(one)
        if 21 not in dict(kept) and (where == reference.AUTH or 22 in dict(kept)):
            kept.append((21, "m"))
        return kept

    here = [_property(ident) for ident, (_, packets) in PROPERTIES.items() if where in packets]
    return st.lists(st.one_of(here), max_size=6).map(sound) if here else st.just([])


@functools.cache
def meanings(level: int) -> st.SearchStrategy[Meaning]:
    """Packets of every type, as ``mqtt_reference`` reads them; requests have one filter."""
    five = level == 5

    def said(where: int) -> st.SearchStrategy[Said]:
        return properties(where) if five else st.just([])

    def packet(*parts: Any) -> st.SearchStrategy[Meaning]:
        return st.tuples(*(one if isinstance(one, st.SearchStrategy) else st.just(one) for one in parts))

    def codes(kind: int) -> st.SearchStrategy[int]:
        if five:
            return st.sampled_from(sorted(CODES[kind]))
        return st.integers(0, 5) if kind == reference.CONNACK else st.sampled_from([0, 1, 2, 128])

    def publish(m: Meaning) -> Meaning:
        kind, topic, payload, qos, dup, retain, packet_id, found = m
        if not topic and 35 not in dict(found):
            found = [*found, (35, 1 + packet_id // 2)]
        return kind, topic, payload, qos, dup and qos > 0, retain, packet_id if qos else 0, found

    def connect(m: Meaning) -> Meaning:
        # Before 5.0 a password needs a user name.
        return m if five or m[6] is not None else (*m[:7], None)

    def subscribe(m: Meaning) -> Meaning:
        ((pattern, options),) = m[3]
        return (*m[:3], [(pattern, options & ~4 if pattern.startswith("$share/") else options)])

    sampled = ["#", "+", "a/+", "+/#", "/", "é/温", *(["$share/g/#", "$share"] if five else [])]
    filters = st.sampled_from(sampled) | names.filter(lambda name: not name.startswith("$share/"))
    allowed = [
        qos | more << 2 | handling << 4 for qos in range(3) for more in range(4) for handling in range(3)
    ]
    options = st.sampled_from(allowed if five else [0, 1, 2])
    will = st.tuples(names, st.binary(max_size=40), st.integers(0, 2), st.booleans(), said(WILL))
    acknowledged = [reference.PUBACK, reference.PUBREC, reference.PUBREL, reference.PUBCOMP]
    answered = [reference.SUBACK, *([reference.UNSUBACK] if five else [])]
    ended = [reference.DISCONNECT, reference.AUTH] if five else []
    bare = [reference.PINGREQ, reference.PINGRESP, *([] if five else [reference.DISCONNECT])]
    flag, requests = st.booleans(), (reference.SUBSCRIBE, reference.UNSUBSCRIBE)
    topics = names | st.just("") if five else names
    clients = _texts_of_clients | st.just("") if five else _texts_of_clients
    return st.one_of(
        packet(
            reference.PUBLISH, topics, _payloads, st.integers(0, 2), flag, flag, _ids, said(reference.PUBLISH)
        ).map(publish),
        packet(
            reference.CONNECT, flag, st.integers(0, 65535), said(reference.CONNECT), clients,
            st.none() | will, st.none() | _texts_of_clients, st.none() | st.binary(max_size=40),
        ).map(connect),
        packet(reference.CONNACK, flag, codes(reference.CONNACK), said(reference.CONNACK)).map(
            lambda m: (m[0], m[1] and not m[2], *m[2:])
        ),
        *(packet(kind, _ids, codes(kind) if five else 0, said(kind)) for kind in acknowledged),
        *([] if five else [packet(reference.UNSUBACK, _ids, 0, [])]),
        *(packet(kind, _ids, said(kind), st.lists(codes(kind), min_size=1, max_size=20)) for kind in answered),
        packet(requests[0], _ids, said(requests[0]), st.tuples(st.tuples(filters, options)).map(list)).map(subscribe),
        packet(requests[1], _ids, said(requests[1]), st.tuples(filters).map(list)),
        *(packet(kind, codes(kind), said(kind)) for kind in ended),
        *(packet(kind) for kind in bare),
    )  # fmt: skip


def encoded(m: Meaning, level: int) -> bytes:
    """The bytes that the encoders make of a meaning."""
    buf = bytearray(4000)
    end = encode(m, level, buf, 0, len(buf))
    assert end > 0, end
    return bytes(buf[:end])


def sensible(level: int) -> st.SearchStrategy[bytes]:
    """A well-formed packet of any type."""
    return meanings(level).map(lambda m: encoded(m, level))


def damage_bytes(data: bytes, how: int, at: int, value: int) -> bytes:
    """Damage a packet in one of five ways."""
    damaged = bytearray(data)
    at %= len(data)
    if how == 0:
        damaged[at] = value
    elif how == 1:
        damaged[at] ^= 1 << value % 8
    elif how == 2:
        del damaged[at]
    elif how == 3:
        damaged.insert(at, value)
    else:
        # The remaining length, where lengths go wrong.
        damaged[1 % len(damaged)] = value
    return bytes(damaged)


def _damaged(data: bytes, damages: list[tuple[int, int, int]]) -> bytes:
    for how, at, value in damages:
        data = damage_bytes(data, how, at, value) if data else data
    return data


_damages = st.tuples(st.integers(0, 4), st.integers(0, 300), st.integers(0, 255))


def damaged(packets: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Bytes that were one of these packets before one to three of them were changed, dropped or added."""
    return st.builds(_damaged, packets, st.lists(_damages, min_size=1, max_size=3))
