"""Configuration of a gateway, from a TOML file and the command line."""

import hashlib
import os
import re
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from headwater_host import settings
from headwater_host.capture.block_log import SEGMENT_AGE_NS, SEGMENT_BYTES
from headwater_host.capture.format import MAX_FRAME
from headwater_host.capture.retention import Limits
from headwater_host.capture.sync_budget import CREDIT, SyncBudget, default_rate
from headwater_host.client.mqtt.options import Version
from headwater_host.client.route import DEFAULT_PORTS, Route, Tls
from headwater_host.errors import ArgumentError
from headwater_host.gateway import mq_config
from headwater_host.gateway.mq_config import MqConfig
from headwater_host.hub import config as hub_config
from headwater_host.hub.config import HubConfig
from headwater_host.settings import ConfigError, Key, SettingsFile
from headwater_host.topics import filter_bytes

DEFAULT_BAUD = 115200
DEFAULT_QOS = 1
MQTT, FMQ = "mqtt", "fmq"
#: Maximum length of an FMQ body, so that its frame fits a record.
LARGEST_BODY = MAX_FRAME - (64 << 10)
#: Bounds of ``syncs_per_second`` and ``sync_credit``.
SYNC_RATES = (0, 1_000_000)
SYNC_CREDITS = (1, 1_000_000)
# The lowest speed. A smaller number after the last colon of a port is part of a device path.
_SLOWEST = 300


@dataclass(frozen=True)
class SerialConfig:
    """A serial port with a board."""

    port: str
    baud: int = DEFAULT_BAUD
    #: The protocol of the board.
    protocol: str = MQTT


@dataclass(frozen=True)
class BrokerConfig:
    """An MQTT broker and the topics to record, each with its QoS. ``port`` None: the default port."""

    host: str
    port: int | None = None
    topics: tuple[tuple[str, int], ...] = ()
    client_id: str = ""
    username: str | None = field(default=None, repr=False)
    password: bytes | None = field(default=None, repr=False)
    keepalive: int = 60
    timeout: float = 10.0
    tls: Tls | None = None
    websocket: str | None = None
    #: The MQTT version; "": 5.0, or 3.1.1 if the broker refuses it.
    protocol: Version | Literal[""] = ""
    #: Maximum of messages in flight with MQTT 5.0.
    receive_maximum: int = 4096

    @property
    def route(self) -> Route:
        """The route to the server. Raises ArgumentError."""
        return Route(self.host, self.port, self.tls, self.websocket)


@dataclass(frozen=True)
class FmqConfig:
    """A remote FMQ hub and the topics to consume for ``group``. ``port`` None: the default port."""

    host: str
    port: int | None = None
    topics: tuple[str, ...] = ()
    group: str = ""
    client_id: str = ""
    username: str | None = field(default=None, repr=False)
    password: bytes | None = field(default=None, repr=False)
    keepalive: int = 60
    timeout: float = 10.0
    window: int = 1000
    tls: Tls | None = None

    @property
    def route(self) -> Route:
        """The route to the server. Raises ArgumentError."""
        return Route(self.host, self.port or hub_config.DEFAULT_PORTS[self.tls is not None], self.tls)


@dataclass(frozen=True)
class GatewayConfig:
    """The whole configuration."""

    capture: Path
    serials: tuple[SerialConfig, ...] = ()
    brokers: tuple[BrokerConfig, ...] = ()
    stats: Path | None = None
    stats_seconds: float = 60.0
    #: The built-in hub, and remote hubs.
    hub: HubConfig | None = None
    hubs: tuple[FmqConfig, ...] = ()
    #: The messages for IBM MQ.
    mq: MqConfig | None = None
    #: True if the group of its directory may read each file with messages.
    group_readable: bool = False
    #: Maximum rate of disk syncs: 0 for no limit, None for the default of the device; and maximum burst.
    syncs_per_second: int | None = None
    sync_credit: int = CREDIT
    retention: Limits = field(default_factory=Limits)
    #: Size and age at which a segment of the log is sealed, in bytes and seconds.
    segment_bytes: int = SEGMENT_BYTES
    segment_age: float = SEGMENT_AGE_NS / 1e9

    def budget(self) -> SyncBudget:
        """Return the budget of disk syncs for the log."""
        given = self.syncs_per_second
        return SyncBudget(default_rate(self.capture) if given is None else given, self.sync_credit)


