"""The column-wise decoder gives the core's answers."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import vectors
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater import errors, names5
from headwater.mqtt import packets, spec
from headwater.mqtt.packets import Packet
from headwater.mqtt.properties import Packet5
from headwater.reasons import REASONS, reason
from headwater_host.mqtt_properties import decode as read_properties
from headwater_host.mqtt_properties import encode
from headwater_spark import property_layouts
from headwater_spark.mqtt import decode
from headwater_spark.property_columns import PROPERTIES
from tests.fuzz.packets import damaged
from tests.fuzz.packets import sensible as sensible_packets
from tests.rows import each_row
from tests.spark.logs import packet, publish, varint

PUBLISH = 3
VECTORS = {
    level: json.loads((Path(__file__).parents[1] / "vectors" / name).read_text(encoding="utf-8"))["packets"]
    for level, name in ((3, "mqtt31.json"), (4, "mqtt.json"), (5, "mqtt5.json"))
}


def decode_all(frames: list[bytes], level: int = 4, before: bytes = b"") -> list[dict[str, Any]]:
    """What each frame is, with ``before`` in front of them all."""
    data = np.frombuffer(before + b"".join(frames), np.uint8)
    starts = np.cumsum([len(before), *map(len, frames)]).astype(np.int32)
    p = decode(data, starts, level)
    assert len(p.kind) == len(frames)
    answers: list[dict[str, Any]] = []
    for i in range(len(frames)):
        if p.error[i]:
            assert not p.publish[i]
            assert p.topic[i].as_py() is None
            assert all(column[i].as_py() is None for column in p.properties.values())
            assert p.payload[i].as_py() is None
            answers.append({"error": {"reason": reason(int(p.error[i])), "offset": int(p.error_at[i])}})
        elif p.kind[i] == PUBLISH:
            assert p.publish[i]
            assert set(p.properties) <= set(PROPERTIES)
            found = {name: column[i].as_py() for name, column in p.properties.items()}
            answers.append(
                {
                    "type": "PUBLISH",
                    "properties": {name: value for name, value in found.items() if value is not None},
                    "dup": bool(p.dup[i]),
                    "qos": int(p.qos[i]),
                    "retain": bool(p.retain[i]),
                    "topic": p.topic[i].as_py(),
                    "packet_id": int(p.packet_id[i]) or None,
                    "payload": p.payload[i].as_py().hex(),
                }
            )
        else:
            assert not p.publish[i]
            answers.append({"kind": int(p.kind[i])})
    return answers


def shown(properties: dict[str, Any]) -> dict[str, Any]:
    """Properties as the decoder's columns show them."""
    found: dict[str, Any] = {}
    for name, (ident, _) in PROPERTIES.items():
        prop = names5.PROPERTIES[ident]
        if prop in properties:
            value = properties[prop]
            # A name that is there twice has its last value.
            found[name] = list(dict(map(tuple, value)).items()) if prop == "user_property" else value
    return found


def of_core(frame: bytes, level: int = 4) -> dict[str, Any]:
    """The core's answer for a record: one packet, of which only PUBLISH is looked into."""
    p = Packet5(frame) if level == 5 else Packet(frame)
    if level == 3:
        p.flags = spec.FLAGS_31
    end = packets.decode_header(p, 0, len(frame))
    if end < 0:
        return {"error": {"reason": reason(end), "offset": p.bad_at}}
    if end == packets.MORE or end > len(frame):
        return {"error": {"reason": reason(errors.E_TRUNCATED), "offset": len(frame)}}
    if end < len(frame):
        return {"error": {"reason": reason(errors.E_SIZE), "offset": end}}
    if frame[0] >> 4 != PUBLISH:
        return {"kind": frame[0] >> 4}
    bad = packets.decode_publish(p, p.body, p.end)
    if bad < 0:
        return {"error": {"reason": reason(bad), "offset": p.bad_at}}
    if p.topic_at == p.topic_end:
        # The core leaves it to the session to know what a topic alias stands for; no record says so.
        return NAMELESS | {"error": NAMELESS["error"] | {"offset": p.topic_at}}
    return {
        "type": "PUBLISH",
        "properties": shown(read_properties(frame, p.props_at, p.props_end))
        if isinstance(p, Packet5)
        else {},
        "dup": bool(frame[0] & 8),
        "qos": frame[0] >> 1 & 3,
        "retain": bool(frame[0] & 1),
        "topic": p.topic_text(),
        "packet_id": p.packet_id or None,
        "payload": p.payload_bytes().hex(),
    }


