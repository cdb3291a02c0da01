"""Decode records of the capture log for display."""

from collections.abc import Callable
from typing import Any

from headwater import reasons
from headwater.errors import E_SIZE, E_TRUNCATED
from headwater.fmq import names, spec
from headwater_host.capture.fmq_frame import id_parts, message_at, read_fmq, tag_texts, topic_text
from headwater_host.capture.format import PROTOCOLS, Record
from headwater_host.inspect.mqtt import mqtt_frames
from headwater_host.malformed import MalformedError

#: The contents of a frame: names and values that JSON can hold; ``type`` comes first.
Fields = dict[str, Any]
# Of MQTT, by protocol level.
_MQTT_VERSIONS = {3: "3.1", 4: "3.1.1", 5: "5"}


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
    """Return the fields of a record, or ``error`` with ``reason`` and ``offset``; None for unknown protocols."""
    known = _DECODERS.get(PROTOCOLS.get(record.protocol, ""))
    if known is None:
        return None
    decode, texts = known
    try:
        return decode(record)
    except MalformedError as error:
        return {"error": {"reason": reasons.reason(error.code, texts), "offset": error.offset}}
