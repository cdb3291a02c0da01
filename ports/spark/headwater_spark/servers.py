"""Options of the formats that connect to a hub or a broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwater_host import settings
from headwater_host.capture.filesystem import is_remote, local_path
from headwater_host.client.fmq.options import split_url
from headwater_host.client.mqtt import Version
from headwater_host.client.route import Route, Tls
from headwater_host.errors import ArgumentError
from headwater_host.hub.config import DEFAULT_PORTS
from headwater_host.settings import ConfigError
from headwater_spark.options import Option, OptionError, one_of, read_options, truth
from headwater_spark.sizes import parse_size


def text(value: str) -> str:
    """Parse a text that is not empty."""
    if not value or "\0" in value:
        raise ValueError("empty or contains U+0000")
    return value


def directory(value: str) -> Path:
    """Parse a directory of this machine."""
    if is_remote(text(value)):
        raise ValueError("not a local directory")
    return local_path(value)


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from `least` to `most`."""

    def parse(value: str) -> int:
        try:
            return settings.whole(least, most)(int(value) if len(value) < 20 else None)
        except ValueError:
            raise ValueError(f"not a whole number from {least} to {most}") from None

    return parse


def seconds(value: str) -> float:
    """Parse a number of seconds above 0."""
    try:
        return settings.seconds(float(value))
    except ValueError:
        raise ValueError("not a number of seconds above 0") from None


def duration(value: str) -> float:
    """Parse a duration such as "30 d" or "12 h"."""
    try:
        return settings.duration(value)
    except ValueError:
        raise ValueError('not a duration such as "30 d", "12 h", "90 min" or "45 s"') from None


def size(value: str) -> int:
    """Parse a number of bytes from 1 on."""
    if not (found := parse_size(value)):
        raise ValueError("not at least 1")
    return found


def names(value: str) -> tuple[str, ...]:
    """Parse a list: JSON, or texts between commas."""
    if value.lstrip().startswith("["):
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError("not a list in JSON") from None
    else:
        found = [one.strip() for one in value.split(",")]
    if not found or not all(isinstance(one, str) and one and "\0" not in one for one in found):
        raise ValueError("not a list of texts")
    for one in found:
        if found.count(one) > 1:
            raise ValueError(f"a list with {one!r} twice")
    return tuple(found)


def filters(value: str) -> tuple[str, ...]:
    """Parse a list of topic filters."""
    try:
        return settings.filters(list(names(value)))
    except ConfigError as error:
        raise ValueError(f"wrong: {error}") from None


_CREDENTIALS = (
    Option("username", text, None, "user name"),
    Option("password", text, None, "password"),
    Option("passwordFile", text, None, "file on the driver whose first line is the password"),
    Option("tls", truth, None, "use TLS; implied by the options below"),
    Option("cafile", text, None, "CA certificates; default: those of the operating system"),
    Option("certfile", text, None, "client certificate"),
    Option("keyfile", text, None, "private key of `certfile`"),
    Option("serverName", text, None, "name in the server's certificate; default: `host`"),
    Option("insecure", truth, False, "do not check the name in the certificate"),
)
#: The options of a hub.
HUB = (
    Option("host", text, None, "hub: name, address or fmq://[USER[:PASSWORD]@]HOST[:PORT], with TLS fmqs://"),
    Option("port", whole(1, 65535), None, "port; default: 7760, with TLS 7761"),
    *_CREDENTIALS,
)
#: The options of an MQTT broker.
BROKER = (
    Option("host", text, None, "broker: name or address"),
    Option("port", whole(1, 65535), None, "port; default: 1883, with TLS 8883, with WebSocket 80 or 443"),
    *_CREDENTIALS,
    Option("websocket", text, None, "path, such as /mqtt, for MQTT over WebSocket"),
    Option("protocol", one_of("5.0", "3.1.1"), "5.0", "MQTT version, 5.0 or 3.1.1"),
)
#: The options of a stream that consumes topics of a hub, besides those of `headwater`.
CONSUMER = (
    *HUB,
    Option(
        *("capture", directory, None),
        "directory of the capture log on the driver; tasks see it at the same path",
    ),
    Option("topics", filters, None, "topic filters to consume, as a JSON list or between commas"),
    Option("group", text, None, "consumer group; queries with one group share its messages"),
    Option("clientId", text, None, "client identifier; default: fixed for host name and log"),
    Option("window", whole(1, 1000), 1000, "maximum of unacknowledged messages"),
    Option("keepalive", whole(0, 65535), 60, "keep-alive interval in seconds"),
    Option("timeout", seconds, 10.0, "timeout in seconds for connecting and for answers"),
    Option("maxAge", duration, None, "remove segments that the query has read at this age, such as 30 d"),
    Option("maxBytes", size, None, "remove the oldest segments that the query has read above this size"),
    Option("lockTimeout", seconds, 60.0, "how many seconds to wait while another process writes the log"),
)
#: The options of a query that publishes, besides those of its server.
PUBLISHER = (
    Option(
        "key", names, None, "columns that identify a row in its micro-batch, as a JSON list or between commas"
    ),
    Option("timeout", seconds, 60.0, "how many seconds a message may be unacknowledged, with reconnects"),
    Option(
        "query", text, None, "df.write: name of the run, so that a second one adds nothing; default: random"
    ),
)
# What Spark adds to the options of a query.
_SPARKS = ("checkpointlocation", "queryname", "outputmode")
# Errors do not show the values of these, which may contain a password.
_SECRET = ("password", "host")


