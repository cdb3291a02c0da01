"""The column-wise decoder of FMQ gives the core's answers."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater import reasons
from headwater.errors import E_SIZE, E_TRUNCATED
from headwater.fmq.frames import Frame
from headwater.fmq.frames_hub import decode_frame, thread_at, time_at
from headwater.fmq.ids import MORE
from headwater.fmq.names import REASONS
from headwater.fmq.spec import ACK, CONSUMERESP, PUBLISH, PUBREC
from headwater.fmq.values import Value, number, read
from headwater_host.capture.format import MAX_FRAME
from headwater_spark import fmq_core
from headwater_spark.fmq import decode
from tests.rows import each_row
from tests.spark.fmq_bytes import (
    NOW_NS,
    Nanoseconds,
    consumeresp,
    counted,
    fmq_publish,
    integer,
    little,
    message_id,
    spoiled,
    value,
)
from tests.spark.fmq_bytes import frame as built

VECTORS = json.loads((Path(__file__).parents[1] / "vectors/fmq.json").read_text(encoding="utf-8"))
FRAMES = [bytes.fromhex(row["hex"]) for row in VECTORS["frames"]]
MALFORMED = [bytes.fromhex(row["hex"]) for row in VECTORS["malformed_frames"]]
MESSAGES = (PUBLISH, CONSUMERESP)


def reason(code: int) -> str:
    return reasons.reason(code, REASONS)


def decode_all(frames: list[bytes], before: bytes = b"") -> list[dict[str, Any]]:
    """What each frame is, with ``before`` in front of them all."""
    data = np.frombuffer(before + b"".join(frames), np.uint8)
    p = decode(data, np.cumsum([len(before), *map(len, frames)]).astype(np.int32))
    assert len(p.kind) == len(frames)
    answers: list[dict[str, Any]] = []
    for i in range(len(frames)):
        if p.error[i]:
            assert not p.message[i]
            assert [column[i].as_py() for column in (p.id, p.origin, p.topic, p.tags, p.payload)] == [
                None
            ] * 5
            answers.append({"error": {"reason": reason(int(p.error[i])), "offset": int(p.error_at[i])}})
            continue
        answer: dict[str, Any] = {
            "kind": int(p.kind[i]),
            "id": p.id[i].as_py().hex(),
            "id_type": int(p.id_type[i]),
        }
        if not p.odd[i]:
            answer |= {"process": int(p.process[i]), "thread": int(p.thread[i]), "time": int(p.made_ns[i])}
        if p.message[i]:
            answer |= {name: getattr(p, name)[i].as_py() for name in ("topic", "tags")}
            answer["payload"] = p.payload[i].as_py().hex()
        else:
            assert [column[i].as_py() for column in (p.topic, p.tags, p.payload)] == [None] * 3
        assert p.publish[i] == (p.kind[i] == PUBLISH)
        if p.publish[i]:
            answer |= {"dup": bool(p.dup[i]), "qos": int(p.qos[i]), "retain": bool(p.retain[i])}
        answers.append(answer)
    return answers


def of_core(data: bytes) -> dict[str, Any]:
    """The core's answer for a record: one frame."""
    f = Frame(data, MAX_FRAME)
    stop = decode_frame(f, 0, len(data))
    if stop == MORE:
        return {"error": {"reason": reason(E_TRUNCATED), "offset": len(data)}}
    if stop < 0:
        return {"error": {"reason": reason(stop), "offset": f.bad_at}}
    if stop < len(data):
        return {"error": {"reason": reason(E_SIZE), "offset": stop}}
    answer: dict[str, Any] = {"kind": f.kind(), "id": data[f.id_at : f.id_end].hex(), "id_type": f.asked()}
    at, then = thread_at(data, f.id_at), time_at(data, f.id_at)
    process = int.from_bytes(data[f.id_at + 1 : at], "little")
    thread = int.from_bytes(data[at + 1 : then], "little") << 4 | data[at] & 15
    v = Value(data, 0)
    read(v, then, len(data))
    made = number(v)
    if process < 1 << 32 and thread < 1 << 28 and 0 <= made < 1 << 63:
        answer |= {"process": process, "thread": thread, "time": made}
    if f.kind() not in MESSAGES:
        return answer
    tags = []
    at = read(v, f.tags_at, f.end)
    for _ in range(v.count):
        at = read(v, at, f.end)
        tags.append(data[v.at : v.end].decode())
    first = f.at[f.kind() == CONSUMERESP]
    topic: str | None
    if f.has_topic():
        topic = f.topic_text()
    else:
        read(v, first, f.end)
        topic = f"#{number(v):032x}" if data[first] else None
    answer |= {"topic": topic, "tags": tags, "payload": f.payload_bytes().hex()}
    if f.kind() == PUBLISH:
        answer |= {"dup": f.dup(), "qos": f.qos(), "retain": f.retain()}
    return answer


