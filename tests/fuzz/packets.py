"""Strategies for MQTT packets: sensible ones of every type, and ones that were damaged."""

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st

from headwater.mqtt import packets, packets_server, spec

Encoder = Callable[[bytearray, int, int], int]


@dataclass(frozen=True)
class Sample:
    """A packet: how it is encoded, and what that gives."""

    what: str
    encode: Encoder = field(repr=False)

    @property
    def encoded(self) -> bytes:
        """Its bytes."""
        buf = bytearray(4000)
        end = self.encode(buf, 0, len(buf))
        assert end > 0, end
        return bytes(buf[:end])


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12)
names = st.text(st.characters(exclude_characters="\0#+", exclude_categories=["Cs"]), min_size=1, max_size=12)
ids = st.integers(1, 65535)
payloads = st.binary(max_size=20) | st.integers(100, 200).map(bytes)
_filters = st.sampled_from(["#", "+", "a/+", "+/#", "/", "é/温"]) | names


def _publish(topic: str, payload: bytes, qos: int, flags: int, packet_id: int) -> Sample:
    head = 0x30 | qos << 1 | flags & (9 if qos else 1)

    def call(buf: bytearray, at: int, limit: int) -> int:
        return packets.encode_publish(buf, at, limit, topic.encode(), payload, head, packet_id if qos else 0)

    return Sample(f"PUBLISH {topic!r} {len(payload)} {head:#x}", call)


def _acknowledge(kind: int, packet_id: int) -> Sample:
    return Sample(
        f"{kind} {packet_id}", lambda buf, at, limit: packets.encode_ack(buf, at, limit, kind, packet_id)
    )


def _bare(kind: int) -> Sample:
    return Sample(str(kind), lambda buf, at, limit: packets.encode_bare(buf, at, limit, kind))


def _request(packet_id: int, topic_filter: str, qos: int) -> Sample:
    return Sample(
        f"request {topic_filter!r} {qos}",
        lambda buf, at, limit: packets.encode_subscribe(
            buf, at, limit, packet_id, topic_filter.encode(), qos
        ),
    )


def _connect(
    client_id: str, clean: bool, will: str | None, user: str | None, password: bytes | None
) -> Sample:
    def call(buf: bytearray, at: int, limit: int) -> int:
        return packets.encode_connect(
            buf,
            at,
            limit,
            client_id.encode(),
            30,
            clean,
            None if will is None else will.encode(),
            b"\0gone",
            1,
            False,
            None if user is None else user.encode(),
            None if user is None else password,
        )

    return Sample(f"CONNECT {client_id!r}", call)


def _connack(present: bool, code: int) -> Sample:
    return Sample(
        f"CONNACK {code}", lambda buf, at, limit: packets_server.encode_connack(buf, at, limit, present, code)
    )


def _suback(packet_id: int, codes: list[int]) -> Sample:
    return Sample(
        f"SUBACK {codes}",
        lambda buf, at, limit: packets_server.encode_suback(buf, at, limit, packet_id, bytes(codes)),
    )


publishes = st.builds(_publish, names, payloads, st.integers(0, 2), st.integers(0, 15), ids)
acknowledgements = st.builds(
    _acknowledge, st.sampled_from([spec.PUBACK, spec.PUBREC, spec.PUBREL, spec.PUBCOMP, spec.UNSUBACK]), ids
)
bare = st.builds(_bare, st.sampled_from([spec.PINGREQ, spec.PINGRESP, spec.DISCONNECT]))
requests = st.builds(_request, ids, _filters, st.integers(-1, 2))
connects = st.builds(
    _connect, texts, st.booleans(), st.none() | names, st.none() | texts, st.none() | st.binary(max_size=5)
)
answers = st.builds(_connack, st.booleans(), st.integers(0, 5)) | st.builds(
    _suback, ids, st.lists(st.sampled_from([0, 1, 2, 128]), min_size=1, max_size=4)
)
#: A well-formed packet of any type.
sensible = publishes | acknowledgements | bare | requests | connects | answers


def _damage(data: bytes, how: int, at: int, value: int) -> bytes:
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


_damages = st.tuples(st.integers(0, 4), st.integers(0, 300), st.integers(0, 255))


def damaged(packets: st.SearchStrategy[Sample]) -> st.SearchStrategy[bytes]:
    """Bytes that were one of these packets before one to three of them were changed, dropped or added."""
    return st.builds(
        lambda packet, damages: _damaged(packet.encoded, damages),
        packets,
        st.lists(_damages, min_size=1, max_size=3),
    )


def _damaged(data: bytes, damages: list[tuple[int, int, int]]) -> bytes:
    for how, at, value in damages:
        data = _damage(data, how, at, value) if data else data
    return data


broken = damaged(sensible)