NAMELESS = {"error": {"reason": "bad_topic_alias", "offset": 4}}


def expected(row: dict[str, Any], frame: bytes, level: int) -> dict[str, Any]:
    """What a vector says; of other packets than PUBLISH only what is wrong with the fixed header."""
    if frame[0] >> 4 != PUBLISH:
        return of_core(frame, level)
    if "error" in row:
        error: dict[str, Any] = row["error"]
        return {"error": error}
    fields = dict(row["packet"])
    listed: dict[str, Any] = {}
    for name, value in fields.pop("properties", None) or []:
        if name == "user_property":
            listed.setdefault(name, []).append(value)
        else:
            listed[name] = bytes.fromhex(value) if name == "correlation_data" else value
    fields["properties"] = shown(listed)
    if "topic_hex" in fields:
        fields["topic"] = vectors.unhex(fields.pop("topic_hex")).decode()
    if not fields["topic"]:
        return NAMELESS
    fields["payload"] = vectors.unhex(fields["payload"]).hex()
    return fields


ROWS = [
    (level, row["name"], row, bytes(vectors.unhex(row["hex"])))
    for level, rows in VECTORS.items()
    for row in rows
    if vectors.unhex(row["hex"])
]
PUBLISHES = [row for row in ROWS if row[3][0] >> 4 == PUBLISH]
LEVELS = each_row("level", VECTORS)


def reasons_at(level: int) -> set[str]:
    return {row["error"]["reason"] for at, _, row, _ in PUBLISHES if at == level and "error" in row}


def test_there_are_vectors_for_every_reason_the_decoder_gives() -> None:
    reasons = reasons_at(4)
    assert reasons == {
        "bad_flags",
        "bad_qos",
        "bad_topic",
        "bad_utf8",
        "field_beyond_packet",
        "malformed_remaining_length",
        "packet_id_zero",
        "truncated",
    }
    assert reasons_at(5) >= {"bad_property", "repeated_property", "bad_property_value", "field_beyond_packet"}
    assert reasons | reasons_at(5) <= {name for name, _ in REASONS.values()}


@each_row("level, name, row, frame", ROWS, ids=[f"{level}: {name}" for level, name, _, _ in ROWS])
def test_vector_alone(level: int, name: str, row: dict[str, Any], frame: bytes) -> None:
    assert decode_all([frame], level) == [expected(row, frame, level)]


@LEVELS
def test_all_vectors_together(level: int) -> None:
    frames = [frame for at, _, _, frame in ROWS if at == level]
    wanted = [expected(row, frame, level) for at, _, row, frame in ROWS if at == level]
    assert decode_all(frames, level) == wanted
    assert decode_all(frames[::-1], level) == wanted[::-1]
    assert decode_all(frames, level, before=b"\xff\x30\x00") == wanted


def test_vectors_with_bytes_behind_are_not_one_packet() -> None:
    for level, name, row, frame in PUBLISHES:
        (answer,) = decode_all([frame + b"\xc0\x00"], level)
        if "packet" in row:
            assert answer == {"error": {"reason": "bad_packet_length", "offset": len(frame)}}, name
        assert answer == of_core(frame + b"\xc0\x00", level), name


def test_no_frames_at_all() -> None:
    assert decode_all([]) == []


def test_frames_of_no_bytes() -> None:
    truncated = {"error": {"reason": "truncated", "offset": 0}}
    assert decode_all([b""]) == [truncated]
    good = publish("a", b"x")
    assert decode_all([b"", good, b""]) == [truncated, of_core(good), truncated]


BLOCK = b"\x0b\x02\x00\x00\x00\x3c\x26\x00\x01k\x00\x00"
ALIAS = b"\x03\x23\x00\x01"


def test_properties_are_passed_over() -> None:
    long = b"\x26\x00\x01k\x00\xc8" + bytes(b"v" * 200)
    blocks = [b"\x00", b"\x80\x00", BLOCK, ALIAS, varint(len(long)) + long]
    frames = [publish("a", "x", qos=qos, block=block) for qos in range(3) for block in blocks]
    assert [(found["topic"], found["payload"]) for found in decode_all(frames, 5)] == [("a", "78")] * 15


