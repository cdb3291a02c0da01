"""-D: properties of MQTT 5.0 packets by mosquitto's names."""

import argparse
from collections.abc import Sequence
from typing import Any

from headwater.mqtt import properties as props
from headwater.mqtt import spec
from headwater.names5 import PROPERTIES
from headwater_host.errors import ArgumentError
from headwater_host.mqtt_properties import Properties, encode

#: The packets that take properties, and the will: their bits in the core's property table.
PACKETS = {
    "connect": 1 << spec.CONNECT,
    "publish": 1 << spec.PUBLISH,
    "subscribe": 1 << spec.SUBSCRIBE,
    "unsubscribe": 1 << spec.UNSUBSCRIBE,
    "disconnect": 1 << spec.DISCONNECT,
    "will": props.WILL_PROPERTIES,
}
# Allowed in these packets, but set by the server or by the session.
_NOT_OURS = {
    ("publish", "subscription-identifier"),
    ("publish", "topic-alias"),
    ("disconnect", "server-reference"),
}


def names(packet: str) -> dict[str, int]:
    """Return the names of the properties that ``packet`` may have, with their identifiers."""
    named = ((name.replace("_", "-"), ident) for ident, name in PROPERTIES.items())
    return {
        name: ident
        for name, ident in named
        if props.allowed(ident) & PACKETS[packet] and (packet, name) not in _NOT_OURS
    }


class PropertyAction(argparse.Action):
    """Collects ``-D`` in ``properties``, by packet. ``const``: the packets that the command sends."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: "str | Sequence[Any] | None",
        option_string: str | None = None,
    ) -> None:
        """Add one property. The error omits the value, which may be a secret."""
        if namespace.properties is None:
            namespace.properties = {}
        try:
            _add(namespace.properties, list(values or ()), self.const)
        except ValueError as error:
            raise argparse.ArgumentError(self, str(error)) from None


def _add(collected: dict[str, dict[str, Any]], words: list[str], packets: Sequence[str]) -> None:
    if words[0] not in packets:
        raise ValueError(f"{words[0]!r} is not one of {', '.join(packets)}")
    packet = words[0]
    known = names(packet)
    if len(words) < 2 or words[1] not in known:
        what = "a property is missing" if len(words) < 2 else f"{words[1]!r} is not a property of {packet}"
        raise ValueError(f"{what}; choose from {', '.join(known)}")
    name, values = words[1], words[2:]
    ident = known[name]
    kind = props.kind_of(ident)
    if len(values) != (2 if kind == props.PAIR else 1):
        raise ValueError(
            f"{packet} {name} takes {'a name and a value' if kind == props.PAIR else 'one value'}"
        )
    value = _value(kind, name, values)
    key = name.replace("-", "_")
    try:
        encode({key: value}, PACKETS[packet])
    except ArgumentError:
        raise ValueError(f"{name} cannot have this value") from None
    mine = collected.setdefault(packet, {})
    if kind == props.PAIR:
        mine.setdefault(key, []).append(value)
    elif key in mine:
        raise ValueError(f"{packet} {name} is given twice")
    else:
        mine[key] = value


def _value(kind: int, name: str, values: list[str]) -> object:
    if kind == props.PAIR:
        return values[0], values[1]
    (text,) = values
    if kind == props.BINARY:
        return text.encode("utf-8", "surrogateescape")
    if kind > props.VARINT:
        return text
    if not (text.isascii() and text.isdigit()) or len(text) > 10:
        raise ValueError(f"{name} is a whole number from 0 to 4294967295")
    return int(text)


def of(args: argparse.Namespace, packet: str) -> Properties | None:
    """Return the properties that ``-D`` gives for a packet, or None."""
    return (args.properties or {}).get(packet)
