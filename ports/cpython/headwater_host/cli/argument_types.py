"""Argument types for argparse: addresses, topics, versions, intervals."""

import argparse
import re
from typing import NamedTuple
from urllib.parse import unquote

from headwater_host.cli.options import whole
from headwater_host.client.route import DEFAULT_PATH
from headwater_host.errors import ArgumentError
from headwater_host.topics import Wildcard, topic_bytes

PASSWORD_VARIABLE = "HEADWATER_PASSWORD"
_VERSIONS = {
    **dict.fromkeys(("mqttv31", "31", "3.1"), "3.1"),
    **dict.fromkeys(("mqttv311", "311", "3.1.1"), "3.1.1"),
    **dict.fromkeys(("mqttv5", "5", "5.0"), "5.0"),
}
#: A session expiry interval of 2^32 - 1 s: the session never expires.
FOR_EVER = 0xFFFFFFFF


def version(text: str) -> str:
    """Parse a version of MQTT. Return it as ``Client`` names it."""
    if text not in _VERSIONS:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(_VERSIONS)}")
    return _VERSIONS[text]


def expiry(text: str) -> int:
    """Parse a session expiry interval in seconds."""
    if text in ("-1", "\N{INFINITY}"):
        return FOR_EVER
    return whole(0, FOR_EVER)(text)


def topic(text: str) -> str:
    """Parse a topic name."""
    try:
        topic_bytes(text)
    except ArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def topic_filter(text: str) -> str:
    """Parse a topic filter."""
    try:
        return Wildcard(text)
    except ArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def servers(text: str) -> list[tuple[str, int | None]]:
    """Parse a comma-separated list of HOST or HOST:PORT."""
    return [_server(part.strip()) for part in text.split(",")]


def _server(text: str) -> tuple[str, int | None]:
    if "://" in text:
        raise argparse.ArgumentTypeError("a host name is needed, not a URL; for a URL use -L")
    # An IPv6 address without a port need not have brackets.
    found = re.fullmatch(
        r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::([0-9]{1,5}))?|([^:\[\]]*:[^:\[\]]*:[^\[\]]*)", text
    )
    port = int(found[3]) if found and found[3] else None
    if not found or (port is not None and not 1 <= port <= 65535):
        # The error omits the value, which may contain a password.
        raise argparse.ArgumentTypeError(
            "expected HOST or HOST:PORT, separated by commas; an IPv6 address with a port needs brackets"
        )
    return found[1] or found[2] or found[4], port


class Url(NamedTuple):
    """The parts of a URL. Its repr contains no secrets: errors may print it."""

    protocol: str
    secure: bool
    websocket: str | None
    host: str
    port: int | None
    username: str | None
    password: str | None
    topic: str | None

    def __repr__(self) -> str:
        return f"Url({self.host!r})"


def url(text: str) -> Url:
    """Parse a URL. Its path is the topic, except for WebSocket."""
    found = re.fullmatch(
        r"(mqtts?|fmqs?|wss?)://(?:([^/@]*)@)?(?:\[([^\]@]+)\]|([^:/@\[\]\s]+))(?::([0-9]{1,5}))?(?:/(.*))?",
        text,
        re.S,
    )
    port = int(found[5]) if found and found[5] else None
    if not found or (port is not None and not 1 <= port <= 65535):
        # The error omits the value, which may contain a password.
        raise argparse.ArgumentTypeError(
            "expected SCHEME://[USER[:PASSWORD]@]HOST[:PORT][/TOPIC] with mqtt, mqtts, fmq or fmqs, "
            "or ws[s]://HOST[:PORT]/PATH"
        )
    scheme, path = found[1], found[6] or None
    name, colon, secret = (found[2] or "").partition(":")
    web = scheme.startswith("ws")
    return Url(
        "fmq" if scheme.startswith("fmq") else "mqtt",
        scheme.endswith("s") and scheme != "ws",
        (f"/{path}" if path else DEFAULT_PATH) if web else None,
        found[3] or found[4],
        port,
        unquote(name) or None,
        unquote(secret) if colon else None,
        None if web or path is None else topic_filter(path),
    )