def test_properties_are_columns() -> None:
    given = {
        "content_type": "application/json",
        "message_expiry_interval": 4_294_967_295,
        "response_topic": "answers/ü",
        "correlation_data": b"\x00\xff",
        "user_property": [("unit", "K"), ("unit", "°C"), ("", "x")],
        "payload_format_indicator": 1,
    }
    full = encode(given, 1 << PUBLISH)
    some = encode({"content_type": "application/json"}, 1 << PUBLISH)
    bad = b"\x02\x01\x02"
    blocks = [b"\x00", full, some, bad, full, b"\x00"]
    found = decode_all([publish("a", "x", block=block) for block in blocks], 5)
    everything = {
        "content_type": "application/json",
        "message_expiry": 4_294_967_295,
        "response_topic": "answers/ü",
        "correlation_data": b"\x00\xff",
        "user_properties": [("unit", "°C"), ("", "x")],
    }
    wanted = [{}, everything, {"content_type": "application/json"}, None, everything, {}]
    assert [one.get("properties") for one in found] == wanted
    assert "error" in found[3]
    # Packets without properties, and those of other versions, have no columns.
    frames = [publish("a", "x", block=b"\x00")]
    data, starts = np.frombuffer(frames[0], np.uint8), np.array([0, len(frames[0])], np.int32)
    assert decode(data, starts, 5).properties == {}
    plain = publish("a", "x")
    assert decode(np.frombuffer(plain, np.uint8), np.array([0, len(plain)], np.int32), 4).properties == {}


def test_a_topic_alias_alone_stands_for_no_topic() -> None:
    frames = [publish("", "x", block=ALIAS), publish("", "x", block=BLOCK)]
    bad_topic = {"error": {"reason": "bad_topic", "offset": 4}}
    assert decode_all(frames, 5) == [NAMELESS, bad_topic]


@each_row(
    "block",
    [
        b"",
        b"\x01",
        b"\x80",
        b"\xff\xff\xff\xff",
        b"\xff\xff\xff\xff\x01",
        b"\x05\x23\x00\x01",
        b"\x03\x23\x00\x00",
    ],
)
def test_every_malformed_block(block: bytes) -> None:
    frames = [publish("a", qos=qos, block=block) for qos in range(3)]
    answers = decode_all([publish("b", block=b"\x00"), *frames, publish("b", block=BLOCK)], 5)
    assert answers[1:4] == [of_core(frame, 5) for frame in frames]
    assert all("error" in answer for answer in answers[1:4])
    assert [answers[k]["topic"] for k in (0, 4)] == ["b", "b"]


def test_every_prefix_is_truncated() -> None:
    whole = publish("a/b", bytes(300), qos=2, packet_id=7)
    prefixes = [whole[:n] for n in range(len(whole))]
    assert decode_all([*prefixes, whole]) == [
        *({"error": {"reason": "truncated", "offset": n}} for n in range(len(whole))),
        of_core(whole),
    ]


@LEVELS
def test_every_first_byte(level: int) -> None:
    frames = [packet(head, b"\x00\x01a\x00\x01") for head in range(256)]
    assert decode_all(frames, level) == [of_core(frame, level) for frame in frames]


topics = st.one_of(
    st.text(min_size=0, max_size=8).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(max_size=8),
    st.sampled_from([b"a/b", b"headwater/b1/telemetry", b"#", b"a/+", "ä/µ".encode(), b"a\x00"]),
)
rests = st.one_of(
    st.binary(max_size=150),
    st.builds(
        lambda ident, block, rest: ident + block + rest,
        st.sampled_from([b"", b"\x00\x07", b"\x00\x00"]),
        st.sampled_from([b"\x00", BLOCK, ALIAS, b"\x80\x00", b"\x81\x80\x00\x01", b"\x02\x01\x02"]),
        st.binary(max_size=150),
    ),
)
publishes = st.builds(
    lambda head, topic, rest, cut: packet(head, (len(topic) + cut).to_bytes(2, "big") + topic + rest),
    st.sampled_from([0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x38, 0x3A, 0x3C, 0x3D, 0x3F]),
    topics,
    rests,
    st.sampled_from([0, 0, 0, 0, 0, 1, 2, 60000]),
)
mangled = st.builds(
    lambda frame, at, byte, keep: (frame[: at % len(frame)] + bytes([byte]) + frame[at % len(frame) + 1 :])[
        :keep
    ],
    publishes,
    st.integers(0, 200),
    st.integers(0, 255),
    st.integers(0, 200),
)
frames = st.lists(st.one_of(publishes, publishes, mangled, st.binary(max_size=12)), max_size=40)