def parse_topic(text: str) -> tuple[str, int]:
    """Parse ``FILTER[:QOS]``; the default QoS is 1. Raises ConfigError."""
    name, colon, qos = text.rpartition(":")
    if not colon or qos not in ("0", "1", "2"):
        name, qos = text, str(DEFAULT_QOS)
    try:
        filter_bytes(name)
    except ArgumentError as error:
        raise ConfigError(str(error)) from error
    return name, int(qos)


def parse_serial(text: str, protocol: str = MQTT) -> SerialConfig:
    """Parse ``PORT[:BAUD]``. Raises ConfigError."""
    port, colon, baud = text.rpartition(":")
    # More than 20 digits are no speed, and int() refuses thousands of digits.
    if colon and baud.isascii() and baud.isdigit() and (speed := int(baud[:20])) >= _SLOWEST:
        return _serial(port, speed, protocol)
    return _serial(text, DEFAULT_BAUD, protocol)


def _serial(port: str, baud: int, protocol: str) -> SerialConfig:
    if not port or "\0" in port:
        raise ConfigError(f"{port!r} is not a serial port")
    if not _SLOWEST <= baud <= 20_000_000:
        raise ConfigError(f"{baud} is not a serial port's speed")
    return SerialConfig(port, baud, protocol)


def parse_broker(text: str) -> tuple[str, int]:
    """Parse ``HOST[:PORT]``; an IPv6 address needs brackets. Raises ConfigError."""
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]\s]+))(?::([0-9]{1,5}))?", text)
    port = int(match[3]) if match and match[3] else DEFAULT_PORTS[False, False]
    if not match or not 1 <= port <= 65535:
        raise ConfigError(f"{text!r} is not HOST[:PORT]")
    return match[1] or match[2], port


def default_client_id(capture: Path) -> str:
    """Return a client identifier that depends only on host name and log."""
    seed = f"{socket.gethostname()}:{capture.absolute()}"
    return "headwater-" + hashlib.sha256(os.fsencode(seed)).hexdigest()[:12]


def check(config: GatewayConfig) -> GatewayConfig:
    """Check the whole configuration and fill in derived values. Raises ConfigError."""
    if not config.serials and not config.brokers and not config.hubs and config.hub is None:
        raise ConfigError("nothing to record: name a serial port, a broker or a hub")
    if config.stats is not None and not config.stats.name:
        raise ConfigError(f"the statistics file {config.stats} has no name")
    ports = [os.path.realpath(serial.port) for serial in config.serials]
    for port in ports:
        if ports.count(port) > 1:
            raise ConfigError(f"the serial port {port} is named twice")
    for serial in config.serials:
        if serial.protocol == FMQ and config.hub is None:
            raise ConfigError(f"the board on {serial.port} speaks FMQ, which needs a hub")
    brokers = []
    for number, broker in enumerate(config.brokers):
        if not broker.topics:
            raise ConfigError(f"the broker {broker.host} needs a topic")
        names = [name for name, _ in broker.topics]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"the topic {name!r} is named twice")
        made = default_client_id(config.capture) + (f"-{number}" if number else "")
        brokers.append(replace(broker, client_id=broker.client_id or made))
    made = default_client_id(config.capture) + "-fmq"
    hubs = [
        replace(
            hub, client_id=hub.client_id or (f"{made}-{number}" if number else made), group=hub.group or made
        )
        for number, hub in enumerate(config.hubs)
    ]
    return replace(config, brokers=tuple(brokers), hubs=tuple(hubs))


# ---- the file --------------------------------------------------------------------------------------------------------


def _topics(value: object) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, list) or not value:
        raise ValueError
    return tuple(parse_topic(settings.text(item)) for item in value)


_TOP = {
    "capture": Key(
        "a directory",
        settings.path,
        meaning="Directory of the capture log; required unless `--capture` is given",
    ),
    "stats": Key(*settings.FILE, meaning="Statistics file (JSON), rewritten every second"),
    "stats_seconds": Key(*settings.SECONDS, meaning="Interval of statistics in the log; default: 60"),
    "syncs_per_second": Key(
        "a whole number, 0 for no limit",
        settings.whole(*SYNC_RATES),
        meaning="Maximum rate of disk syncs; default: 20 on SD cards and eMMC, otherwise 0",
    ),
    "sync_credit": Key(
        "a whole number, at least 1",
        settings.whole(*SYNC_CREDITS),
        meaning="Maximum burst of disk syncs; default: 2000",
    ),
    "group_readable": Key(
        *settings.TRUTH, meaning="Let the directory's group read recorded files; default: false"
    ),
}


