"""What FMQ's frames say, as the vector file writes it, and the calls that write them."""

import binascii

import vectors

from headwater.fmq import frames, frames_hub, spec, values
from headwater.fmq.frames import Frame
from headwater.fmq.frames_hub import decode_frame
from headwater.fmq.values import Value, put_int

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Row = dict[str, Any]


def hexed(data: bytes) -> str:
    # MicroPython's ``hex()`` makes bytes of no bytes.
    return str(binascii.hexlify(data), "ascii")


def cut(f: Frame, k: int) -> bytes:
    return bytes(f.buf[f.at[k] : f.at[k + 1]])


def value(f: Frame, k: int) -> "Any":
    """Field k: None, a bool, an integer, a text, or a list of texts; None as well when it was left out."""
    if k >= f.count:
        return None
    v = Value(f.buf)
    at = values.read(v, f.at[k], f.end)
    assert at > 0
    if v.kind == spec.LIST:
        found = []
        for _ in range(v.count):
            at = values.read(v, at, f.end)
            found.append(str(bytes(v.buf[v.at : v.end]), "utf-8"))
        return found
    if v.kind == spec.STRING:
        return str(bytes(v.buf[v.at : v.end]), "utf-8")
    if v.kind == spec.NONE:
        return None
    return v.low == 1 if v.kind == spec.BOOL else values.number(v)


def address(data: bytes) -> "tuple[Row, int]":
    """An address, and how many bytes it has."""
    n = data[0] & 15 or 16
    ip = bytes(reversed(list(data[1 : n + 1])))
    if data[0] >> 4 == 4:
        text = ".".join([str(byte) for byte in b"\x00" * (4 - n) + ip])
    else:
        ip = b"\x00" * (16 - n) + ip
        # Of the addresses of the vectors, only one has a gap: that one.
        text = "2001:db8::1" if hexed(ip) == "20010db8000000000000000000000001" else hexed(ip)
    return {"ip": text, "port": data[n + 1] | data[n + 2] << 8}, n + 3


def addresses(data: bytes) -> "list[Row]":
    found = []
    while data:
        one, n = address(data)
        found.append(one)
        data = data[n:]
    return found


def _topic(f: Frame, k: int) -> "Row":
    topic = value(f, k)
    return {"topic_hash": str(topic)} if isinstance(topic, int) else {"topic": topic}


def _wanted(f: Frame) -> "Row":
    return {"tags": value(f, 1) or [], "condition": value(f, 2) or "", "group": value(f, 3) or ""}


def _message(f: Frame) -> "Row":
    fields = {"tags": value(f, f.count - 2), "payload": hexed(f.payload_bytes())}
    fields.update(_topic(f, f.count - 3))
    if "topic" in fields and fields["topic"] is not None:
        assert f.has_topic() and f.topic_text() == fields["topic"]
        name = f.topic_bytes()
        assert f.topic_is(name) and not f.topic_is(name + b"x") and not f.topic_is(name[:-1] + b"\xff")
    else:
        assert not f.has_topic()
    assert f.tags_at == f.at[f.count - 2]
    return fields


def _auth(f: Frame) -> "Row":
    fields = {
        "client": value(f, 0) or "",
        "user": value(f, 1),
        "password": value(f, 2),
        "keepalive": value(f, 3) or 0,
        "clean": value(f, 4) is not False,
    }
    if f.count > 5:
        fields["will"] = {
            "topic": value(f, 5),
            "qos": value(f, 6) or 0,
            "retain": value(f, 7) or False,
            "payload": hexed(cut(f, 8)) if f.count > 8 else "",
        }
    return fields


def _ack(f: Frame) -> "Row":
    fields: Row = {"reason": f.code}
    if f.count == 0:
        return fields
    if f.asked() == spec.ELECT and f.code == 0:
        return fields if f.count == 1 else _elect(f)
    if f.code:
        fields["text"] = value(f, 1)
    elif f.asked() == spec.AUTH:
        fields["process"] = value(f, 1)
        fields["session_present"] = value(f, 2)
        fields["time_ns"] = str(value(f, 3))
    elif f.asked() == spec.SUBSCRIBE:
        fields["subscription"] = str(value(f, 1))
    elif f.asked() == spec.SLAVEOF:
        fields["slaves"] = addresses(cut(f, 1)) if f.count > 1 else []
    return fields


def _elect(f: Frame) -> "Row":
    fields = address(cut(f, 0))[0]
    fields["version"] = value(f, 1)
    return fields


def _consume(f: Frame) -> "Row":
    if f.head & spec.ONCE:
        fields = _wanted(f)
        fields.update(_topic(f, 0))
        fields["args"] = hexed(cut(f, 4)) if f.count > 4 else ""
        return fields
    return {"subscription": str(value(f, 0)), "window": value(f, 1)}


def said(f: Frame) -> "Row":
    """What a decoded frame says, as the vector file writes it."""
    kind = f.kind()
    fields: Row = {
        "type": kind,
        "flags": f.head & 15,
        "id": hexed(bytes(f.buf[f.id_at : f.id_end])),
        "body": hexed(bytes(f.buf[f.body : f.end])),
    }
    if kind == spec.AUTH:
        fields.update(_auth(f))
    elif kind == spec.SLAVEOF and not f.head & spec.REG:
        fields["slaves"] = [address(cut(f, 0))[0], address(cut(f, 1))[0]]
    elif kind in (spec.REGISTER, spec.UNREGISTER):
        fields["topic"] = value(f, 0)
        if kind == spec.REGISTER:
            fields["queues"] = value(f, 1) or 1
    elif kind == spec.PUBLISH:
        assert f.count == 3
        fields.update(_message(f))
        fields["qos"] = f.qos()
        fields["dup"] = f.dup()
        fields["retain"] = f.retain()
    elif kind == spec.SUBSCRIBE:
        fields.update(_topic(f, 0))
        fields.update(_wanted(f))
    elif kind == spec.UNSUBSCRIBE:
        fields["subscription"] = str(value(f, 0))
    elif kind == spec.CONSUME:
        fields.update(_consume(f))
    elif kind == spec.CONSUMERESP:
        assert f.count == 4
        fields.update(_message(f))
        if f.buf[f.at[0]] >> 4 == spec.CONSUME:
            fields["consume"] = hexed(cut(f, 0))
        else:
            fields["subscription"] = str(value(f, 0))
    elif kind == spec.ELECT:
        fields.update(_elect(f))
    elif kind == spec.ACK:
        fields.update(_ack(f))
    return fields