@LEVELS
@settings(max_examples=200, deadline=None)
@given(some=frames)
def test_any_frames_as_the_core_decodes_them(level: int, some: list[bytes]) -> None:
    assert decode_all(some, level) == [of_core(frame, level) for frame in some]


sensible = sensible_packets(5)
#: Many packets that differ in single bytes: property blocks of one layout, and what is nearly so.
alike = st.builds(
    lambda frame, changes: [frame] + [frame[: at % len(frame)] + bytes([byte]) + frame[at % len(frame) + 1 :]
        for at, byte in changes],
    sensible.filter(lambda frame: frame[0] >> 4 == PUBLISH),
    st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255)), max_size=20),
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(
    some=st.lists(st.one_of(alike, alike, st.lists(sensible | damaged(sensible), max_size=5)), max_size=4),
    known=st.booleans(),
)
def test_packets_of_5_0_with_every_property_as_the_core_decodes_them(
    some: list[list[bytes]], known: bool
) -> None:
    if not known:
        property_layouts._KNOWN.clear()
    frames = [frame for group in some for frame in group]
    assert decode_all(frames, 5) == [of_core(frame, 5) for frame in frames]


def blocks_of(n: int, **given: Any) -> list[bytes]:
    """Blocks of properties; a function makes a block's value from its number."""
    return [
        encode({name: value(k) if callable(value) else value for name, value in given.items()}, 1 << PUBLISH)
        for k in range(n)
    ]


@each_row(
    "blocks",
    [
        blocks_of(60, content_type="a/b", user_property=[("site", "north"), ("unit", "K")]),
        blocks_of(60, correlation_data=lambda k: k.to_bytes(8, "big"), message_expiry_interval=lambda k: k),
        blocks_of(60, user_property=lambda k: [("trace", f"{k:04}"), ("é", "°" * (k % 3))]),
        blocks_of(60, user_property=lambda k: [("a", str(k % 2)), ("ab"[k % 2], "2"), ("a", "3")]),
        blocks_of(60, response_topic=lambda k: "x+#/"[k % 4] + "/a" if k % 4 not in (1, 2) else "ab"),
        blocks_of(60, subscription_identifier=lambda k: [1 + k * k * k, 5], payload_format_indicator=1),
        blocks_of(60, topic_alias=lambda k: 1 + k, content_type=lambda k: "t" * (k % 7)),
        [block for k in range(30) for block in blocks_of(2, user_property=[("k", str(k))] * (k % 3 + 1))],
        [b"\x04\x03\x00\x01" + bytes([k]) for k in range(1, 128)] + [b"\x04\x03\x00\x01\x00"],
        [b"\x04\x08\x00\x01" + bytes([k]) for k in range(0x20, 0x30)],
        [b"\x07\x26\x00\x01" + bytes([k]) + b"\x00\x01v" for k in range(0x60, 0x90)],
        [varint(38 * 71) + (b"\x26\x00\x01k\x00\x20" + b"v" * 32) * 71] * 3,
        [varint(1200) + b"\x09\x04\xad" + bytes(1197)] * 20,
    ],
)  # fmt: skip
def test_blocks_of_one_layout_and_of_many(blocks: list[bytes]) -> None:
    frames = [publish("a", "x", qos=k % 2, block=block) for k, block in enumerate(blocks)]
    for some in (frames, frames[::-1], [*frames, packet(0x30, b"\x00\x01a" + blocks[0])]):
        assert decode_all(some, 5) == [of_core(frame, 5) for frame in some]
    # The last block ends with the data.
    assert decode_all(frames[:1], 5) == [of_core(frames[0], 5)]


def overlong(block: bytes) -> bytes:
    """The block with a length of four bytes."""
    length, rest = block[0], block[1:]
    return bytes([length | 128, 128, 128, 0]) + rest


