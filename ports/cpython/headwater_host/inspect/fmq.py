"""Decode FMQ frames and values for display. Fields are named as in ``tests/vectors/fmq.json``."""

import ipaddress
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from headwater import errors
from headwater.fmq import frames_hub, ids, names, spec
from headwater.fmq.frames import Frame
from headwater.fmq.frames_hub import decode_frame
from headwater.fmq.values import KINDS
from headwater_host.fmq.kinds import DateTime, Duration, exact
from headwater_host.fmq.plain import real
from headwater_host.fmq.values import decode_at
from headwater_host.malformed import MalformedError

#: The longest body that is decoded: the limit of a receiver on a host.
LONGEST = 16 << 20

Fields = dict[str, Any]


class MalformedFrameError(MalformedError):
    """The input is no frame of FMQ."""

    names = names.REASONS


def frames(data: bytes) -> Iterator[tuple[int, int, Fields]]:
    """Yield the frames in ``data``, of both directions: offset, size and fields. Raises MalformedError after the last
    good one; ``truncated``, with the input's length, when it ends inside a frame."""
    f = Frame(data, LONGEST)
    at = 0
    while at < len(data):
        stop = decode_frame(f, at, len(data))
        if stop < 0:
            raise MalformedFrameError(stop, f.bad_at)
        if stop == ids.MORE:
            raise MalformedFrameError(errors.E_TRUNCATED, len(data))
        fields = {"type": names.TYPES[f.kind()], "flags": f.head & 15, "id": identity(f)}
        yield at, stop - at, fields | _FIELDS.get(f.kind(), _nothing)(f)
        at = stop


def values(data: bytes) -> Iterator[tuple[int, int, Fields]]:
    """Yield the values in ``data``, at least one: offset, size, ``type`` and ``value``."""
    at = 0
    while at < len(data) or at == 0:
        value, stop = decode_at(data, at, len(data))
        yield at, stop - at, {"type": names.VALUES[KINDS[data[at] >> 4]], "value": plain(value)}
        at = stop


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: integers, decimals, durations and times as decimal texts, a map as pairs."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return str(exact(value))
    if isinstance(value, (Duration, DateTime)):
        return str(exact(value.nanoseconds))
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, float):
        return real(value)
    if isinstance(value, dict):
        value = value.items()
    return [plain(one) for one in value]


def identity(f: Frame) -> Fields:
    """Return the parts of the frame's message id."""
    ident = bytes(f.buf[f.id_at : f.id_end])
    thread, time = frames_hub.thread_at(ident, 0), frames_hub.time_at(ident, 0)
    made, _ = decode_at(ident, time, len(ident))
    return {
        "type": ident[0] >> 4,
        "process": int.from_bytes(ident[1:thread], "little"),
        "thread": int.from_bytes(ident[thread + 1 : time], "little") << 4 | ident[thread] & 15,
        "time_ns": made.nanoseconds,
        "hex": ident.hex(),
    }


def _nothing(f: Frame) -> Fields:
    return {}


def _cut(f: Frame, k: int) -> bytes:
    return bytes(f.buf[f.at[k] : f.at[k + 1]])


def _field(f: Frame, k: int, otherwise: Any = None) -> Any:
    """Return field ``k``, or its default."""
    return decode_at(_cut(f, k), 0, f.at[k + 1] - f.at[k])[0] if k < f.count else otherwise


def _raw(f: Frame, k: int) -> str:
    return _cut(f, k).hex() if k < f.count else ""


def _addresses(data: bytes) -> list[Fields]:
    """Decode consecutive addresses."""
    found = []
    while data:
        size = data[0] & 15 or 16
        number = int.from_bytes(data[1 : size + 1], "little")
        ip = ipaddress.IPv4Address(number) if data[0] >> 4 == 4 else ipaddress.IPv6Address(number)
        found.append({"ip": str(ip), "port": int.from_bytes(data[size + 1 : size + 3], "little")})
        data = data[size + 3 :]
    return found