# -- writing -----------------------------------------------------------------------------------------------------------


def _bytes(row: "Row", name: str) -> "Any":
    text = row.get(name)
    return text.encode() if isinstance(text, str) else text


def _name(row: "Row") -> "Any":
    return int(row["topic_hash"]) if "topic_hash" in row else _bytes(row, "topic")


def _tags(row: "Row") -> "list[bytes]":
    return [tag.encode() for tag in row.get("tags", [])]


def _integer(number: int) -> bytes:
    buf = bytearray(30)
    return bytes(buf[: put_int(buf, 0, 30, number)])


def _address(row: "Row") -> bytes:
    """The address at the beginning of a row's body: there is nothing in the core that writes one."""
    body = vectors.unhex(row["body"])
    return body[: address(body)[1]]


def _without_empties(found: "list[Any]", least: int) -> "list[Any]":
    while len(found) > least and not found[-1]:
        found.pop()
    return found


def fields_of(row: "Row") -> "list[Any]":
    """What ``encode.frame`` takes for a row."""
    kind = row["type"]
    body = vectors.unhex(row["body"])
    if not body or (kind == spec.AUTH and "client" not in row):
        return []
    if kind == spec.AUTH:
        found = [_bytes(row, "client"), _bytes(row, "user"), _bytes(row, "password")]
        found += [row.get("keepalive", 0), row.get("clean", True)]
        if "will" in row:
            will = row["will"]
            found += [will["topic"].encode(), will["qos"], will["retain"], vectors.unhex(will["payload"])]
        # How many of them are there is for the row to choose.
        data = vectors.unhex(row["hex"])
        f = Frame(data, len(data))
        assert decode_frame(f, 0, len(data)) > 0
        return found[: f.count]
    if kind == spec.SLAVEOF:
        n = len(_address(row))
        return [body[:n], body[n:]]
    if kind in (spec.REGISTER, spec.UNREGISTER):
        return [_bytes(row, "topic")] + ([row["queues"]] if row.get("queues", 1) > 1 else [])
    if kind == spec.PUBLISH:
        return [_name(row), _tags(row), vectors.unhex(row["payload"])]
    if kind == spec.SUBSCRIBE:
        return _without_empties([_name(row), _tags(row), _bytes(row, "condition"), _bytes(row, "group")], 1)
    if kind == spec.UNSUBSCRIBE:
        return [int(row["subscription"])]
    if kind == spec.CONSUME and row["flags"] & spec.ONCE:
        found = [_name(row), _tags(row), _bytes(row, "condition") or b"", _bytes(row, "group") or b""]
        return found + ([vectors.unhex(row["args"])] if "args" in row else [])
    if kind == spec.CONSUME:
        return [int(row["subscription"])] + ([row["window"]] if "window" in row else [])
    if kind == spec.CONSUMERESP:
        to = vectors.unhex(row["consume"]) if "consume" in row else _integer(int(row["subscription"]))
        return [to, _name(row), _tags(row), vectors.unhex(row["payload"])]
    if kind == spec.ELECT or "ip" in row:
        return [_address(row), row["version"]]
    return _ack_fields(row, body)


def _ack_fields(row: "Row", body: bytes) -> "list[Any]":
    if body == b"\x00":
        return [None]
    if "process" in row:
        return [0, row["process"], row["session_present"], body[5:]]
    if "subscription" in row:
        return [0, int(row["subscription"])]
    if "slaves" in row:
        return [0, body[2:]] if len(body) > 2 else [0]
    if row["reason"] == 135 and len(body) > 2:
        return [135, b"not authorized"]
    return [row["reason"]] + ([row["text"].encode()] if "text" in row else [])


def encoded(row: "Row", buf: bytearray, at: int, limit: int) -> int:
    """Write a row's frame, with what writes any of them."""
    ident = vectors.unhex(row["id"])
    return frames.encode_frame(buf, at, limit, row["type"] << 4 | row["flags"], ident, fields_of(row))


def quickly(row: "Row", buf: bytearray, at: int, limit: int) -> int:
    """As ``encoded``, with the short ways there are for some; 0 for the others."""
    kind = row["type"]
    ident = vectors.unhex(row["id"])
    if kind == spec.PUBLISH and "topic" in row:
        tags = frames.tag_list(_tags(row)) if row.get("tags") else frames.NO_TAGS
        topic = row["topic"].encode()
        head = kind << 4 | row["flags"]
        return frames_hub.encode_publish(
            buf, at, limit, head, ident, topic, vectors.unhex(row["payload"]), tags
        )
    if (kind == spec.ACK and not row["body"]) or kind in (spec.PUBREC, spec.PUBREL, spec.PUBCOMP):
        return frames.encode_answer(buf, at, limit, kind, b"\xff" + ident + b"\xff", 1, 1 + len(ident))
    return 0
