"""The hub's configuration file (docs/hub.md). Every key is checked, and all mistakes are reported at once.

Without a file the hub listens on this machine only, and its storage is in the working directory.
"""

import re
import ssl
from collections.abc import Callable
from dataclasses import Field, asdict, dataclass, field, fields, replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headwater_host import settings
from headwater_host.hub import access, users
from headwater_host.hub.access import ANY, Network, Rule
from headwater_host.hub.errors import RefusedError
from headwater_host.hub.storage import POSTGRES, Limits
from headwater_host.hub.topics import check_filter
from headwater_host.hub.users import Hash
from headwater_host.settings import ConfigError, Key, SettingsFile

#: The default port: without TLS, and with it.
DEFAULT_PORTS = {False: 7760, True: 7761}
DEFAULT_STORAGE = Path("headwater-hub.db")


@dataclass(frozen=True)
class Listener:
    """An address that the hub listens on; with a certificate, over TLS. ``client_ca``: CA certificates for clients."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORTS[False]
    cert: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach it."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context, None without TLS. Raises OSError when a file cannot be used."""
        if self.cert is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.client_ca)
        context.load_cert_chain(self.cert, self.key, lambda: b"")
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@dataclass(frozen=True, kw_only=True)
class HubTls:
    """TLS of a hub's connections to other hubs. ``cert``, ``key``: this hub's, for hubs that demand a certificate."""

    #: CA certificates; None: without TLS.
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context, None without TLS. Raises OSError when a file cannot be used."""
        if self.ca is None:
            return None
        context = ssl.create_default_context(cafile=self.ca)
        if self.cert is not None:
            context.load_cert_chain(self.cert, self.key, lambda: b"")
        return context


@dataclass(frozen=True)
class ReplicationConfig(HubTls):
    """A hub with slaves, or one of them. docs/hub-cluster.md explains each."""

    #: This hub's name among ``hubs``.
    name: str
    #: The address of each hub by name: HOST:PORT.
    hubs: dict[str, str]
    #: The name of the hub that leads at first; a promotion changes it.
    leader: str
    #: How many slaves confirm a transaction; None: a majority of them.
    sync: int | None = None
    user: str = ""
    password: str = ""

    @property
    def slaves(self) -> tuple[str, ...]:
        """The names of this hub's slaves, if it leads."""
        return tuple(name for name in self.hubs if name != self.name)

    @property
    def need(self) -> int:
        """The number of slaves that confirm a transaction."""
        if self.sync is not None:
            return self.sync
        return len(self.slaves) // 2 + 1 if self.slaves else 0


@dataclass(frozen=True)
class ClientLimits:
    """Limits of clients; times in seconds. docs/hub.md explains each."""

    connections: int = 10_000
    connections_per_address: int = 1_000
    #: From the connection to AUTH.
    login: float = 10.0
    #: Of a frame's body.
    frame: int = 16 << 20
    #: What a client has not read, before it is sent no more; after ``stalled`` it is disconnected.
    unread: int = 1 << 20
    #: What is held for all connections.
    memory: int = 256 << 20
    stalled: float = 60.0
    subscriptions: int = 1_000
    #: Memory of the subscriptions of all clients (``clients.cost``).
    all_subscriptions: int = 256 << 20
    sessions: int = 100_000
    #: How long a session is kept without a connection.
    session: float = 7 * 86400.0
    #: Messages that a consumer may have unacknowledged, unless it asks for fewer.
    window: int = 1_000
    #: Unacknowledged messages are redelivered after this.
    redelivery: float = 30.0
    #: How long CONSUME with ONCE waits for a message, and a caller for its responder.
    once: float = 30.0
    rpc: float = 30.0
    #: Calls in progress: of one caller, at one responder, and in total.
    calls: int = 1_000
    all_calls: int = 100_000