@dataclass(frozen=True)
class Server:
    """A hub or broker. `port` has its default already."""

    host: str
    port: int
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    tls: Tls | None = None
    websocket: str | None = None
    protocol: Version = "5.0"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def server_options(form: str, given: Mapping[str, str], known: Sequence[Option]) -> dict[str, Any]:
    """Parse the options of a format that connects, by name, with defaults. Raises OptionError."""
    chosen = {name: value for name, value in given.items() if name.lower() not in _SPARKS}
    return read_options(form, chosen, known, secret=_SECRET)


def server_of(values: dict[str, Any]) -> Server:
    """Take the options of a server out of `values`. Raises OptionError if they are missing or contradict each other.

    Files are read here, so that a wrong one is reported before the query begins.
    """
    host: str | None = values.pop("host")
    if host is None:
        raise OptionError("option host is missing: the name or address of the server")
    port, username, password = (values.pop(name) for name in ("port", "username", "password"))
    file = values.pop("passwordFile")
    if password is not None and file is not None:
        raise OptionError("options password and passwordFile: give one of them")
    if file is not None:
        try:
            password = settings.read_password(Path(file))
        except ConfigError as error:
            raise OptionError(f"option passwordFile: {error}") from None
    wanted = values.pop("tls")
    secure = False
    is_mqtt = "protocol" in values
    if "://" in host:
        if is_mqtt:
            raise OptionError("option host: the name or address of the broker, not a URL")
        try:
            secure, host, url_port, url_user, url_password = split_url(host)
        except ArgumentError as error:
            raise OptionError(f"option host: {error}") from None
        port = url_port if port is None else port
        username = url_user if username is None else username
        password = url_password if password is None else password
    if password is not None and username is None:
        raise OptionError("option username is missing: there is a password")
    tls = _tls(values, wanted or secure)
    if tls is not None and wanted is False:
        raise OptionError("option tls is false, but other options need TLS")
    websocket = values.pop("websocket", None)
    if isinstance(password, str):
        password = password.encode()
    try:
        route = Route(host, port if is_mqtt else port or DEFAULT_PORTS[tls is not None], tls, websocket)
    except ArgumentError as error:
        raise OptionError(f"options of the server: {error}") from None
    return Server(host, route.port, username, password, tls, websocket, values.pop("protocol", "5.0"))


def _tls(values: dict[str, Any], wanted: bool | None) -> Tls | None:
    fields = {
        "ca": values.pop("cafile"),
        "cert": values.pop("certfile"),
        "key": values.pop("keyfile"),
        "server_name": values.pop("serverName"),
    }
    insecure = values.pop("insecure")
    if not wanted and not insecure and not any(fields.values()):
        return None
    return Tls(**fields, check_hostname=not insecure)
