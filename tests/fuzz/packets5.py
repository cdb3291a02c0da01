"""Strategies for MQTT 5.0 packets: sensible ones of every type with properties, and ones that were damaged."""

import functools

from hypothesis import strategies as st

from headwater.mqtt import packets, packets_server, properties, spec, spec5
from headwater.mqtt.properties import CODES, Properties
from headwater.names5 import PROPERTIES
from headwater.types import Bytes
from tests.fuzz.packets import Sample, damaged, ids, names, payloads, texts

#: A property: identifier, value, a pair's second text.
Property = tuple[int, int | bytes, bytes]

_utf8 = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6).map(str.encode)
_small = st.just(b"")
#: By type of value: what it may be.
VALUES: dict[int, st.SearchStrategy[tuple[int | bytes, bytes]]] = {
    properties.BYTE: st.tuples(st.integers(0, 1), _small),
    properties.TWO: st.tuples(st.integers(0, 65535), _small),
    properties.TWO_NOT_0: st.tuples(st.integers(1, 65535), _small),
    properties.FOUR: st.tuples(st.integers(0, 0xFFFFFFFF), _small),
    properties.FOUR_NOT_0: st.tuples(st.integers(1, 0xFFFFFFFF), _small),
    properties.VARINT: st.tuples(st.integers(1, 268435455), _small),
    properties.BINARY: st.tuples(st.binary(max_size=8), _small),
    properties.TEXT: st.tuples(_utf8, _small),
    properties.NAME: st.tuples(names.map(str.encode), _small),
    properties.PAIR: st.tuples(_utf8, _utf8),
}


def _one(ident: int) -> st.SearchStrategy[Property]:
    return VALUES[properties.kind_of(ident)].map(lambda value: (ident, *value))


_ONE = {ident: _one(ident) for ident in sorted(PROPERTIES)}


@functools.cache
def lists(kind: int) -> st.SearchStrategy[list[Property]]:
    """Properties that may stand beside each other in a packet of this type (0: the will)."""
    idents = sorted(ident for ident in PROPERTIES if properties.allowed(ident) >> kind & 1)

    def sound(found: list[Property]) -> list[Property]:
        kept: list[Property] = []
        for one in found:
            again = one[0] != spec5.USER_PROPERTY and any(one[0] == other[0] for other in kept)
            if not again or (one[0] == spec5.SUBSCRIPTION_IDENTIFIER and kind == spec.PUBLISH):
                kept.append(one)
        method: Property = (spec5.AUTHENTICATION_METHOD, b"m", b"")
        here = {one[0] for one in kept}
        if method[0] not in here and (kind == spec5.AUTH or spec5.AUTHENTICATION_DATA in here):
            kept.append(method)
        return kept

    return st.lists(st.one_of([_ONE[ident] for ident in idents]), max_size=6).map(sound)


def block(found: list[Property]) -> Bytes:
    """Their block."""
    made = Properties(1500)
    for one in found:
        assert made.add(*one) == 0, one
    return made.block


def blocks(kind: int) -> st.SearchStrategy[Bytes]:
    """Blocks of a packet of this type."""
    return lists(kind).map(block)


def codes(kind: int) -> st.SearchStrategy[int]:
    """The reason codes of a packet of this type."""
    rows = [CODES[i : i + 3] for i in range(0, len(CODES), 3)]
    return st.sampled_from([row[0] for row in rows if (row[1] << 8 | row[2]) >> kind & 1])


def _publish(topic: str, payload: bytes, qos: int, flags: int, packet_id: int, made: Bytes) -> Sample:
    head = 0x30 | qos << 1 | flags & (9 if qos else 1)
    # Its first byte tells an alias, which may stand for the topic.
    name = topic.encode()

    def call(buf: bytearray, at: int, limit: int) -> int:
        return packets.encode_publish(buf, at, limit, name, payload, head, packet_id if qos else 0, made)

    return Sample(f"PUBLISH {topic!r} {bytes(made)!r}", call)


def _nameless(payload: bytes, alias: int) -> Sample:
    made = block([(spec5.TOPIC_ALIAS, alias, b"")])
    return Sample(
        f"PUBLISH by alias {alias}",
        lambda buf, at, limit: packets.encode_publish(buf, at, limit, b"", payload, 0x30, 0, made),
    )


