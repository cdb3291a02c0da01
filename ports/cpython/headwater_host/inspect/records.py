"""What the records of a log say: each frame taken apart by the core's decoders, for people and for programs."""

from collections.abc import Callable
from typing import Any

from headwater import reasons
from headwater.errors import E_SIZE, E_TRUNCATED
from headwater.fmq import names, spec
from headwater.fmq.decode import Frame, frame
from headwater.fmq.message_id import MORE, thread_at, time_at
from headwater.fmq.values import Value, number, read
from headwater_host.capture.format import MAX_FRAME, PROTOCOLS, Record
from headwater_host.inspect.mqtt import MalformedError, mqtt_frames

#: What is known of a frame: names and values that JSON can hold; ``type`` comes first.
Fields = dict[str, Any]
# Of MQTT, by protocol level.
_MQTT_VERSIONS = {3: "3.1", 4: "3.1.1", 5: "5"}


def read_fmq(data: bytes) -> Frame:
    """The one frame that a record of FMQ is. Raises MalformedError."""
    f = Frame(data, MAX_FRAME)
    stop = frame(f, 0, len(data))
    if stop == MORE:
        raise MalformedError(E_TRUNCATED, len(data))
    if stop < 0:
        raise MalformedError(stop, f.bad_at)
    if stop < len(data):
        raise MalformedError(E_SIZE, stop)
    return f


def id_parts(data: bytes, at: int) -> tuple[int, int, int]:
    """Process number, thread number and time (ns since 1970) in the message id at ``at``."""
    thread, time = thread_at(data, at), time_at(data, at)
    v = Value(data, 0)
    read(v, time, len(data))
    more = int.from_bytes(data[thread + 1 : time], "little")
    return int.from_bytes(data[at + 1 : thread], "little"), more << 4 | data[thread] & 15, number(v)


def message_at(f: Frame) -> tuple[int, int, int]:
    """Where topic, tags and payload of a PUBLISH or CONSUMERESP begin, the first two with the tags of their values."""
    k = 1 if f.kind() == spec.CONSUMERESP else 0
    return f.at[k], f.at[k + 1], f.at[k + 2]


def topic_text(raw: bytes) -> str | None:
    """A topic, as a value: of one that is a hash ``#`` and 32 hexadecimal digits; None of None."""
    v = Value(raw, 0)
    read(v, 0, len(raw))
    if v.kind == spec.STRING:
        return raw[v.at : v.end].decode()
    return None if v.kind == spec.NONE else f"#{number(v):032x}"


def tag_texts(raw: bytes) -> list[str]:
    """The strings in a list, as a value."""
    v = Value(raw, 0)
    at = read(v, 0, len(raw))
    found = []
    for _ in range(v.count):
        at = read(v, at, len(raw))
        found.append(raw[v.at : v.end].decode())
    return found


def _fmq(record: Record) -> Fields:
    data = record.frame
    f = read_fmq(data)
    process, thread, time_ns = id_parts(data, f.id_at)
    ident: Fields = {"type": f.asked(), "process": process, "thread": thread, "time_ns": time_ns}
    ident["hex"] = data[f.id_at : f.id_end].hex()
    fields: Fields = {"type": names.TYPES[f.kind()], "flags": f.head & 15, "id": ident}
    if f.kind() not in (spec.PUBLISH, spec.CONSUMERESP):
        return fields | {"body": data[f.body : f.end].hex()}
    if f.kind() == spec.PUBLISH:
        fields |= {"dup": f.dup(), "qos": f.qos(), "retain": f.retain()}
    topic_at, tags_at, payload_at = message_at(f)
    return fields | {
        "topic": topic_text(data[topic_at:tags_at]),
        "tags": tag_texts(data[tags_at:payload_at]),
        "payload": data[payload_at:].hex(),
    }


def _mqtt(record: Record) -> Fields | None:
    version = _MQTT_VERSIONS.get(record.version)
    if version is None:
        return None
    if not record.frame:
        raise MalformedError(E_TRUNCATED, 0)
    frames = mqtt_frames(record.frame, version)
    _, size, fields = next(frames)
    if size < len(record.frame):
        raise MalformedError(E_SIZE, size)
    return fields


_DECODERS: dict[str, tuple[Callable[[Record], Fields | None], dict[int, tuple[str, str]]]] = {
    "mqtt": (_mqtt, reasons.REASONS),
    "fmq": (_fmq, names.REASONS),
}


def decoded(record: Record) -> Fields | None:
    """What a record says; ``error`` with ``reason`` and ``offset`` for a malformed one; None for what is not known."""
    known = _DECODERS.get(PROTOCOLS.get(record.protocol, ""))
    if known is None:
        return None
    decode, texts = known
    try:
        return decode(record)
    except MalformedError as error:
        return {"error": {"reason": reasons.reason(error.code, texts), "offset": error.offset}}