def is_quick(*frames: bytes) -> bool:
    """Whether numpy understands them all."""

    def refuse(data: bytes) -> None:
        raise AssertionError(data.hex())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headwater_spark.fmq.CoreFrame", refuse)
        try:
            decode_all(list(frames))
        except AssertionError:
            return False
    return True


def expected(row: dict[str, Any]) -> dict[str, Any]:
    """What a vector says of its frame."""
    ident = row["id"]
    known = [
        found for found in VECTORS["message_ids"] if found["hex"] == ident and found["process"] < 1 << 32
    ]
    answer: dict[str, Any] = {"kind": row["type"], "id": ident, "id_type": int(ident[0], 16)}
    if known:
        answer |= {
            "process": known[0]["process"],
            "thread": known[0]["thread"],
            "time": int(known[0]["time_ns"]),
        }
    if row["type"] in MESSAGES:
        topic = row.get("topic")
        if "topic_hash" in row:
            topic = f"#{int(row['topic_hash']):032x}"
        answer |= {"topic": topic, "tags": row.get("tags", []), "payload": row["payload"]}
    if row["type"] == PUBLISH:
        flags = row["flags"]
        answer |= {"dup": bool(flags & 8), "qos": flags >> 1 & 3, "retain": bool(flags & 1)}
    return answer


@each_row("row", VECTORS["frames"], ids=lambda row: row["name"])
def test_vector_alone(row: dict[str, Any]) -> None:
    data = bytes.fromhex(row["hex"])
    (answer,) = decode_all([data])
    assert answer == of_core(data)
    wanted = expected(row)
    assert {name: answer[name] for name in wanted} == wanted


@each_row("row", VECTORS["malformed_frames"], ids=lambda row: row["why"])
def test_malformed_vector(row: dict[str, Any]) -> None:
    data = bytes.fromhex(row["hex"])
    wanted = {"error": {"reason": row["reason"], "offset": row["offset"]}}
    assert of_core(data) == wanted
    assert decode_all([data]) == [wanted]


@each_row("row", VECTORS["message_ids"], ids=lambda row: row["hex"])
def test_message_id_vector(row: dict[str, Any]) -> None:
    ident = bytes.fromhex(row["hex"])
    (answer,) = decode_all([fmq_publish("a", b"", ident)])
    assert answer["id"] == row["hex"]
    assert answer["id_type"] == row["type"]
    if row["process"] < 1 << 32 and int(row["time_ns"]) >= 0:
        assert (answer["process"], answer["thread"]) == (row["process"], row["thread"])
        assert answer["time"] == int(row["time_ns"])
    else:
        assert "process" not in answer


def test_all_vectors_together() -> None:
    frames = [*FRAMES, *MALFORMED]
    wanted = list(map(of_core, frames))
    assert decode_all(frames) == wanted
    assert decode_all(frames[::-1]) == wanted[::-1]
    assert decode_all(frames, before=b"\xff\x30\x00") == wanted


