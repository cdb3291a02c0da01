"""The column-wise decoder gives the core's answers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vectors
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater import errors
from headwater.mqtt import decode as core
from headwater.mqtt.decode import Packet
from headwater.reasons import REASONS, reason
from headwater_spark.mqtt import decode
from tests.spark.logs import packet, publish

PUBLISH = 3
VECTORS = json.loads((Path(__file__).parents[1] / "vectors/mqtt.json").read_text(encoding="utf-8"))["packets"]


def decode_all(frames: list[bytes], before: bytes = b"") -> list[dict[str, Any]]:
    """What each frame is, with ``before`` in front of them all."""
    data = np.frombuffer(before + b"".join(frames), np.uint8)
    starts = np.cumsum([len(before), *map(len, frames)]).astype(np.int32)
    p = decode(data, starts)
    assert len(p.kind) == len(frames)
    answers: list[dict[str, Any]] = []
    for i in range(len(frames)):
        if p.error[i]:
            assert not p.publish[i]
            assert p.topic[i].as_py() is None
            assert p.payload[i].as_py() is None
            answers.append({"error": {"reason": reason(int(p.error[i])), "offset": int(p.error_at[i])}})
        elif p.kind[i] == PUBLISH:
            assert p.publish[i]
            answers.append(
                {
                    "type": "PUBLISH",
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


def of_core(frame: bytes) -> dict[str, Any]:
    """The core's answer for a record: one packet, of which only PUBLISH is looked into."""
    p = Packet(frame)
    end = core.fixed_header(p, 0, len(frame))
    if end < 0:
        return {"error": {"reason": reason(end), "offset": p.bad_at}}
    if end == core.MORE or end > len(frame):
        return {"error": {"reason": reason(errors.E_TRUNCATED), "offset": len(frame)}}
    if end < len(frame):
        return {"error": {"reason": reason(errors.E_SIZE), "offset": end}}
    if frame[0] >> 4 != PUBLISH:
        return {"kind": frame[0] >> 4}
    bad = core.publish(p)
    if bad:
        return {"error": {"reason": reason(bad), "offset": p.bad_at}}
    return {
        "type": "PUBLISH",
        "dup": bool(frame[0] & 8),
        "qos": frame[0] >> 1 & 3,
        "retain": bool(frame[0] & 1),
        "topic": p.topic_text(),
        "packet_id": p.packet_id or None,
        "payload": p.payload_bytes().hex(),
    }


def expected(row: dict[str, Any], frame: bytes) -> dict[str, Any]:
    """What a vector says; of other packets than PUBLISH only what is wrong with the fixed header."""
    if frame[0] >> 4 != PUBLISH:
        return of_core(frame)
    if "error" in row:
        error: dict[str, Any] = row["error"]
        return {"error": error}
    fields = dict(row["packet"])
    if "topic_hex" in fields:
        fields["topic"] = vectors.unhex(fields.pop("topic_hex")).decode()
    fields["payload"] = vectors.unhex(fields["payload"]).hex()
    return fields


def vector_rows() -> Iterator[tuple[str, dict[str, Any], bytes]]:
    for row in VECTORS:
        yield row["name"], row, bytes(vectors.unhex(row["hex"]))


ROWS = [row for row in vector_rows() if row[2]]
PUBLISHES = [row for row in ROWS if row[2][0] >> 4 == PUBLISH]


def test_there_are_vectors_for_every_reason_the_decoder_gives() -> None:
    reasons = {row["error"]["reason"] for _, row, _ in PUBLISHES if "error" in row}
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
    assert reasons <= {name for name, _ in REASONS.values()}


@pytest.mark.parametrize("name, row, frame", ROWS, ids=[name for name, _, _ in ROWS])
def test_vector_alone(name: str, row: dict[str, Any], frame: bytes) -> None:
    assert decode_all([frame]) == [expected(row, frame)]


def test_all_vectors_together() -> None:
    frames = [frame for _, _, frame in ROWS]
    wanted = [expected(row, frame) for _, row, frame in ROWS]
    assert decode_all(frames) == wanted
    assert decode_all(frames[::-1]) == wanted[::-1]
    assert decode_all(frames, before=b"\xff\x30\x00") == wanted


def test_vectors_with_bytes_behind_are_not_one_packet() -> None:
    for name, row, frame in PUBLISHES:
        (answer,) = decode_all([frame + b"\xc0\x00"])
        if "packet" in row:
            assert answer == {"error": {"reason": "bad_packet_length", "offset": len(frame)}}, name
        assert answer == of_core(frame + b"\xc0\x00"), name


def test_no_frames_at_all() -> None:
    assert decode_all([]) == []


def test_frames_of_no_bytes() -> None:
    truncated = {"error": {"reason": "truncated", "offset": 0}}
    assert decode_all([b""]) == [truncated]
    good = publish("a", b"x")
    assert decode_all([b"", good, b""]) == [truncated, of_core(good), truncated]


def test_every_prefix_is_truncated() -> None:
    whole = publish("a/b", bytes(300), qos=2, packet_id=7)
    prefixes = [whole[:n] for n in range(len(whole))]
    assert decode_all([*prefixes, whole]) == [
        *({"error": {"reason": "truncated", "offset": n}} for n in range(len(whole))),
        of_core(whole),
    ]


def test_every_first_byte() -> None:
    frames = [packet(head, b"\x00\x01a\x00\x01") for head in range(256)]
    assert decode_all(frames) == [of_core(frame) for frame in frames]


topics = st.one_of(
    st.text(min_size=0, max_size=8).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(max_size=8),
    st.sampled_from([b"a/b", b"headwater/b1/telemetry", b"#", b"a/+", "ä/µ".encode(), b"a\x00"]),
)
publishes = st.builds(
    lambda head, topic, rest, cut: packet(head, (len(topic) + cut).to_bytes(2, "big") + topic + rest),
    st.sampled_from([0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x38, 0x3A, 0x3C, 0x3D, 0x3F]),
    topics,
    st.binary(max_size=150),
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


@settings(max_examples=200, deadline=None)
@given(frames)
def test_any_frames_as_the_core_decodes_them(some: list[bytes]) -> None:
    assert decode_all(some) == [of_core(frame) for frame in some]