#: The table [capture], which may replace the text `capture`.
_CAPTURE = {
    "directory": Key(
        "a directory", settings.path, meaning="Directory of the capture log; the same as `capture = DIR`"
    ),
    "segment_bytes": Key(*settings.SIZE, meaning="Size at which a segment is sealed; default: 64 MiB"),
    "segment_age": Key(*settings.DURATION, meaning="Age at which a segment is sealed; default: 1 h"),
    "max_age": Key(*settings.DURATION, meaning="Age at which a sealed segment is removed; default: never"),
    "max_bytes": Key(
        *settings.SIZE, meaning="Size of the log above which the oldest segments are removed; default: none"
    ),
    "unread": Key(
        *settings.one_of("keep", "remove"),
        meaning="Whether segments that a reader has not taken are removed by these limits; default: keep",
    ),
}
_SERIAL = {
    "port": Key("a serial port", settings.text, required=True, meaning="Serial port"),
    "protocol": Key(*settings.one_of(MQTT, FMQ), meaning="Protocol of the board; default: mqtt"),
    "baud": Key(
        f"a whole number, at least {_SLOWEST}",
        settings.whole(_SLOWEST, 20_000_000),
        meaning="Speed; default: 115200",
    ),
}
#: The keys of every server.
_SERVER = {
    "host": Key("a host name or address", settings.text, required=True, meaning="Server"),
    "port": Key(*settings.between(1, 65535), meaning="Port; default: by protocol and TLS"),
    "client_id": Key(*settings.TEXT, meaning="Client identifier; default: fixed for host name and log"),
    "username": Key(*settings.TEXT, secret=True, meaning="User name"),
    "password_file": Key(
        "a file, the first line of which is the password",
        lambda v: settings.read_password(settings.path(v)),
        secret=True,
        meaning="File whose first line is the password",
    ),
    "keepalive": Key(
        "a whole number of seconds from 0 to 65535",
        settings.whole(0, 65535),
        meaning="Keep-alive interval in seconds; default: 60",
    ),
    "timeout": Key(*settings.SECONDS, meaning="Timeout for connecting and for answers; default: 10"),
    "tls": Key(*settings.TRUTH, meaning="Use TLS"),
    "cafile": Key(
        "a file of CA certificates",
        settings.path,
        meaning="CA certificates; enables TLS; default: those of the operating system",
    ),
    "cert": Key("a file with a certificate", settings.path, meaning="Client certificate; enables TLS"),
    "key": Key("a file with a private key", settings.path, meaning="Private key of `cert`"),
    "server_name": Key(
        "a host name or address", settings.text, meaning="Name in the server's certificate; default: `host`"
    ),
    "insecure": Key(*settings.TRUTH, meaning="Do not check the name in the certificate"),
}
_BROKER = _SERVER | {
    "topics": Key(
        'a list of topic filters, each optionally with ":0", ":1" or ":2"',
        _topics,
        required=True,
        meaning="Topics to record; default QoS: 1",
    ),
    "websocket": Key(
        'a path, such as "/mqtt"', settings.text, meaning="Use MQTT over WebSocket at this path"
    ),
    "protocol": Key(
        *settings.one_of("5.0", "3.1.1"),
        meaning="MQTT version; default: 5.0, or 3.1.1 if the broker refuses it",
    ),
    "receive_maximum": Key(
        *settings.between(1, 65535), meaning="Maximum of messages in flight with MQTT 5.0; default: 4096"
    ),
}
_FMQ = _SERVER | {
    "topics": Key(*settings.FILTERS, required=True, meaning="Topics to consume"),
    "group": Key(*settings.TEXT, meaning="Consumer group; default: fixed for host name and log"),
    "window": Key(*settings.between(1, 1000), meaning="Maximum of unacknowledged messages; default: 1000"),
}
_HUB = {
    "config": Key(
        "a file", lambda v: hub_config.load(settings.path(v)), meaning="Configuration file of the hub"
    ),
    "storage": Key(*settings.FILE, meaning="Storage file; default: that of the hub"),
    "port": Key(*settings.between(1, 65535), meaning="Port on 127.0.0.1; default: 7760"),
}
_TABLES = {"serial": _SERIAL, "broker": _BROKER, "fmq": _FMQ}
#: The keys of the file, by table, for the documentation.
KEYS = {
    "": _TOP,
    "capture": _CAPTURE,
    "serial": _SERIAL,
    "broker": _BROKER,
    "hub": _HUB,
    "fmq": {name: key for name, key in _FMQ.items() if name not in _SERVER},
}
#: Keys that enable TLS, with their fields of ``Tls``.
_TLS = {"cafile": "ca", "cert": "cert", "key": "key", "server_name": "server_name"}