def test_every_vector_with_one_thing_wrong() -> None:
    frames = [data for whole in {*FRAMES, *MALFORMED} if len(whole) < 500 for data in spoiled(whole)]
    assert len(frames) > 20_000
    found, wanted = decode_all(frames), list(map(of_core, frames))
    wrong = [data.hex() for data, a, b in zip(frames, found, wanted, strict=True) if a != b]
    assert not wrong, wrong[:10]
    # Not everything that is spoiled is malformed, and not everything that is well formed is as it was.
    assert 5000 < sum("error" in answer for answer in wanted) < len(wanted) - 5000


def test_frames_as_they_are_written_are_quick() -> None:
    quick = [
        fmq_publish("plant/1/temp", b"21.5"),
        fmq_publish("plant/\u00e4", b"", qos=2, retain=True, dup=True),
        fmq_publish("x" * 300, bytes(70_000), message_id(process=70_000, thread=4096)),
        fmq_publish(1 << 127, b"\0", message_id(process=0, thread=0)),
        fmq_publish("a", b"x", tags=("raw", "celsius"), qos=1),
        consumeresp(message_id(), b"x", integer(7)),
        consumeresp(message_id(), b"", message_id(kind=10), "a/b", ("t",)),
        built(PUBREC << 4, message_id(), None),
        built(ACK << 4, message_id()),
    ]
    assert is_quick(*quick)
    assert decode_all(quick) == list(map(of_core, quick))
    assert not is_quick(fmq_publish("a+", b"x"))
    assert not is_quick(FRAMES[0])


def test_no_frames_at_all() -> None:
    assert decode_all([]) == []


def test_frames_of_no_bytes() -> None:
    truncated = {"error": {"reason": "truncated", "offset": 0}}
    good = fmq_publish("a", b"x")
    assert decode_all([b""]) == [truncated]
    assert decode_all([b"", good, b""]) == [truncated, of_core(good), truncated]


@each_row(
    "whole",
    [
        fmq_publish("a/b", bytes(300), qos=2, tags=("x", "y")),
        consumeresp(message_id(), b"payload", message_id(kind=10), "a/b"),
    ],
)
def test_every_prefix_is_truncated(whole: bytes) -> None:
    prefixes = [whole[:n] for n in range(len(whole))]
    assert decode_all([*prefixes, whole]) == [
        *({"error": {"reason": "truncated", "offset": n}} for n in range(len(whole))),
        of_core(whole),
    ]


def test_with_a_byte_behind_it_is_not_one_frame() -> None:
    for data in FRAMES:
        assert decode_all([data + b"\xc0"]) == [{"error": {"reason": "bad_body_length", "offset": len(data)}}]


@each_row("correlation", [b"\xa1\x01\x03\x31\x01", b"\x39\x00", b"\xa0\x00\xb8" + b"\xff" * 8])
def test_correlations_that_are_none(correlation: bytes) -> None:
    data = consumeresp(message_id(), b"x", correlation, "a")
    (answer,) = decode_all([data])
    assert "error" in answer
    assert answer == of_core(data)


def test_lengths_that_reach_far_beyond_the_data() -> None:
    bodies = [b"\x12\xff\xff", b"\x11\xff", b"\x61\xff", value("a") + b"\xd1\x08\x11\xff", b"\x30"]
    for body in bodies:
        for head in (0x30, 0xB0):
            data = built(head, message_id(), body)
            assert decode_all([data]) == [of_core(data)]


@each_row("body", [None, b"", value("a") + b"\xd0x"])
def test_every_first_byte(body: bytes | None) -> None:
    frames = [built(head, message_id(), body) for head in range(256)]
    assert decode_all(frames) == list(map(of_core, frames))


def test_ids_of_any_size() -> None:
    times = (0, 1, 255, 256, 1 << 56, NOW_NS, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -1, -(1 << 63))
    processes = (0, 1, 255, 1 << 31, 1 << 32, 1 << 60)
    threads = (0, 15, 16, (1 << 28) - 1, 1 << 28, 1 << 40)
    frames = [fmq_publish("a", b"x", message_id(*each)) for each in product(times, processes, threads)]
    answers = decode_all(frames)
    assert answers == list(map(of_core, frames))
    assert {answer["error"]["reason"] for answer in answers if "error" in answer} == {"bad_message_id"}
    assert sum("time" in answer for answer in answers) == 7 * 4 * 4