@dataclass(frozen=True)
class ClusterConfig(HubTls):
    """A hub among several on one PostgreSQL database. docs/hub-cluster.md explains each."""

    #: The address that clients and other hubs reach this hub at: HOST:PORT, or [HOST]:PORT.
    advertise: str
    #: Seconds that a lease lasts without a renewal.
    lease: float = 5.0
    #: "required": this hub leads only where PostgreSQL waits for a synchronous standby. "none": it does not look.
    standby: str = "required"


@dataclass(frozen=True)
class HubConfig:
    """The whole configuration."""

    #: A file, or a URL of PostgreSQL.
    storage: Path | str = DEFAULT_STORAGE
    auto_register: bool = True
    listeners: tuple[Listener, ...] = (Listener(),)
    metrics: tuple[str, int] | None = None
    limits: Limits = field(default_factory=Limits)
    clients: ClientLimits = field(default_factory=ClientLimits)
    users: dict[str, Hash] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    #: True if the group of the storage's directory may read it.
    group_readable: bool = False
    cluster: ClusterConfig | None = None
    replication: ReplicationConfig | None = None

    @property
    def storage_name(self) -> str:
        """The place of the storage, without a user, a password and parameters."""
        if isinstance(self.storage, Path):
            return str(self.storage)
        url = urlsplit(self.storage)
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"

    @property
    def is_open(self) -> bool:
        """True if anonymous clients are allowed: only this machine can reach the hub."""
        return all(listener.is_loopback for listener in self.listeners)


def on_port(config: HubConfig, port: int) -> HubConfig:
    """Return the configuration with another port. Raises ConfigError if it has listeners."""
    if config.listeners != HubConfig.listeners:
        raise ConfigError("a port cannot be given: the hub's file has listeners")
    return replace(config, listeners=(Listener(port=port),))


def with_options(config: HubConfig, storage: Path | str | None, cluster: dict[str, Any]) -> HubConfig:
    """Return the configuration with another storage, and with other settings of [cluster]. Raises ConfigError."""
    if storage is not None:
        config = replace(config, storage=storage)
    if cluster:
        known = asdict(config.cluster) if config.cluster is not None else {}
        if "advertise" not in known | cluster:
            raise ConfigError(
                f"--{next(iter(cluster))} needs --advertise, or [cluster] in the configuration file"
            )
        config = replace(config, cluster=ClusterConfig(**known | cluster))
    if config.cluster is not None and not isinstance(config.storage, str):
        raise ConfigError(
            f"a cluster needs storage in PostgreSQL, not in the file {config.storage}: --storage postgresql://..."
        )
    why = _unfit(config.replication, config.storage, config.cluster is not None)
    if why:
        raise ConfigError(why)
    return config


def _unfit(replication: ReplicationConfig | None, storage: object, in_cluster: bool) -> str:
    """Return why [replication] does not fit to the storage, or ""."""
    if replication is None or not isinstance(storage, str):
        return ""
    if not in_cluster:
        return "[replication] with storage in PostgreSQL needs [cluster]"
    if replication.need:
        return "the slaves of a cluster confirm nothing: set 'sync' in [replication] to 0"
    return ""


# ---- values -------------------------------------------------------------------------------------------------


def _seconds_or_ever(value: object) -> float:
    return 0.0 if value == 0 and not isinstance(value, bool) else settings.seconds(value)


def _list(of: Callable[[Any], Any]) -> Callable[[object], tuple[Any, ...]]:
    def convert(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list) or not value:
            raise ValueError
        return tuple(of(item) for item in value)

    return convert


def _filter(value: object) -> str:
    try:
        return check_filter(settings.text(value))
    except RefusedError as error:
        raise ConfigError(str(error)) from error


def _network(value: object) -> tuple[Network, ...]:
    if value == "any":
        return ANY
    try:
        return (ip_network(settings.text(value)),)
    except ValueError as error:
        raise ConfigError(f"{value!r} is not a network: {error}") from error