def _auth(f: Frame) -> Fields:
    will = None
    if f.count > 5:
        will = {
            "topic": _field(f, 5),
            "qos": _field(f, 6, 0),
            "retain": _field(f, 7, False),
            "payload": _raw(f, 8),
        }
    return {
        "client": _field(f, 0, ""),
        "user": _field(f, 1),
        "password": _field(f, 2),
        "keepalive": _field(f, 3, 0),
        "clean": _field(f, 4, True),
        "will": will,
    }


def _slaveof(f: Frame) -> Fields:
    if f.head & spec.REG:
        return {}
    master, slave = _addresses(_cut(f, 0) + _cut(f, 1))
    return {"master": master, "slave": slave}


def _register(f: Frame) -> Fields:
    return {"topic": _field(f, 0), "queues": _field(f, 1, 1)}


def _unregister(f: Frame) -> Fields:
    return {"topic": _field(f, 0)}


def _topic(f: Frame, k: int) -> Fields:
    topic = _field(f, k)
    return {"topic_hash": str(topic)} if isinstance(topic, int) else {"topic": topic}


def _publish(f: Frame) -> Fields:
    flags = {"qos": f.qos(), "dup": f.dup(), "retain": f.retain()}
    return flags | _topic(f, 0) | {"tags": _field(f, 1), "payload": _raw(f, 2)}


def _subscribe(f: Frame) -> Fields:
    wanted = {"tags": _field(f, 1, []), "condition": _field(f, 2, ""), "group": _field(f, 3, "")}
    return _topic(f, 0) | wanted


def _unsubscribe(f: Frame) -> Fields:
    return {"subscription": str(_field(f, 0))}


def _consume(f: Frame) -> Fields:
    if f.head & spec.ONCE:
        return _subscribe(f) | {"args": _raw(f, 4)}
    return {"subscription": str(_field(f, 0)), "window": _field(f, 1)}


def _consumeresp(f: Frame) -> Fields:
    if f.buf[f.at[0]] >> 4 == spec.CONSUME:
        to = {"consume": _raw(f, 0)}
    else:
        to = {"subscription": str(_field(f, 0))}
    return to | _topic(f, 1) | {"tags": _field(f, 2), "payload": _raw(f, 3)}


def _elect(f: Frame) -> Fields:
    return _addresses(_cut(f, 0))[0] | {"version": _field(f, 1)}


def _ack(f: Frame) -> Fields:
    said: Fields = {"reason": f.code}
    asked = f.asked()
    if f.count == 0:
        return said
    if f.code:
        return said | {"text": _field(f, 1)}
    if asked == spec.AUTH:
        time = _field(f, 3).nanoseconds
        return said | {"process": _field(f, 1), "session_present": _field(f, 2), "time_ns": time}
    if asked == spec.SUBSCRIBE:
        return said | {"subscription": str(_field(f, 1))}
    if asked == spec.SLAVEOF:
        return said | {"slaves": _addresses(_cut(f, 1)) if f.count > 1 else []}
    if asked == spec.ELECT and f.buf[f.body] != spec.NONE:
        # An Int in front is a reason code of 0, which agrees as well.
        return said if KINDS[f.buf[f.body] >> 4] == spec.INT else said | _elect(f)
    return said


#: The fields of a frame's body by its type: names and values that JSON can hold.
_FIELDS: dict[int, Callable[[Frame], Fields]] = {
    spec.AUTH: _auth,
    spec.SLAVEOF: _slaveof,
    spec.REGISTER: _register,
    spec.PUBLISH: _publish,
    spec.SUBSCRIBE: _subscribe,
    spec.UNSUBSCRIBE: _unsubscribe,
    spec.CONSUME: _consume,
    spec.CONSUMERESP: _consumeresp,
    spec.ELECT: _elect,
    spec.ACK: _ack,
    spec.UNREGISTER: _unregister,
}