Server = TypeVar("Server", BrokerConfig, FmqConfig)


def _server(file: SettingsFile, table: str, index: int, values: dict[str, Any], kind: type[Server]) -> Server:
    wanted = values.pop("tls", None)
    insecure = values.pop("insecure", False)
    password = values.pop("password_file", None)
    given = [key for key in _TLS if key in values]
    fields = {_TLS[key]: values.pop(key) for key in given}
    if wanted is False and given:
        raise file.fail(f"{given[0]!r} in [[{table}]] needs TLS, and 'tls' is false", table, index, given[0])
    tls = Tls(**fields, check_hostname=not insecure) if wanted or given else None
    if insecure and tls is None:
        raise file.fail(f"'insecure' in [[{table}]] needs 'tls'", table, index, "insecure")
    server = kind(**values, password=password, tls=tls)
    try:
        # Reads the certificate files, so that errors are found now.
        port = server.route.port
    except ArgumentError as error:
        raise file.fail(str(error), table, index, next(iter(given), "websocket")) from None
    return replace(server, port=port)


def _hub(file: SettingsFile, given: dict[str, Any]) -> HubConfig | None:
    if "hub" not in file.values and "storage" not in given:
        return None
    values = file.table("hub", _HUB) | given
    config: HubConfig = values.get("config", HubConfig())
    config = replace(config, storage=values.get("storage", config.storage))
    if config.clients.frame > LARGEST_BODY:
        file.mistake(
            f"'frame' in [clients] of the hub is at most {LARGEST_BODY} in a gateway: records are limited",
            "hub",
            key="config",
        )
    try:
        return hub_config.on_port(config, values["port"]) if "port" in values else config
    except ConfigError as error:
        file.mistake(str(error), "hub", key="port")
    return config


def load(path: Path, capture: Path | None = None, hub: dict[str, Any] | None = None) -> GatewayConfig:
    """Read a file. ``capture``, and ``storage`` and ``port`` in ``hub``, override it. Raises ConfigError.

    Call ``check`` on the result.
    """
    file = SettingsFile.read(path)
    # `capture` is a directory, or a table.
    is_table = isinstance(file.values.get("capture"), dict)
    log = file.table("capture", _CAPTURE) if is_table else {}
    top = file.top(_TOP, [*_TABLES, "hub", mq_config.MQ, *(["capture"] if is_table else [])])
    serials, brokers, hubs = (file.tables(name, keys) for name, keys in _TABLES.items())
    found = _hub(file, hub or {})
    mq = mq_config.read(file)
    for index, serial in enumerate(serials):
        if serial.get("protocol") == FMQ and found is None:
            file.mistake("a board that speaks FMQ needs [hub]", "serial", index, "protocol")
    file.check()
    where = capture or log.pop("directory", None) or top.get("capture")
    log.pop("directory", None)
    if where is None:
        raise file.fail("'capture' is missing: a directory")
    retention = Limits(**{key: log.pop(key) for key in ("max_age", "max_bytes", "unread") if key in log})
    group_readable: bool = top.get("group_readable", False)
    if group_readable:
        found = replace(found, group_readable=True) if found else None
    return GatewayConfig(
        where,
        tuple(SerialConfig(**serial) for serial in serials),
        tuple(_server(file, "broker", *one, BrokerConfig) for one in enumerate(brokers)),
        top.get("stats"),
        top.get("stats_seconds", 60.0),
        found,
        tuple(_server(file, "fmq", *one, FmqConfig) for one in enumerate(hubs)),
        mq,
        group_readable,
        top.get("syncs_per_second"),
        top.get("sync_credit", CREDIT),
        retention,
        **log,
    )