def _networks(value: object) -> tuple[Network, ...]:
    return tuple(network for networks in _list(_network)(value) for network in networks)


def _user(value: object) -> str | None:
    return None if value == "" else settings.text(value)


def _checked(how: Callable[[str], Any]) -> Callable[[object], Any]:
    def convert(value: object) -> Any:
        given = settings.text(value)
        try:
            return how(given)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    return convert


_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^:/@\[\]\s]+):([0-9]{1,5})")


def hub_address(value: str) -> str:
    """Check the address of a hub. Raises ValueError."""
    found = _ADDRESS.fullmatch(value)
    if not found or not 1 <= int(found[1]) <= 65535:
        raise ValueError(f"{value!r} is not HOST:PORT, nor [HOST]:PORT")
    return value


def hub_name(value: str) -> str:
    """Check the name of a hub. Raises ValueError."""
    if not value.isprintable() or " " in value or not 1 <= len(value) <= 64:
        raise ValueError(f"{value!r} is not printable text of 1 to 64 characters without spaces")
    return value


def _count_or_none(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError
    return value


def _lease(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 3600:
        raise ValueError
    return float(value)


# ---- the keys --------------------------------------------------------------------------------------------------------

TOP = {"auto_register": Key(*settings.TRUTH)}


def place(value: object) -> Path | str:
    """Convert the place of a storage: a file, or a URL of PostgreSQL."""
    text = settings.text(value)
    return text if text.startswith(POSTGRES) else settings.path(text)


STORAGE = {"path": Key("a file, or a URL of PostgreSQL", place), "group_readable": Key(*settings.TRUTH)}
#: Of connections to other hubs.
TLS = {
    "ca": Key("a file with CA certificates", settings.path),
    "cert": Key("a file with this hub's certificate", settings.path),
    "key": Key("a file with its key", settings.path),
}
METRICS = {"host": Key("an address", settings.text), "port": Key(*settings.between(1, 65535), required=True)}
CLUSTER = {
    "advertise": Key(
        "HOST:PORT, at which clients and other hubs reach this hub", _checked(hub_address), required=True
    ),
    "lease": Key("a number of seconds, 1 to 3600", _lease),
    "standby": Key(*settings.one_of("required", "none")),
    **TLS,
}
REPLICATION = {
    "name": Key("this hub's name among [[hub]]", settings.text, required=True),
    "leader": Key("the name of the hub that leads at first", settings.text, required=True),
    "sync": Key("a number of slaves", _count_or_none),
    "user": Key("text", settings.text),
    "password": Key("text", settings.text, secret=True),
    **TLS,
}
HUB = {
    "name": Key("a name without spaces", _checked(hub_name), required=True),
    "address": Key("HOST:PORT, at which hubs and clients reach it", _checked(hub_address), required=True),
}
#: The fields that are sizes in bytes. Of the others, floats are seconds and whole numbers are counts.
_SIZES = {
    *("topic_bytes", "bytes", "cache", "retained", "waiting"),
    *("frame", "unread", "memory", "all_subscriptions"),
}


def _kind(one: Field[Any]) -> settings.Kind:
    if one.name in _SIZES:
        return settings.SIZE
    return settings.SECONDS if isinstance(one.default, float) else settings.COUNT


def _keys(kind: type[Limits] | type[ClientLimits], **others: Key) -> dict[str, Key]:
    """Return the keys of a table whose values are the fields of ``kind``."""
    return {one.name: others.get(one.name) or Key(*_kind(one)) for one in fields(kind)}


LIMITS = _keys(
    Limits,
    queues=Key(*settings.between(1, 65536)),
    age=Key("a number of seconds, 0 for ever", _seconds_or_ever),
    full=Key(*settings.one_of("refuse", "drop")),
)
CLIENTS = _keys(ClientLimits)
LISTENER = {
    "host": Key("an address or a host name", settings.text),
    "port": Key(*settings.between(0, 65535)),
    "cert": Key("a file with the hub's certificate", settings.path),
    "key": Key("a file with its key", settings.path),
    "client_ca": Key("a file with CA certificates for clients", settings.path),
}
USER = {
    "name": Key("a user's name, text of 1 to 256 characters", _checked(users.check_name), required=True),
    "password": Key("a hash", _checked(Hash.parse), required=True, secret=True),
}
RULE = {
    "types": Key(f"a list of {', '.join(access.TYPES)}", _list(settings.one_of(*access.TYPES)[1])),
    "topics": Key("a list of topic filters", _list(_filter)),
    "users": Key('a list of users, "" for anonymous clients', _list(_user)),
    "deny": Key('a list of networks, such as "10.0.0.0/8" or "any"', _networks),
    "allow": Key('a list of networks, such as "10.0.0.0/8" or "any"', _networks),
}
#: Every table: [name], but the last four are [[name]].
TABLES = {
    "storage": STORAGE,
    "limits": LIMITS,
    "clients": CLIENTS,
    "metrics": METRICS,
    "cluster": CLUSTER,
    "replication": REPLICATION,
    "hub": HUB,
    "listener": LISTENER,
    "user": USER,
    "rule": RULE,
}


# ---- the file --------------------------------------------------------------------------------------------------------


def load(path: Path) -> HubConfig:
    """Load a file. Raises ConfigError with every mistake."""
    file = SettingsFile.read(path)
    top = file.top(TOP, TABLES)
    storage, limits, clients, metrics, cluster, replication = (
        file.table(name, TABLES[name])
        for name in ("storage", "limits", "clients", "metrics", "cluster", "replication")
    )
    listeners = _listeners(file, file.tables("listener", LISTENER))
    whole = ClientLimits(**clients)
    if whole.memory < max(whole.frame, whole.unread):
        text = "'memory' is for all connections and cannot be less than 'frame' or 'unread'"
        file.mistake(
            text, "clients", 0, next(name for name in ("memory", "frame", "unread") if name in clients)
        )
    if cluster and not str(storage.get("path", "")).startswith(POSTGRES):
        file.mistake(
            "[cluster] needs storage in PostgreSQL: 'path' in [storage] is a URL", "cluster", 0, "advertise"
        )
    _check_tls(file, "cluster", cluster)
    _check_tls(file, "replication", replication)
    known = _users(file, file.tables("user", USER))
    rules = _rules(file, file.tables("rule", RULE))
    _somebody_may(file, listeners, known, rules)
    sites = _replication(file, replication, file.tables("hub", HUB), storage.get("path"))
    file.check()
    return HubConfig(
        storage.get("path", DEFAULT_STORAGE),
        top.get("auto_register", True),
        listeners,
        (metrics.get("host", "127.0.0.1"), metrics["port"]) if metrics else None,
        Limits(**limits),
        whole,
        known,
        rules,
        storage.get("group_readable", False),
        ClusterConfig(**cluster) if "advertise" in cluster else None,
        sites,
    )


def _replication(
    file: SettingsFile, values: dict[str, Any], hubs: list[dict[str, Any]], storage: object
) -> ReplicationConfig | None:
    known: dict[str, str] = {}
    for index, one in enumerate(hubs):
        if one.get("name") in known:
            file.mistake(f"there is a hub {one['name']!r} already", "hub", index, "name")
        if one.keys() == HUB.keys():
            known[one["name"]] = one["address"]
    if not {"name", "leader"} <= values.keys():
        if hubs and "replication" not in file.values:
            file.mistake("[[hub]] needs a table [replication]", "hub", 0, "name")
        return None
    for key in ("name", "leader"):
        if values[key] not in known:
            file.mistake(f"there is no [[hub]] with the name {values[key]!r}", "replication", 0, key)
    found = ReplicationConfig(hubs=known, **values)
    if found.need > len(found.slaves):
        text = f"'sync' is {found.need}, but the leader of {len(known)} hubs has {len(found.slaves)} slaves"
        file.mistake(text, "replication", 0, "sync")
    why = _unfit(found, storage, "cluster" in file.values)
    if why:
        file.mistake(why, "replication", 0, "name")
    return found


def _listeners(file: SettingsFile, tables: list[dict[str, Any]]) -> tuple[Listener, ...]:
    found: list[Listener] = []
    for index, values in enumerate(tables):
        port = values.pop("port", DEFAULT_PORTS["cert" in values])
        listener = Listener(**values, port=port)
        if port and any((listener.host, listener.port) == (other.host, other.port) for other in found):
            text = f"there is a listener on {listener.host}, port {listener.port}, already"
            file.mistake(text, "listener", index, "port")
        found.append(listener)
        alone = next((name for name in ("key", "client_ca") if name in values and "cert" not in values), None)
        if alone:
            file.mistake(f"{alone!r} in [[listener]] needs 'cert'", "listener", index, alone)
            continue
        why = _unusable(listener)
        if why:
            names = ", ".join(str(values[name]) for name in ("cert", "key", "client_ca") if name in values)
            text = f"the files of this listener's TLS cannot be used ({names}): {why}"
            file.mistake(text, "listener", index, "cert")
    return tuple(found) or (Listener(),)


def _check_tls(file: SettingsFile, table: str, values: dict[str, Any]) -> None:
    """Report TLS of connections to other hubs that cannot be used."""
    given = {name: values[name] for name in TLS if name in values}
    for name, needed in (("cert", "ca"), ("key", "cert")):
        if name in given and needed not in given:
            file.mistake(f"{name!r} in [{table}] needs {needed!r}", table, 0, name)
            return
    why = _unusable(HubTls(**given))
    if why:
        names = ", ".join(map(str, given.values()))
        file.mistake(f"the files of TLS in [{table}] cannot be used ({names}): {why}", table, 0, "ca")


def _unusable(tls: Listener | HubTls) -> str:
    """Return why files of TLS cannot be used, or "": reported now, and not when a connection is made."""
    try:
        tls.context()
    except (OSError, ValueError) as error:
        # The texts of OpenSSL do not help a user.
        if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.strerror:
            return error.strerror
        return "they are not certificates and a key that fits, in PEM, without a password"
    return ""


def _users(file: SettingsFile, tables: list[dict[str, Any]]) -> dict[str, Hash]:
    found: dict[str, Hash] = {}
    for index, values in enumerate(tables):
        if values.get("name") in found:
            file.mistake(f"there is a user {values['name']!r} already", "user", index, "name")
        if values.keys() == USER.keys():
            found[values["name"]] = values["password"]
    return found


def _rules(file: SettingsFile, tables: list[dict[str, Any]]) -> tuple[Rule, ...]:
    # A user whose hash is malformed is still named by rules.
    given = file.values.get("user")
    names = [user.get("name") for user in given if isinstance(user, dict)] if isinstance(given, list) else []
    for index, values in enumerate(tables):
        written = file.values["rule"][index]
        if "allow" not in written and "deny" not in written:
            file.mistake("a rule needs 'allow' or 'deny'", "rule", index)
        for user in values.get("users", ()):
            if user is not None and user not in names:
                file.mistake(f"there is no user {user!r}", "rule", index, "users")
    return tuple(Rule(**values) for values in tables)


def _somebody_may(
    file: SettingsFile, listeners: tuple[Listener, ...], known: dict[str, Hash], rules: tuple[Rule, ...]
) -> None:
    """Report a hub that others can reach and that allows nothing."""
    if known or file.values.get("user") or any(rule.allow for rule in rules):
        return
    for index, listener in enumerate(listeners):
        if not listener.is_loopback:
            text = "other machines can reach this listener: add a user, or a rule that allows something"
            file.mistake(text, "listener", index, "host")
