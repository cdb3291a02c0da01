"""Run umqtt programs unchanged.

Import this module first, for instance in ``boot.py``. Then ``from umqtt.simple import MQTTClient`` and ``from
umqtt.robust import MQTTClient`` find headwater's classes, even if the firmware has its own umqtt.
``headwater.compat.umqtt`` lists the differences.
"""

import sys

from headwater.compat.umqtt import MQTTClient, MQTTException, RobustMQTTClient
from headwater_board.tcp import Tcp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headwater.types import Dialer

__all__ = ["MQTTClient", "MQTTException", "RobustMQTTClient"]


def _dialer(server: str, port: int, ssl: "Any", ssl_params: "dict[str, Any]") -> "Dialer":
    if not ssl:
        return Tcp(server, port)
    from headwater_board.tls import Tls

    name = ssl_params.get("server_hostname") or server
    return Tls(server, port, server_name=name, context=_context(ssl_params) if ssl is True else ssl)


def _context(params: "dict[str, Any]") -> "Any":
    """Return the TLS context of umqtt's ``ssl=True``: it verifies the server's certificate only with ``cadata``."""
    import tls

    made: Any = tls
    context = made.SSLContext(made.PROTOCOL_TLS_CLIENT)
    if params.get("cadata"):
        context.load_verify_locations(params["cadata"])
    else:
        context.verify_mode = made.CERT_NONE
    if params.get("cert"):
        context.load_cert_chain(params["cert"], params["key"])
    return context


class _Module:
    """Replaces a module of umqtt."""

    def __init__(self, client: "type[MQTTClient]"):
        self.MQTTClient = client
        self.MQTTException = MQTTException


MQTTClient.dialer = staticmethod(_dialer)  # type: ignore[method-assign]
_package: "Any" = _Module(MQTTClient)
_package.simple = _Module(MQTTClient)
_package.robust = _Module(RobustMQTTClient)
sys.modules["umqtt"] = _package
sys.modules["umqtt.simple"] = _package.simple
sys.modules["umqtt.robust"] = _package.robust
