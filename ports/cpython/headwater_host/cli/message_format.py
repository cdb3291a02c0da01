"""sub -F: mosquitto_sub's format sequences."""

import json
import re
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater_host.client.mqtt.messages import Message
from headwater_host.mqtt_properties import Properties, plain

if TYPE_CHECKING:
    from headwater_host.client.fmq.messages import Message as FmqMessage


class Received(NamedTuple):
    """A message and its receive time."""

    message: "Message | FmqMessage"
    time_ns: int
    #: The payload to print.
    payload: bytes

    @property
    def mid(self) -> int:
        """The packet identifier, 0 without one."""
        return getattr(self.message, "mid", 0)

    @property
    def properties(self) -> Properties:
        """The properties (MQTT 5.0)."""
        found: Properties = getattr(self.message, "properties", {})
        return found

    def local(self, shape: str) -> str:
        """Format the time in local time, as ``time.strftime`` does."""
        return time.strftime(shape, time.localtime(self.time_ns // 10**9))

    def property_value(self, name: str) -> Any:
        """Return a property, "" without it."""
        return self.properties.get(name, "")


Part = Callable[[Any], "str | bytes"]


def _pairs(r: Received) -> str:
    return " ".join(f"{name}:{value}" for name, value in r.property_value("user_property"))


def _numbers(r: Received) -> str:
    return ",".join(map(str, r.property_value("subscription_identifier")))


def _property(name: str) -> Part:
    def value(r: Received) -> "str | bytes":
        found = r.property_value(name)
        return found if isinstance(found, bytes) else str(found)

    return value


# -- JSON --------------------------------------------------------------------------------------------------------------


def _object(items: Iterable[tuple[str, str]]) -> str:
    """Format an object of names and JSON texts. Names may repeat, as in user properties."""
    return "{" + ",".join(f"{_text(name)}:{value}" for name, value in items) + "}"


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _quoted(payload: bytes) -> tuple[str, str]:
    try:
        return "payload", _text(payload.decode())
    except UnicodeDecodeError:
        return "payload_hex", _text(payload.hex())


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _as_it_is(payload: bytes) -> tuple[str, str]:
    try:
        text = payload.decode()
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return _quoted(payload)
    # JSON strings contain no line ends, so all are whitespace.
    return "payload", text.replace("\r", " ").replace("\n", " ").strip()


def _json(payload: Callable[[bytes], tuple[str, str]]) -> Part:
    def text(r: Received) -> str:
        m = r.message
        zone = r.local("%z")
        items = [
            ("tst", _text(f"{r.local('%Y-%m-%dT%H:%M:%S')}.{r.time_ns // 1000 % 10**6:06}{zone}")),
            ("topic", _text(str(m.topic))),
            ("qos", str(m.qos)),
            ("retain", str(int(m.retain))),
            ("payloadlen", str(len(r.payload))),
        ]
        if r.mid:
            items.append(("mid", str(r.mid)))
        if r.properties:
            items.append(("properties", _object(_properties(r))))
        return _object([*items, payload(r.payload)])

    return text


def _properties(r: Received) -> Iterable[tuple[str, str]]:
    for name, value in plain(r.properties).items():
        if name == "user_property":
            yield "user-properties", _object((key, _text(text)) for key, text in value)
        elif name == "subscription_identifier" and len(value) == 1:
            yield "subscription-identifier", str(value[0])
        else:
            yield name.replace("_", "-"), _text(value)


# -- the sequences -----------------------------------------------------------------------------------------------------

#: The fields after %.
FIELDS: dict[str, Part] = {
    "t": lambda r: str(r.message.topic),
    "p": lambda r: r.payload,
    "x": lambda r: r.payload.hex(),
    "X": lambda r: r.payload.hex().upper(),
    "l": lambda r: str(len(r.payload)),
    "q": lambda r: str(r.message.qos),
    "r": lambda r: str(int(r.message.retain)),
    "m": lambda r: str(r.mid),
    "I": lambda r: r.local("%Y-%m-%dT%H:%M:%S%z"),
    "U": lambda r: f"{r.time_ns // 10**9}.{r.time_ns % 10**9:09}",
    "j": _json(_quoted),
    "J": _json(_as_it_is),
    "A": _property("topic_alias"),
    "C": _property("content_type"),
    "D": _property("correlation_data"),
    "E": _property("message_expiry_interval"),
    "F": _property("payload_format_indicator"),
    "P": _pairs,
    "R": _property("response_topic"),
    "S": _numbers,
}
# The fields that the flag 0 pads with zeros.
_ZEROS = "AEFlmSxX"
_ESCAPES = {"\\": "\\", "0": "\0", "a": "\a", "e": "\x1b", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_SEQUENCE = re.compile(r"%([-0]*)([0-9]{0,4})(?:\.([0-9]{0,4}))?(.?)|@(.?)|\\(.?)|[^%@\\]+", re.S)


def parse(text: str, fields: "dict[str, Part] | None" = None, zeros: str = _ZEROS) -> list[Part]:
    """Parse a format into its parts. Raises ValueError for an unknown sequence.

    ``fields``: the fields after %, by default ``FIELDS``; ``zeros``: those that the flag 0 pads with zeros.
    """
    return [_part(found, FIELDS if fields is None else fields, zeros) for found in _SEQUENCE.finditer(text)]


def _part(found: "re.Match[str]", fields: dict[str, Part], filled: str) -> Part:
    whole = found[0]
    flags, width, most, field, moment, escape = found.groups()
    if whole == "%%" or whole == "@@":
        return _always(whole[0])
    if field is not None:
        if field not in fields or not field:
            raise ValueError(f"{whole!r} is not a sequence; % is followed by {', '.join(fields)} or %")
        value = fields[field]
        if not (width or most):
            return value
        zeros = "0" in flags and "-" not in flags and field in filled
        return _fitted(value, int(width or 0), int(most) if most else None, "-" in flags, zeros)
    if moment is not None:
        if not (moment.isascii() and moment.isalpha()) or moment in "EO":
            raise ValueError(f"{whole!r} is not a sequence; @ is followed by a letter of strftime, N or @")
        return _moment(moment)
    if escape is not None:
        if escape not in _ESCAPES or not escape:
            raise ValueError(f"{whole!r} is not a sequence; \\ is followed by {', '.join(_ESCAPES)}")
        return _always(_ESCAPES[escape])
    return _always(whole)


def _always(text: str) -> Part:
    return lambda r: text


def _moment(letter: str) -> Part:
    if letter == "N":
        return lambda r: f"{r.time_ns % 10**9:09}"
    return lambda r: r.local("%" + letter)


def _fitted(value: Part, width: int, most: int | None, left: bool, zeros: bool) -> Part:
    def fit(r: Received) -> "str | bytes":
        text = value(r)[:most]
        if isinstance(text, bytes):
            return text.ljust(width) if left else text.rjust(width)
        return text.ljust(width) if left else text.rjust(width, "0" if zeros else " ")

    return fit


def render(parts: list[Part], received: Any) -> bytes:
    """Format a message, without a line end."""
    texts = (part(received) for part in parts)
    return b"".join(s if isinstance(s, bytes) else s.encode("utf-8", "surrogateescape") for s in texts)
