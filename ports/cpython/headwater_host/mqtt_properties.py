"""Properties of MQTT 5.0 as a mapping of names to values.

    {"content_type": "application/json", "user_property": [("site", "north"), ("unit", "°C")]}

The names are those of the specification (2.2.2.2, table 2-4) in lower case (``headwater.names5.PROPERTIES``). Numbers
are ints, texts str, binary data bytes; ``user_property`` is a list of pairs, and ``subscription_identifier`` of a
message that arrived a list of numbers.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from headwater.mqtt import properties as props
from headwater.mqtt import spec5
from headwater.names5 import PROPERTIES
from headwater.wire import get_u16, put_varint
from headwater_host.errors import ArgumentError

#: Names and values of properties.
Properties: TypeAlias = Mapping[str, Any]

_IDENTS = {name: ident for ident, name in PROPERTIES.items()}


def items(properties: Properties | None, where: int) -> Iterator[tuple[int, int | bytes, bytes]]:
    """Yield identifier, value and second text of each property, as the core takes them.

    ``where`` are the bits of the packets that allow them (``props.allowed``). Raises ArgumentError for a property that
    is unknown or not allowed, and for a wrong value.
    """
    if properties and not isinstance(properties, Mapping):
        raise ArgumentError(f"properties={properties!r}: a dictionary of names and values")
    for name, value in (properties or {}).items():
        ident = _IDENTS.get(name, 0)
        if not props.allowed(ident) & where:
            known = "is not allowed in this packet" if ident else "is no property of MQTT 5.0"
            raise ArgumentError(f"{name!r} {known}")
        kind = props.kind_of(ident)
        for each in value if _is_many(ident, value) else (value,):
            try:
                first, second = _TAKEN[kind](each)
                if props.size_of(ident, first, second) < 0:
                    raise ValueError
            except (TypeError, ValueError):
                # The error does not show the value, which may be a secret.
                raise ArgumentError(f"{name!r} cannot have this value") from None
            yield ident, first, second


def _is_many(ident: int, value: object) -> bool:
    return props.many(ident) and isinstance(value, list | tuple) and not _is_pair(value)


def _is_pair(value: "list[object] | tuple[object, ...]") -> bool:
    return len(value) == 2 and all(isinstance(part, str) for part in value)


def _number(value: Any) -> tuple[int, bytes]:
    if not isinstance(value, int):
        raise TypeError
    return int(value), b""


def _binary(value: Any) -> tuple[bytes, bytes]:
    return bytes(memoryview(value)), b""


def _text(value: Any) -> tuple[bytes, bytes]:
    if not isinstance(value, str):
        raise TypeError
    return value.encode(), b""


def _pair(value: Any) -> tuple[bytes, bytes]:
    first, second = value
    return _text(first)[0], _text(second)[0]


# By the type of a property: the function that converts a program's value for the core.
_TAKEN: dict[int, Callable[[Any], tuple[int | bytes, bytes]]] = {
    **dict.fromkeys(range(props.BYTE, props.BINARY), _number),
    props.BINARY: _binary,
    props.TEXT: _text,
    props.NAME: _text,
    props.PAIR: _pair,
}


def encode(properties: Properties | None, where: int) -> bytes:
    """Return the encoded property block with its length. Raises ArgumentError, see ``items``."""
    if not properties:
        return spec5.NO_PROPERTIES
    block = b"".join(_property(*item) for item in items(properties, where))
    front = bytearray(4)
    return bytes(front[: put_varint(front, 0, len(block))]) + block


def _property(ident: int, value: int | bytes, value2: bytes) -> bytes:
    buf = bytearray(props.size_of(ident, value, value2))
    props.put(buf, 0, len(buf), ident, value, value2)
    return bytes(buf)


def decode(buf: "bytes | bytearray | memoryview", at: int, end: int) -> dict[str, Any]:
    """Return the properties ``buf[at:end]``, which the core has validated."""
    found: dict[str, Any] = {}
    while at < end:
        ident = buf[at]
        value = _value(buf, at + 1, ident)
        if props.many(ident):
            found.setdefault(PROPERTIES[ident], []).append(value)
        else:
            found[PROPERTIES[ident]] = value
        at = props.skip(buf, at)
    return found


def unblock(block: bytes) -> dict[str, Any]:
    """Return the properties of a block with its length, as ``encode`` returns it."""
    at = next(i for i, byte in enumerate(block) if byte < 128) + 1
    return decode(block, at, len(block))


def plain(properties: Properties) -> dict[str, Any]:
    """Return properties for JSON: binary data in hex, pairs as lists."""
    return {name: _plain(value) for name, value in properties.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _value(buf: "bytes | bytearray | memoryview", at: int, ident: int) -> Any:
    kind = props.kind_of(ident)
    if kind <= props.VARINT:
        return props.number(buf, at, ident)
    first = bytes(buf[at + 2 : at + 2 + get_u16(buf, at)])
    if kind == props.BINARY:
        return first
    if kind != props.PAIR:
        return first.decode()
    at += 2 + len(first)
    return first.decode(), bytes(buf[at + 2 : at + 2 + get_u16(buf, at)]).decode()
