"""The stream between a leader and a slave, as payloads of PUBLISH frames (docs/hub-cluster.md).

A payload is a control message (a JSON object), changes, or a piece of a snapshot; its first byte says which. Changes
and pieces end with a checksum of their own: TCP's is too weak for what becomes a second hub's state.
"""

import json
import struct
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage import Change, Message
from headwater_host.hub.storage.records import encoded, tags_text

#: The topic of the frames, and of no message.
CHANGES = "$hub/changes"
#: The version of the stream; a hub refuses others.
VERSION = 1

#: The first byte of a payload.
CONTROL, SOME, PIECE = b"{", b"C", b"S"

#: Of changes: the last change that the leader has committed, and the last one of the transaction that they end in.
_SOME = struct.Struct("<cQQ")
#: Of one change: its sequence number, kind and length.
_CHANGE = struct.Struct("<QBI")
#: Of a message: queue, flags, time, and the lengths of id, topic and tags.
_MESSAGE = struct.Struct("<IBqBHI")
_TIME = struct.Struct("<q")
_CRC = struct.Struct("<I")

#: Kinds of changes: others have their name in front of their values.
_STORED, _RETAINED, _SEEN, _OTHER = range(4)
_KINDS = {"message": _STORED, "retained": _RETAINED, "seen": _SEEN}


class Changes(NamedTuple):
    """Some changes in order, the last change that the leader has committed, and the last change of the transaction that
    the last of them is in."""

    committed: int
    turn: int
    changes: list[Change]


def control(**values: Any) -> bytes:
    """Return a control message."""
    return encoded(values).encode()


def pack(committed: int, turn: int, changes: Iterable[Change]) -> bytes:
    """Return changes as a payload."""
    parts = [_SOME.pack(SOME, committed, turn)]
    for seq, kind, values in changes:
        code = _KINDS.get(kind, _OTHER)
        body = _body(code, kind, values)
        parts.append(_CHANGE.pack(seq, code, len(body)))
        parts.append(body)
    return _sealed(b"".join(parts))


def piece(data: bytes) -> bytes:
    """Return a piece of a snapshot as a payload."""
    return _sealed(PIECE + data)


def unpack(payload: bytes) -> dict[str, Any] | Changes | bytes:
    """Return a control message, changes, or a piece of a snapshot. Raises StorageError when it is none of them."""
    try:
        if payload[:1] == CONTROL:
            found = json.loads(payload)
            assert isinstance(found, dict)
            return found
        body, (crc,) = memoryview(payload)[: -_CRC.size], _CRC.unpack(payload[-_CRC.size :])
        if zlib.crc32(body) != crc:
            raise ValueError("its checksum is wrong")
        if payload[:1] == PIECE:
            return bytes(body[1:])
        if payload[:1] == SOME:
            return _unpacked(bytes(body))
        raise ValueError(f"its first byte is {payload[:1]!r}")
    except (ValueError, struct.error, LookupError, RecursionError) as error:
        raise StorageError(f"a payload of {CHANGES} is malformed: {error}") from error


def _sealed(body: bytes) -> bytes:
    return body + _CRC.pack(zlib.crc32(body))


# -- changes -----------------------------------------------------------------------------------------------------------


def _body(code: int, kind: str, values: tuple[Any, ...]) -> bytes:
    if code == _OTHER:
        name = kind.encode()
        return b"%c%b%b" % (len(name), name, encoded(values).encode())
    if code == _SEEN:
        ident, time_ns = values
        return _TIME.pack(time_ns) + bytes(ident)
    m: Message = values[0]
    topic, tags = m.topic.encode(), tags_text(m.tags).encode()
    flags = m.qos << 1 | m.retain
    head = _MESSAGE.pack(m.queue, flags, m.time_ns, len(m.id), len(topic), len(tags))
    return b"".join((head, m.id, topic, tags, m.payload))


def _unpacked(data: bytes) -> Changes:
    _, committed, turn = _SOME.unpack_from(data)
    found: list[Change] = []
    at = _SOME.size
    while at < len(data):
        seq, code, size = _CHANGE.unpack_from(data, at)
        at += _CHANGE.size
        if at + size > len(data):
            raise ValueError("a change is cut")
        body = data[at : at + size]
        at += size
        if code in (_STORED, _RETAINED):
            kind = "message" if code == _STORED else "retained"
            found.append(Change(seq, kind, (_message(seq, body),)))
        elif code == _SEEN:
            found.append(Change(seq, "seen", (body[_TIME.size :], *_TIME.unpack_from(body))))
        else:
            n = 1 + body[0]
            found.append(Change(seq, body[1:n].decode(), tuple(json.loads(body[n:]))))
    return Changes(committed, turn, found)


def _message(seq: int, body: bytes) -> Message:
    queue, flags, time_ns, id_size, topic_size, tags_size = _MESSAGE.unpack_from(body)
    at = _MESSAGE.size
    ident = body[at : at + id_size]
    at += id_size
    topic = body[at : at + topic_size].decode()
    at += topic_size
    tags = tuple(json.loads(body[at : at + tags_size])) if tags_size else ()
    at += tags_size
    return Message(seq, ident, topic, queue, tags, body[at:], flags >> 1, bool(flags & 1), time_ns)