def test_the_same_origin_means_the_same_type_process_and_thread() -> None:
    idents = [message_id(t, p, q, k) for t in (1, 1 << 63) for p in (0, 7) for q in (0, 99) for k in (3, 10)]
    frames = [fmq_publish("a", b"", ident) for ident in idents * 2]
    data = np.frombuffer(b"".join(frames), np.uint8)
    found = decode(data, np.cumsum([0, *map(len, frames)]).astype(np.int32))
    keys = list(zip(found.origin.to_pylist(), found.made_ns.tolist(), strict=True))
    assert len(set(keys)) == len(idents)
    assert keys[: len(idents)] == keys[len(idents) :]
    assert found.origin[0].as_py() == "3/0/0"


ids = st.builds(
    message_id,
    st.sampled_from([0, 1, 1 << 56, NOW_NS, -1, 1 << 63]),
    st.sampled_from([0, 1, 300, 1 << 40]),
    st.sampled_from([0, 3, 16, 1 << 30]),
    st.sampled_from([3, 10]),
)
texts = st.one_of(
    st.text(max_size=8).map(value),
    st.binary(max_size=8).map(lambda data: counted(1, len(data)) + data),
    st.sampled_from([value("a/b"), value("a+"), b"\x12\x03\x00abc", value("\u00e4" * 140), b"\x00"]),
)
topics = st.one_of(
    texts,
    st.integers(-1, 1 << 130).map(value),
    st.sampled_from([b"\x61\x02\x00\x01", b"\x32\x01\x00", b"\x20"]),
)
tags = st.one_of(
    st.just(b"\xd0"),
    st.lists(st.one_of(texts, st.just(b"\x20")), max_size=10).map(
        lambda items: counted(13, len(items)) + b"".join(items)
    ),
    st.sampled_from([b"\xd1\x00", b"\xd1\x05", b"\xe0", b"\xd2\x01\x00\x11\x01a"]),
)
correlations = st.one_of(
    st.integers(-1, 1 << 65).map(value),
    ids,
    st.sampled_from([b"\x32\x01\x00", b"\xa0", b"\xa1\x01\x03\x31\x01", value(Nanoseconds(9, 1))]),
)
bodies = st.builds(
    lambda *parts: b"".join(parts),
    st.one_of(st.just(b""), correlations),
    topics,
    tags,
    st.binary(max_size=20),
)
heads = st.sampled_from([0x30, 0x31, 0x32, 0x34, 0x38, 0x3D, 0xB0, 0xB0, 0xB0, 0x00, 0x80, 0xA2, 0xE0, 0x50])


def long_length(head: int, ident: bytes, body: bytes, zeros: int) -> bytes:
    """A frame whose length takes more bytes than it need."""
    more = little(len(body) >> 4) + bytes(zeros)
    return bytes([head]) + ident + bytes([len(more) << 4 | len(body) & 15]) + more + body


wholes = st.one_of(
    st.builds(built, heads, ids, st.one_of(st.none(), bodies, bodies)),
    st.builds(long_length, heads, ids, bodies, st.integers(0, 4)),
    st.sampled_from([*FRAMES, *MALFORMED]),
)
mangled = st.builds(
    lambda data, at, byte, keep: (data[: at % len(data)] + bytes([byte]) + data[at % len(data) + 1 :])[:keep],
    wholes,
    st.integers(0, 60),
    st.integers(0, 255),
    st.integers(0, 100),
)
some_frames = st.lists(st.one_of(wholes, wholes, mangled, st.binary(max_size=14)), max_size=30)


@settings(max_examples=400, deadline=None)
@given(some_frames)
def test_any_frames_as_the_core_decodes_them(some: list[bytes]) -> None:
    assert decode_all(some) == list(map(of_core, some))


def test_the_map_in_a_frame() -> None:
    (answer,) = decode_all([fmq_publish("a", {"x": 1})])
    assert fmq_core.load_map(bytes.fromhex(answer["payload"])) == {"x": 1}
