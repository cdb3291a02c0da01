"""Read the parts of an FMQ frame that a record holds: message id, topic, tags, payload."""

from headwater.errors import E_SIZE, E_TRUNCATED
from headwater.fmq import spec
from headwater.fmq.frames import Frame
from headwater.fmq.frames_hub import decode_frame, thread_at, time_at
from headwater.fmq.ids import MORE
from headwater.fmq.values import Value, number, read
from headwater_host.capture.format import MAX_FRAME
from headwater_host.malformed import MalformedError


def read_fmq(data: bytes) -> Frame:
    """Decode the one frame in a record of FMQ. Raises MalformedError."""
    f = Frame(data, MAX_FRAME)
    stop = decode_frame(f, 0, len(data))
    if stop == MORE:
        raise MalformedError(E_TRUNCATED, len(data))
    if stop < 0:
        raise MalformedError(stop, f.bad_at)
    if stop < len(data):
        raise MalformedError(E_SIZE, stop)
    return f


def id_parts(data: bytes, at: int) -> tuple[int, int, int]:
    """Return process number, thread number and time (ns since 1970) of the message id at ``at``."""
    thread, time = thread_at(data, at), time_at(data, at)
    v = Value(data, 0)
    read(v, time, len(data))
    more = int.from_bytes(data[thread + 1 : time], "little")
    return int.from_bytes(data[at + 1 : thread], "little"), more << 4 | data[thread] & 15, number(v)


def message_at(f: Frame) -> tuple[int, int, int]:
    """Return the offsets of topic, tags and payload of a PUBLISH or CONSUMERESP, tag bytes included."""
    k = 1 if f.kind() == spec.CONSUMERESP else 0
    return f.at[k], f.at[k + 1], f.at[k + 2]


def topic_text(raw: bytes) -> str | None:
    """Decode a topic: ``#`` and 32 hexadecimal digits for a hash, None for the value None."""
    v = Value(raw, 0)
    read(v, 0, len(raw))
    if v.kind == spec.STRING:
        return raw[v.at : v.end].decode()
    return None if v.kind == spec.NONE else f"#{number(v):032x}"


def tag_texts(raw: bytes) -> list[str]:
    """Decode a list of strings."""
    v = Value(raw, 0)
    at = read(v, 0, len(raw))
    found = []
    for _ in range(v.count):
        at = read(v, at, len(raw))
        found.append(raw[v.at : v.end].decode())
    return found
