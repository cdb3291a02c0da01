"""Sessions of MQTT 3.1 and 5.0, from the keywords of the session and of its version together."""

from headwater.mqtt.server import ServerSession
from headwater.mqtt.server5 import ServerV5
from headwater.mqtt.session import ClientSession
from headwater.mqtt.v5 import ClientV5
from headwater.mqtt.v31 import V31

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OF_5 = ("session_expiry", "max_packet", "aliases_in", "aliases_out", "properties_size", "receive_maximum")


def _with(version: "Any", options: "dict[str, Any]") -> "dict[str, Any]":
    options["version"] = version(**{name: options.pop(name) for name in _OF_5 if name in options})
    return options


def session5(*arguments: "Any", **options: "Any") -> ClientSession:
    return ClientSession(*arguments, **_with(ClientV5, options))


def server5(*arguments: "Any", **options: "Any") -> ServerSession:
    return ServerSession(*arguments, **_with(ServerV5, options))


def session31(*arguments: "Any", **options: "Any") -> ClientSession:
    return ClientSession(*arguments, **_with(V31, options))
