"""The versions of MQTT that a host's client speaks: which session, and what only MQTT 5.0 can be asked for."""

from typing import TYPE_CHECKING, Any

from headwater.mqtt import properties as props
from headwater.mqtt import spec
from headwater_host.errors import MqttArgumentError
from headwater_host.messages import Will, payload_bytes
from headwater_host.properties import Properties, encode, items
from headwater_host.session import HostClient, HostClientSession, HostClientSession5, HostClientSession31
from headwater_host.topics import topic_bytes

if TYPE_CHECKING:
    from os import PathLike

    from headwater_host.store import SqliteOutbox

SESSIONS: dict[str, type[HostClient]] = {
    "3.1": HostClientSession31,
    "3.1.1": HostClientSession,
    "5.0": HostClientSession5,
}
_CONNECT = 1 << spec.CONNECT
# What announcing ourselves takes of CONNECT's properties: receive maximum, packet size, session expiry, topic aliases.
_ANNOUNCED = 16
_STRING = 65535


def make_session(
    protocol: str,
    identifier: str,
    username: str | None,
    password: str | bytes | None,
    will: Will | None,
    session_expiry: int | None,
    properties: Properties | None,
    topic_aliases: int = 0,
    topic_numbers: int = 0,
    **options: Any,
) -> HostClient:
    """The session of a version; ``options`` are those of ``HostClient``. Raises MqttArgumentError."""
    if protocol not in SESSIONS:
        raise MqttArgumentError(f"protocol is one of {', '.join(SESSIONS)}, not {protocol!r}")
    is_5 = protocol == "5.0"
    if not is_5 and (session_expiry is not None or properties or (will and will.properties)):
        raise MqttArgumentError("a session expiry interval and properties need MQTT 5.0")
    for count in (topic_aliases, topic_numbers):
        if not 0 <= count < 65536 or (count and not is_5):
            raise MqttArgumentError("0 to 65535 topics can have aliases, in MQTT 5.0")
    if not is_5 and password is not None and username is None:
        raise MqttArgumentError("a password needs a user name (MQTT 3.1.1, 3.1.2.9)")
    if session_expiry is not None and not 0 <= session_expiry < 1 << 32:
        raise MqttArgumentError("the session expiry interval is 0 to 2**32 - 1 seconds")
    will_topic = topic_bytes(will.topic) if will else b""
    will_payload = field("will", bytes(payload_bytes(will.payload))) if will else b""
    will_block = encode(will.properties, props.WILL_PROPERTIES) if will else b""
    said = list(items(properties, _CONNECT))
    said_size = sum(props.size_of(*item) for item in said)
    if is_5:
        options |= {
            "topic_aliases": topic_aliases,
            "topic_numbers": topic_numbers,
            "session_expiry": -1 if session_expiry is None else session_expiry,
            "properties_size": said_size + _ANNOUNCED,
        }
    session = SESSIONS[protocol](
        field("identifier", identifier) or b"",
        user=field("username", username),
        password=field("password", password),
        room=len(will_topic) + len(will_payload or b"") + len(will_block) + said_size + _ANNOUNCED,
        **options,
    )
    if will:
        more = (will_block,) if is_5 else ()
        if session.set_will(will_topic, will_payload or b"", will.qos, will.retain, *more):
            raise MqttArgumentError("a will's QoS is 0, 1 or 2")
    if isinstance(session, HostClientSession5):
        for item in said:
            if session.connect_properties.add(*item):
                raise MqttArgumentError("the session says this property itself, or it is said twice")
    return session


def open_store(
    store: "SqliteOutbox | str | PathLike[str] | None", identifier: str | None, protocol: str, slots: int
) -> "SqliteOutbox | None":
    """The store of a client. Raises MqttStoreError, and MqttArgumentError when it is not this client's."""
    if store is None:
        return None
    # Not everybody has a store, and some Pythons have no SQLite.
    from headwater_host.store import SqliteOutbox

    if not identifier:
        raise MqttArgumentError("a store needs the identifier whose session it keeps")
    if not isinstance(store, SqliteOutbox):
        return SqliteOutbox(store, identifier, protocol=protocol, slots=slots)
    if store.protocol != protocol:
        raise MqttArgumentError(f"the store is for MQTT {store.protocol}, not {protocol}")
    if store.identifier != identifier:
        raise MqttArgumentError(f"the store is of the client {store.identifier!r}")
    return store


def field(what: str, value: str | bytes | None) -> bytes | None:
    """A string of CONNECT: at most 65535 bytes (MQTT 3.1.1, 1.5.3)."""
    try:
        data = value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError:
        # Python's error quotes what may be a password.
        raise MqttArgumentError(f"the {what} cannot be written in UTF-8") from None
    if data is not None and len(data) > _STRING:
        raise MqttArgumentError(f"the {what} takes more than {_STRING} bytes")
    return data
