"""The short way through the usual frames finds what the core's decoder finds, or nothing."""

import json
import random
from typing import Any

from headwater.fmq import spec
from headwater.fmq.frames import Frame
from headwater.fmq.frames_hub import decode_frame
from headwater_host.fmq.usual import usual
from headwater_host.hub import frames
from tests.host.hub_client import new_id
from tests.rows import each_row
from tools.toolchain import ROOT

VECTORS = json.loads((ROOT / "tests/vectors/fmq.json").read_text())
LIMIT = 1 << 16
#: What handlers look at.
FIELDS = ("head", "id_at", "id_end", "body", "end")
MESSAGE = ("topic_at", "topic_end", "tags_at", "payload_at")


def publish(
    topic: "str | None" = "a/b", payload: bytes = b"x" * 20, tags: tuple[str, ...] = (), **more: Any
) -> bytes:
    return frames.publish(new_id(spec.PUBLISH, 300), frames.message(topic, tags, payload), **more)


USUAL = {
    **{f"PUBLISH {n}": publish(payload=bytes(n)) for n in (0, 5, 20, 300, 4090, 4095, 5000, 60_000)},
    **{f"QoS {qos}": publish(qos=qos, dup=qos > 0) for qos in (0, 1, 2)},
    "retain": publish(retain=True),
    "ACK": frames.ack(new_id(spec.PUBLISH)),
    **{
        str(kind): frames.bare(kind, new_id(spec.PUBLISH))
        for kind in (spec.PUBREC, spec.PUBREL, spec.PUBCOMP)
    },
}
UNUSUAL = {
    "tags": publish(tags=("x",)),
    "other characters": publish("a/ä"),
    "no topic": publish(None),
    "long topic": publish("a" * 256),
    "too large": publish(payload=bytes(LIMIT)),
    "QoS 3": publish(qos=3),
    "refusal": frames.refusal(new_id(spec.PUBLISH), 0x87),
    "CONSUMERESP": frames.response(new_id(spec.PUBLISH), b"\x21\x07", frames.message(None, (), b"")),
    "PINGREQ": frames.bare(spec.PINGREQ, new_id(spec.PINGREQ)),
}


def agree(data: bytes, at: int = 0) -> bool:
    """Whether the short way took the frame; the core's decoder has then found the same in it."""
    short, core = Frame(data, LIMIT), Frame(data, LIMIT)
    stop = usual(short, data, at, len(data))
    if not stop:
        return False
    assert stop == decode_frame(core, at, len(data)), data.hex()
    fields = FIELDS + (MESSAGE if short.kind() == spec.PUBLISH else ())
    assert [getattr(short, name) for name in fields] == [getattr(core, name) for name in fields], data.hex()
    assert short.kind() != spec.ACK or short.code == core.code == 0
    assert short.kind() != spec.PUBLISH or short.has_topic()
    return True


@each_row("data", USUAL.values(), ids=USUAL.keys())
def test_usual_frames(data: bytes) -> None:
    assert agree(data)
    assert agree(b"before" + data + b"behind", 6)
    for size in range(len(data)) if len(data) < 500 else (*range(40), len(data) - 1):
        assert not agree(data[:size])


@each_row("data", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_others_are_left_to_the_core(data: bytes) -> None:
    assert not agree(data)


def test_vectors_and_what_is_nearly_one() -> None:
    rows = VECTORS["frames"] + VECTORS["malformed_frames"]
    known = [*(bytes.fromhex(row["hex"]) for row in rows), *USUAL.values(), *UNUSUAL.values()]
    chance = random.Random("nearly")
    taken = 0
    for data in known:
        taken += agree(data)
        if len(data) > 500:
            continue
        for _ in range(200):
            wrong = bytearray(data)
            for _ in range(chance.randrange(1, 3)):
                wrong[chance.randrange(min(len(wrong), 30))] = chance.randrange(256)
            taken += agree(bytes(wrong))
    assert taken > 500