def shapes(rng: random.Random) -> list[Callable[[int], bytes]]:
    """Makers of blocks that are alike, or nearly so."""
    pairs = [("k", "v")] * rng.randrange(3)
    return [
        lambda k: b"\x00",
        lambda k: blocks_of(1, content_type="a/b", user_property=[*pairs, ("site", "é")])[0],
        lambda k: blocks_of(1, message_expiry_interval=k, user_property=[("trace", f"{k:03}"), ("b", "")])[0],
        lambda k: blocks_of(1, response_topic=f"answer/{k}", correlation_data=bytes([k]))[0],
        lambda k: blocks_of(1, content_type="t" * (k % 3), user_property=[("", "x" * (k % 2))])[0],
        lambda k: blocks_of(1, topic_alias=1 + k % 3, content_type="json")[0],
        lambda k: overlong(blocks_of(1, content_type=f"{k:02}")[0]),
        lambda k: blocks_of(1, user_property=[("large", "v" * (1000 + k % 50))])[0],
        # Malformed in some: no UTF-8, a wildcard, U+0000, a value of 2, a repeated property, an unknown one, cut short.
        lambda k: b"\x07\x26\x00\x01" + bytes([k]) + b"\x00\x01v",
        lambda k: b"\x05\x08\x00\x02a" + bytes([0x20 + k % 16]),
        lambda k: b"\x04\x03\x00\x01" + bytes([k % 8]),
        lambda k: b"\x02\x01" + bytes([k % 3]),
        lambda k: b"\x08\x03\x00\x01a" + bytes([k % 4]) + b"\x00\x01b",
        lambda k: b"\x07\x26\x00\x01k\x00" + bytes([k % 3]) + b"v",
    ]


def test_batches_with_several_layouts() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        property_layouts._KNOWN.clear()
        for _ in range(3):
            makers = rng.sample(shapes(rng), rng.randrange(1, 6))
            weights = [rng.choice([1, 5, 50]) for _ in makers]
            blocks = [
                rng.choices(makers, weights)[0](rng.randrange(256)) for _ in range(rng.choice([3, 60, 250]))
            ]
            some = [
                publish(
                    rng.choice(["a", "a/b", ""]) if seed % 4 == 0 else "a",
                    "x",
                    qos=rng.randrange(3),
                    block=block,
                )
                for block in blocks
            ]
            assert decode_all(some, 5) == [of_core(frame, 5) for frame in some], seed


def test_layouts_learn_which_values_vary() -> None:
    def left(blocks: list[bytes]) -> int:
        data = np.frombuffer(b"".join(blocks), np.uint8)
        ends = np.cumsum([len(block) for block in blocks], dtype=np.int32)
        sizes = np.array([len(block) - 1 for block in blocks], np.int32)
        parts, rows = property_layouts.split(data, ends - sizes, sizes)
        assert sorted(row for some in (*(part.rows for part in parts), rows) for row in some) == list(
            range(len(blocks))
        )
        return len(rows)

    property_layouts._KNOWN.clear()
    usual = blocks_of(5000, message_expiry_interval=lambda k: k, content_type="json")
    longer = blocks_of(1, message_expiry_interval=7, content_type="text/plain")
    other = [b"\x0c\x09\x00\x09" + bytes(9)]
    assert left(usual) == 0
    (layout,) = property_layouts._KNOWN.values()
    assert layout.known == [4, b"json"]
    # A rare value widens a layout; a rare layout is left to others.
    assert left([*usual[:3000], *longer, *other, *usual[3000:]]) == 1
    (layout,) = property_layouts._KNOWN.values()
    assert layout.known == [4, None]
    # Blocks that become unlike all before.
    assert left(blocks_of(300, user_property=[("k", "v")], payload_format_indicator=1)) == 0
    assert left(blocks_of(300, correlation_data=lambda k: k.to_bytes(5, "big"))) == 0


def test_layouts_that_are_not_used_are_forgotten() -> None:
    property_layouts._KNOWN.clear()
    for size in range(60):
        frames = [publish("a", "x", block=blocks_of(1, user_property=[("k" * size, "v")])[0])] * 3
        assert decode_all(frames, 5) == [of_core(frame, 5) for frame in frames]
        assert len(property_layouts._KNOWN) <= 32
    assert len(property_layouts._KNOWN) == 32