def _acknowledge(kind: int) -> st.SearchStrategy[Sample]:
    return st.builds(
        lambda packet_id, code, made: Sample(
            f"{kind} {packet_id} {code} {bytes(made)!r}",
            lambda buf, at, limit: properties.encode_reason(buf, at, limit, kind, packet_id, code, made),
        ),
        ids,
        codes(kind),
        blocks(kind),
    )


def _connect(
    client_id: str,
    clean: bool,
    will: tuple[str, Bytes] | None,
    user: str | None,
    password: bytes | None,
    made: Bytes,
) -> Sample:
    def call(buf: bytearray, at: int, limit: int) -> int:
        return packets.encode_connect(
            buf,
            at,
            limit,
            client_id.encode(),
            30,
            clean,
            None if will is None else will[0].encode(),
            b"\0gone",
            1,
            False,
            None if user is None else user.encode(),
            password,
            spec5.PROTOCOL,
            made,
            b"\0" if will is None else will[1],
        )

    return Sample(f"CONNECT {client_id!r} {will} {bytes(made)!r}", call)


def _request(packet_id: int, topic_filter: str, options: int, made: Bytes) -> Sample:
    return Sample(
        f"request {topic_filter!r} {options} {bytes(made)!r}",
        lambda buf, at, limit: packets.encode_subscribe(
            buf, at, limit, packet_id, topic_filter.encode(), options, made
        ),
    )


def _answers(kind: int) -> st.SearchStrategy[Sample]:
    return st.builds(
        lambda packet_id, found, made: Sample(
            f"{kind} {found} {bytes(made)!r}",
            lambda buf, at, limit: packets_server.encode_suback(
                buf, at, limit, packet_id, bytes(found), made, kind
            ),
        ),
        ids,
        st.lists(codes(kind), min_size=1, max_size=4),
        blocks(kind),
    )


_filters = st.sampled_from(["#", "+", "a/+", "$share/g/#", "$share", "é/温"]) | names.filter(
    lambda name: not name.startswith("$share/")
)
_options = st.sampled_from(
    [qos | keep << 3 | handling << 4 for qos in range(3) for keep in (0, 1) for handling in range(3)]
)
publishes = st.builds(
    _publish, names, payloads, st.integers(0, 2), st.integers(0, 15), ids, blocks(spec.PUBLISH)
)
acknowledgements = st.one_of(
    [_acknowledge(kind) for kind in (spec.PUBACK, spec.PUBREC, spec.PUBREL, spec.PUBCOMP)]
)
connects = st.builds(
    _connect,
    texts | st.just(""),
    st.booleans(),
    st.none() | st.tuples(names, blocks(0)),
    st.none() | texts,
    st.none() | st.binary(max_size=5),
    blocks(spec.CONNECT),
)
connacks = st.builds(
    lambda code, made: Sample(
        f"CONNACK {code} {bytes(made)!r}",
        lambda buf, at, limit: packets_server.encode_connack(buf, at, limit, True, code, made),
    ),
    codes(spec.CONNACK),
    blocks(spec.CONNACK),
)
requests = st.builds(_request, ids, _filters, _options, blocks(spec.SUBSCRIBE)) | st.builds(
    _request, ids, _filters, st.just(-1), blocks(spec.UNSUBSCRIBE)
)
farewells = st.builds(
    lambda code, made: Sample(
        f"DISCONNECT {code} {bytes(made)!r}",
        lambda buf, at, limit: properties.encode_reason(buf, at, limit, spec.DISCONNECT, 0, code, made),
    ),
    codes(spec.DISCONNECT),
    blocks(spec.DISCONNECT),
)
auths = st.builds(
    lambda code, made: Sample(
        f"AUTH {code} {bytes(made)!r}",
        lambda buf, at, limit: properties.encode_reason(buf, at, limit, spec5.AUTH, 0, code, made),
    ),
    codes(spec5.AUTH),
    blocks(spec5.AUTH),
)
pings = st.sampled_from([spec.PINGREQ, spec.PINGRESP]).map(
    lambda kind: Sample(str(kind), lambda buf, at, limit: packets.encode_bare(buf, at, limit, kind))
)
#: A well-formed packet of any type.
sensible = st.one_of(
    publishes,
    st.builds(_nameless, payloads, st.integers(1, 65535)),
    acknowledgements,
    connects,
    connacks,
    requests,
    _answers(spec.SUBACK),
    _answers(spec.UNSUBACK),
    farewells,
    auths,
    pings,
)
#: Bytes that were a packet.
broken = damaged(sensible)
