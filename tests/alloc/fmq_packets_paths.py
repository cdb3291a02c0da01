# paths: next id, write publish, write publish with tags, scan publish, scan consumeresp, decode publish with tags
# paths: answer, decode answers, malformed publish, walk a payload, check a payload, write a payload, copy a time
# paths: float
# frames: write publish with tags, write a payload, copy a time, float
"""Frames of FMQ, and a payload that is one of its maps: written, taken apart, read, refused."""

from prove import prove

from headwater.fmq import frames, frames_hub, spec
from headwater.fmq.frames import Frame
from headwater.fmq.ids import IdMaker
from headwater.fmq.numbers import check, put_bytes, put_float
from headwater.fmq.values import Value, number, put_bool, put_count, put_int, put_none, put_text, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    pass

TOPIC = b"plant/1/temp"
PAYLOAD = b"0123456789abcdef"
TAGS = frames.tag_list([b"raw", b"celsius"])
TIME = b"\xcd\x4e\x2b\x84\x5b\xd7\x18\x18"

maker = IdMaker(3)
assert maker.set_process(b"\x09", 0, 1) == 0
assert maker.set_time(TIME, 0, 8, 0) == 0
now = [0]
out = bytearray(160)
ident = maker.next(spec.PUBLISH, 0)

plain = bytearray(128)
plain_end = frames_hub.encode_publish(plain, 0, 128, 0x32, ident, TOPIC, PAYLOAD)
tagged = bytearray(128)
tagged_end = frames_hub.encode_publish(tagged, 0, 128, 0x3D, ident, TOPIC, PAYLOAD, TAGS)
given = bytearray(128)
given_end = frames.encode_frame(given, 0, 128, 0xB0, ident, (7, None, (), PAYLOAD))
broken = bytearray(tagged)
broken[tagged_end - 17] = 0xC3
assert min(plain_end, tagged_end, given_end) > 0
plain_frame, tagged_frame, given_frame, broken_frame = [
    Frame(one, 512) for one in (plain, tagged, given, broken)
]
answers = bytearray(64)
answer_frame = Frame(answers, 64)

payload = bytearray(160)
payload_value = Value(payload)
item = Value(payload)


def next_id() -> None:
    now[0] += 1
    maker.next(spec.PUBLISH, now[0] >> 1)


def write_plain() -> None:
    at = frames.put_head(out, 0, 0x32, ident)
    assert frames.put_message(out, at, TOPIC, PAYLOAD, frames.NO_TAGS) == plain_end


def write_tagged() -> None:
    assert frames_hub.encode_publish(out, 0, 160, 0x3D, ident, TOPIC, PAYLOAD, TAGS) == tagged_end


def scan_plain() -> None:
    assert frames.scan(plain_frame, 0, plain_end) == plain_end
    assert plain_frame.topic_is(TOPIC)


def scan_given() -> None:
    assert frames.scan(given_frame, 0, given_end) == given_end


def decode_tagged() -> None:
    assert frames_hub.decode_frame(tagged_frame, 0, tagged_end) == tagged_end


def answer() -> None:
    end = frames.encode_answer(out, 0, 160, spec.ACK, tagged, tagged_frame.id_at, tagged_frame.id_end)
    assert (
        frames.encode_answer(out, end, 160, spec.PUBREC, tagged, tagged_frame.id_at, tagged_frame.id_end)
        > end
    )


def decode_answers() -> None:
    end = frames.encode_answer(answers, 0, 64, spec.ACK, tagged, tagged_frame.id_at, tagged_frame.id_end)
    assert frames_hub.decode_frame(answer_frame, 0, end) == end
    assert answer_frame.code == 0
    end = frames.encode_answer(answers, 0, 64, spec.PUBCOMP, tagged, tagged_frame.id_at, tagged_frame.id_end)
    assert frames_hub.decode_frame(answer_frame, 0, end) == end


def malformed() -> None:
    assert frames.scan(broken_frame, 0, tagged_end) == 0
    assert frames_hub.decode_frame(broken_frame, 0, tagged_end) < 0


def write_payload() -> int:
    at = put_count(payload, 0, 160, spec.MAP, 4)
    at = put_text(payload, at, 160, b"n")
    at = put_int(payload, at, 160, -70000)
    at = put_text(payload, at, 160, b"ok")
    at = put_bool(payload, at, 160, True)
    at = put_text(payload, at, 160, b"last")
    at = put_count(payload, at, 160, spec.LIST, 2)
    at = put_none(payload, at, 160)
    at = put_int(payload, at, 160, 300)
    at = put_text(payload, at, 160, b"at")
    return put_bytes(payload, at, 160, spec.DATETIME, TIME, 0, 8)


payload_end = write_payload()
assert payload_end > 0


def check_payload() -> None:
    assert check(payload_value, 0, payload_end) == payload_end
    assert payload_value.kind == spec.MAP


def walk_payload() -> None:
    at = read(payload_value, 0, payload_end)
    numbers = 0
    for _ in range(payload_value.count):
        at = read(item, at, payload_end)
        assert item.kind == spec.STRING
        at = check(item, at, payload_end)
        if item.kind == spec.INT:
            numbers += number(item)
    assert at == payload_end
    assert numbers == -70000


def copy_time() -> None:
    at = payload_end - 9
    assert read(item, at, payload_end) == payload_end
    assert put_bytes(out, 0, 160, item.kind, payload, item.at, item.end, item.negative) == 9


a_float = 21.25
another = 0.1


def write_float() -> None:
    assert put_float(out, 0, 160, a_float) == 3
    assert put_float(out, 0, 160, another) in (5, 9)


prove("next id", next_id)
prove("write publish", write_plain)
prove("write publish with tags", write_tagged)
prove("scan publish", scan_plain)
prove("scan consumeresp", scan_given)
prove("decode publish with tags", decode_tagged)
prove("answer", answer)
prove("decode answers", decode_answers)
prove("malformed publish", malformed)
prove("write a payload", write_payload)
prove("check a payload", check_payload)
prove("walk a payload", walk_payload)
prove("copy a time", copy_time)
prove("float", write_float)
