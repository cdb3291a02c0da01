"""Create the session for an MQTT version and options."""

from typing import get_args

from headwater.mqtt import properties as props
from headwater.mqtt import spec, spec5
from headwater.mqtt.v5 import ClientV5
from headwater.mqtt.v31 import V31
from headwater.names5 import PROPERTIES
from headwater_host.arguments import check_whole, string_field
from headwater_host.client.mqtt.aliases import HostIncomingAliases, HostOutgoingAliases
from headwater_host.client.mqtt.options import Limits, SessionOptions, Version
from headwater_host.client.mqtt.session import HostClientSession
from headwater_host.client.payload import Will
from headwater_host.client.rxbuf import MAX_PACKET, SMALLEST
from headwater_host.client.session_config import SessionConfig
from headwater_host.errors import ArgumentError
from headwater_host.mqtt_properties import encode, items

VERSIONS: tuple[str, ...] = get_args(Version)
_CONNECT = 1 << spec.CONNECT
# Bytes of CONNECT's properties for the client's limits: receive maximum, packet size, session expiry, topic aliases.
_ANNOUNCED = 16
_ALL_IDS = 65535
# Options of the client that CONNECT announces as properties: each name, and the least and largest value.
_ANNOUNCES = {
    spec5.SESSION_EXPIRY_INTERVAL: ("expiry", 0, 0xFFFFFFFF),
    spec5.RECEIVE_MAXIMUM: ("receive_maximum", 1, 0xFFFF),
    spec5.MAXIMUM_PACKET_SIZE: ("packet_size", SMALLEST, 0xFFFFFFFF),
    spec5.TOPIC_ALIAS_MAXIMUM: ("topic_aliases", 0, 0xFFFF),
}


# Other names: the protocol levels, as in paho, and numbers.
_ALSO: dict[object, str] = {3: "3.1", 4: "3.1.1", 5: "5.0", 3.1: "3.1", "5": "5.0"}


def version_of(protocol: object) -> str:
    """Return the name of a version. Raises ArgumentError."""
    try:
        name = _ALSO.get(protocol, protocol)
    except TypeError:
        name = None
    if isinstance(protocol, bool) or not isinstance(name, str) or name not in VERSIONS:
        raise ArgumentError(f"protocol={protocol!r}: one of {', '.join(map(repr, VERSIONS))}")
    return name


def make_session(
    protocol: str, config: SessionConfig, will: Will | None, options: SessionOptions, limits: Limits
) -> HostClientSession:
    """Return a session of the version ``protocol``. Raises ArgumentError."""
    is_5 = protocol == "5.0"
    properties = options.properties
    aliases_out = limits.outgoing_topic_aliases
    if not is_5 and (properties or (will and will.properties)):
        raise ArgumentError("properties need MQTT 5.0")
    check_whole("outgoing_topic_aliases", aliases_out, 0, _ALL_IDS)
    if aliases_out and not is_5:
        raise ArgumentError("outgoing_topic_aliases needs MQTT 5.0")
    if not is_5 and config.password is not None and config.user is None:
        raise ArgumentError("a password needs a user name (MQTT 3.1.1, 3.1.2.9)")
    will_block = encode(will.properties, props.WILL_PROPERTIES) if will and is_5 else b""
    if config.will:
        string_field("will", config.will[1])
    own = {
        "expiry": options.expiry,
        "receive_maximum": limits.receive_maximum,
        "packet_size": limits.packet_size,
        "topic_aliases": limits.topic_aliases or None,
    }
    said, announced = _announced(list(items(properties, _CONNECT)), own, is_5)
    _check_receive_limit(limits.receive_limit, announced["receive_maximum"])
    packet_size = announced["packet_size"]
    said_size = sum(props.size_of(*item) for item in said)
    v5 = None
    if is_5:
        aliases_in = announced["topic_aliases"]
        v5 = ClientV5(
            -1 if announced["expiry"] is None else announced["expiry"],
            packet_size or 0,
            HostIncomingAliases(aliases_in) if aliases_in else None,
            HostOutgoingAliases(aliases_out) if aliases_out else None,
            said_size + _ANNOUNCED,
            announced["receive_maximum"] or 0,
        )
    session = HostClientSession(
        config,
        max_packet=MAX_PACKET if packet_size is None else min(packet_size, MAX_PACKET),
        room=len(will_block) + said_size + _ANNOUNCED,
        puback_ends_qos_2=options.puback_ends_qos_2,
        version=V31() if protocol == "3.1" else v5,
    )
    if config.will and session.set_will(*config.will, will_block):
        raise ArgumentError("a will's QoS is 0, 1 or 2")
    if v5 is not None:
        if limits.receive_limit is not None:
            v5.receive_limit = limits.receive_limit
        for item in said:
            if v5.connect_properties.add(*item):
                raise ArgumentError(f"{PROPERTIES[item[0]]!r} can be given once")
    return session


def _announced(
    said: list[tuple[int, int | bytes, bytes]], options: dict[str, int | None], is_5: bool
) -> tuple[list[tuple[int, int | bytes, bytes]], dict[str, int | None]]:
    """Split CONNECT's properties into those without an option, and the options, given in either way."""
    options = dict(options)
    rest = []
    for item in said:
        ident, said_value, _ = item
        if ident not in _ANNOUNCES:
            rest.append(item)
            continue
        name = _ANNOUNCES[ident][0]
        if options[name] is not None:
            raise ArgumentError(
                f"{name} and the property {PROPERTIES[ident]!r} are the same: give one of them"
            )
        options[name] = int(said_value)
    for name, least, most in _ANNOUNCES.values():
        value = options[name]
        if value is None:
            continue
        check_whole(name, value, least, most)
        # Before 5.0 the client skips larger packets itself.
        if not is_5 and name != "packet_size":
            raise ArgumentError(f"{name} needs MQTT 5.0")
    return rest, options


def _check_receive_limit(limit: int | None, maximum: int | None) -> None:
    if limit is None:
        return
    if maximum is None:
        raise ArgumentError("receive_limit needs a receive_maximum")
    check_whole("receive_limit", limit, maximum, _ALL_IDS)
