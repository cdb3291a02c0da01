"""Decode the bodies of clients' frames.

A ``Frame`` has been checked by ``headwater.fmq.frames`` before, so nothing here fails. PUBLISH, which comes most often,
is read field by field; every other request is a tuple. (FMQ, section 3)
"""

from typing import Any, NamedTuple

from headwater.fmq import spec
from headwater.fmq.frames import Frame
from headwater_host.fmq import address
from headwater_host.fmq.address import Address
from headwater_host.fmq.values import decode_at

_NO_TAGS = spec.LIST << 4
#: Fields in front of the will's payload, and in front of a call's arguments.
_WILL = 8
_WISH = 4


def _values(f: Frame, most: int) -> list[Any]:
    """Return at most the given number of fields."""
    buf = bytes(f.buf)
    return [decode_at(buf, f.at[n], f.end)[0] for n in range(min(f.count, most))]


def _rest(f: Frame, count: int) -> bytes:
    """Return the bytes after the given number of fields."""
    return bytes(f.buf[f.at[count] : f.end]) if f.count > count else b""


# -- PUBLISH -------------------------------------------------------------------------------------------------------


def topic_key(f: Frame) -> bytes:
    """Return a message's topic as it is encoded: a name or a hash."""
    return bytes(f.buf[f.body : f.tags_at])


def topic(f: Frame) -> str | int:
    """Return a message's topic, or its hash."""
    if f.has_topic():
        return str(f.buf[f.topic_at : f.topic_end], "utf-8")
    value = decode_at(bytes(f.buf), f.at[0], f.end)[0]
    assert isinstance(value, int)
    return value


def tags(f: Frame) -> tuple[str, ...]:
    """Return a message's tags."""
    if f.buf[f.tags_at] == _NO_TAGS:
        return ()
    return tuple(decode_at(bytes(f.buf), f.tags_at, f.end)[0])


def payload(f: Frame) -> bytes:
    """Return a message's payload."""
    return bytes(f.buf[f.payload_at : f.end])


def raw(f: Frame) -> bytes:
    """Return the whole frame."""
    return bytes(f.buf[f.id_at - 1 : f.end])


# -- other requests ------------------------------------------------------------------------------------------------


class Auth(NamedTuple):
    """AUTH. ``topic`` is the will's, None without a will."""

    name: str = ""
    user: str | None = None
    password: str | None = None
    keep_alive: int = 0
    clean: bool = True
    topic: str | None = None
    qos: int = 0
    retain: bool = False


def auth(f: Frame) -> tuple[Auth, bytes]:
    """Decode AUTH, and the will's payload."""
    return Auth(*_values(f, _WILL)), _rest(f, _WILL)


class Register(NamedTuple):
    """REGISTER."""

    topic: str
    queues: int = 1


def register(f: Frame) -> Register:
    """Decode REGISTER."""
    return Register(*_values(f, 2))


def unregister(f: Frame) -> str:
    """Decode UNREGISTER: a topic."""
    (found,) = _values(f, 1)
    return str(found)


class Subscribe(NamedTuple):
    """SUBSCRIBE, or CONSUME with ONCE. ``topic`` is a filter, or the hash of a topic."""

    topic: str | int
    tags: tuple[str, ...] = ()
    condition: str = ""
    group: str = ""


def subscribe(f: Frame) -> Subscribe:
    """Decode SUBSCRIBE, or CONSUME with ONCE."""
    return Subscribe(*_values(f, _WISH))


def arguments(f: Frame) -> bytes:
    """Return a call's arguments, which follow the fields of ``Subscribe``."""
    return _rest(f, _WISH)


def tags_size(f: Frame) -> int:
    """Return how many bytes the tags of a call are encoded in."""
    return f.at[2] - f.at[1]


def unsubscribe(f: Frame) -> int:
    """Decode UNSUBSCRIBE: the number of a subscription."""
    (found,) = _values(f, 1)
    return int(found)


class Consume(NamedTuple):
    """CONSUME of a subscription, with at most ``window`` unacknowledged messages; 0: as many as the hub allows."""

    number: int
    window: int = 0


def consume(f: Frame) -> Consume:
    """Decode CONSUME."""
    return Consume(*_values(f, 2))


class Elect(NamedTuple):
    """ELECT. ``announced``: the candidate says that it leads."""

    candidate: Address
    version: int
    announced: bool


def elect(f: Frame) -> Elect:
    """Decode ELECT."""
    buf = bytes(f.buf[f.body : f.end])
    candidate, at = address.decode(buf, 0)
    both = spec.VOTE | spec.APPROVE
    return Elect(candidate, decode_at(buf, at, len(buf))[0], f.head & both == both)


def slave(f: Frame) -> bytes:
    """Return the address that a slave advertises, as it is encoded in SLAVEOF."""
    buf = bytes(f.buf[f.body : f.end])
    return buf[address.decode(buf, 0)[1] :]


def refusal_text(f: Frame) -> str:
    """Return the text of an ACK."""
    return str(decode_at(bytes(f.buf), f.at[1], f.end)[0]) if f.count > 1 else ""
