"""Connect over TCP, TLS or WebSocket, and explain failures."""

import asyncio
import copy
import os
import re
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwater_host.errors import ArgumentError, NotConnectedError, TimedOutError, TlsError
from headwater_host.timeouts import within

#: By (TLS, WebSocket).
DEFAULT_PORTS = {(False, False): 1883, (True, False): 8883, (False, True): 80, (True, True): 443}
#: The usual path of brokers for WebSocket.
DEFAULT_PATH = "/mqtt"
# OpenSSL's errors for bytes that are no TLS record, and the explanation.
_NOT_TLS = (
    "WRONG_VERSION_NUMBER",
    "RECORD_LAYER_FAILURE",
    "UNKNOWN_PROTOCOL",
    "HTTP_REQUEST",
    "PACKET_LENGTH_TOO_LONG",
)
_NO_TLS = "the handshake failed ({}); the server may not speak TLS on this port"
# After this time the next address of a host is tried concurrently (RFC 8305, "Happy Eyeballs").
_NEXT_ADDRESS_S = 0.25
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:/@\[\]\s]+)):([0-9]{1,5})")
# How long after the client's timeout an abandoned handshake ends.
_LINGER_S = 1.0


@dataclass(frozen=True)
class Tls:
    """TLS options. The default trusts the CA certificates of the operating system and verifies the host name.

    - ``ca``: CA certificates to trust instead: a PEM file, a directory made by ``openssl rehash``, or bytes (PEM, DER).
    - ``cert``, ``key``, ``key_password``: files with the client's certificate and key, and the key's password.
    - ``server_name``: the name to request and verify if it is not the host.
    - ``check_hostname``: False to verify the certificate but not the name.
    - ``context``: an ``ssl.SSLContext`` that replaces all options but ``server_name``.
    """

    ca: str | Path | bytes | None = None
    cert: str | Path | None = None
    key: str | Path | None = None
    key_password: str | bytes | None = field(default=None, repr=False)
    server_name: str | None = None
    check_hostname: bool = True
    context: ssl.SSLContext | None = field(default=None, repr=False)

    def make_context(self) -> ssl.SSLContext:
        """Return an ``ssl.SSLContext`` with these options. Raises ArgumentError if a file cannot be used."""
        if self.context is not None:
            return self.context
        if self.cert is None and self.key is not None:
            raise ArgumentError("a client's key needs its certificate")
        try:
            context = _trusting(self.ca)
        except (OSError, ValueError) as error:
            what = "the CA's bytes" if isinstance(self.ca, bytes) else f"the CA in {self.ca}"
            raise ArgumentError(f"cannot use {what}: {_reason(error)}") from None
        context.check_hostname = self.check_hostname
        if self.cert is not None:
            try:
                # Without a password, OpenSSL would ask for one at the terminal.
                password = self.key_password or _no_password
                context.load_cert_chain(self.cert, self.key, password)
            except (OSError, ValueError) as error:
                files = f"{self.cert} with the key in {self.key}" if self.key else str(self.cert)
                raise ArgumentError(f"cannot use the certificate {files}: {_reason(error)}") from None
        return context


def _trusting(ca: str | Path | bytes | None) -> ssl.SSLContext:
    if ca is None:
        return ssl.create_default_context()
    if isinstance(ca, bytes):
        if not ca:
            # Python would ignore empty bytes, and trust the operating system's CA certificates.
            raise ValueError
        return ssl.create_default_context(cadata=ca.decode() if b"-----BEGIN" in ca else ca)
    if not os.path.lexists(ca) or Path(ca).is_file():
        return ssl.create_default_context(cafile=ca)
    return ssl.create_default_context(capath=ca)


def _no_password() -> bytes:
    return b""


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no certificate or key, or a wrong password").replace("_", " ").lower()
    if isinstance(error, UnicodeError):
        # Name resolution raises this for text that is no host name.
        return "not a host name"
    if isinstance(error, ValueError):
        return "no certificate or key"
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error)


def _speaks_no_tls(error: ssl.SSLError) -> bool:
    """Return whether the server sent something other than TLS, or nothing."""
    return isinstance(error, ssl.SSLEOFError) or error.reason in _NOT_TLS


def _no_host(url: str) -> str:
    """Return what to pass instead of a URL, without a password in it."""
    scheme, _, rest = url.partition("://")
    host, colon, port = rest.partition("/")[0].rpartition("@")[2].partition(":")
    options = f", {port}" if colon and port.isdecimal() else ""
    options += ", tls=True" if scheme in ("mqtts", "wss", "ssl") else ""
    options += ", connection=ConnectionOptions(websocket='/...')" if scheme in ("ws", "wss") else ""
    return f"the host is a URL; pass the name and the options apart: Client({host!r}{options})"


class Route:
    """The way to one server. Raises ArgumentError for wrong options."""

    def __init__(
        self,
        host: str,
        port: int | None = None,
        tls: Tls | ssl.SSLContext | bool | None = None,
        websocket: str | None = None,
    ):
        if isinstance(tls, ssl.SSLContext):
            tls = Tls(context=tls)
        elif tls is True:
            tls = Tls()
        elif tls and not isinstance(tls, Tls):
            raise ArgumentError(f"tls={tls!r}: True, a Tls such as Tls(ca=...), or an ssl.SSLContext")
        if websocket is not None and not isinstance(websocket, str):
            raise ArgumentError(f"websocket={websocket!r}: a path, such as {DEFAULT_PATH!r}")
        if "://" in host:
            raise ArgumentError(_no_host(host))
        if host.count(":") == 1:
            raise ArgumentError(f"host {host!r}: pass the port apart from the name")
        self.host = host
        self.port = port or DEFAULT_PORTS[bool(tls), websocket is not None]
        self._context = tls.make_context() if tls else None
        self._given_name = tls.server_name if tls else None
        self._uri = ""
        if websocket is not None:
            if not re.fullmatch(r"(/[!-~]*)?", websocket) or "#" in websocket:
                raise ArgumentError(f"{websocket!r} is not a path for WebSocket, such as {DEFAULT_PATH}")
            try:
                import websockets  # noqa: F401 - whether it is there is the question
            except ImportError:
                raise ArgumentError(
                    "WebSocket needs the package websockets: pip install 'headwater[websocket]'"
                ) from None
            name = f"[{host}]" if ":" in host else host
            self._uri = f"{'wss' if tls else 'ws'}://{name}:{self.port}{websocket or '/'}"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def to(self, address: str) -> "Route | None":
        """Return the route with the same options to ``HOST:PORT`` or ``[HOST]:PORT``; None for another text."""
        found = _ADDRESS.fullmatch(address)
        if not found or not 1 <= int(found[3]) <= 65535:
            return None
        route = copy.copy(self)
        route.host, route.port = found[1] or found[2], int(found[3])
        return route

    async def open(self, connection: asyncio.BufferedProtocol, timeout: float) -> None:
        """Connect, and give ``connection`` its transport.

        Raises TlsError, NotConnectedError, and TimedOutError after ``timeout`` seconds.
        """
        try:
            await within(timeout, self._open(connection, timeout))
        except NotConnectedError as error:
            raise NotConnectedError(f"no connection to {self}: {error}") from None
        except asyncio.TimeoutError:
            raise TimedOutError(f"no connection to {self} within {timeout:g} s") from None
        except ssl.SSLError as error:
            why = _NO_TLS.format(_reason(error)) if _speaks_no_tls(error) else _reason(error)
            raise TlsError(f"no connection to {self}: TLS: {why}") from error
        except (ConnectionResetError, ConnectionAbortedError) as error:
            if self._context is None:
                raise NotConnectedError(f"no connection to {self}: {_reason(error)}") from error
            # The server closed the connection during the TLS handshake.
            why = _NO_TLS.format(_reason(error) or "it closed the connection")
            raise TlsError(f"no connection to {self}: TLS: {why}") from error
        except (OSError, UnicodeError) as error:
            # UnicodeError: the host is no host name.
            raise NotConnectedError(f"no connection to {self}: {_reason(error)}") from error

    async def _open(self, connection: asyncio.BufferedProtocol, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        tls_timeout = None if self._context is None else timeout + _LINGER_S
        # uvloop has no such option, and tries the addresses in sequence.
        options: dict[str, Any] = {}
        if isinstance(loop, asyncio.BaseEventLoop):
            options["happy_eyeballs_delay"] = _NEXT_ADDRESS_S

        async def connect(protocol: asyncio.BaseProtocol) -> None:
            await loop.create_connection(
                lambda: protocol,
                self.host,
                self.port,
                ssl=self._context,
                server_hostname=None if self._context is None else self._given_name or self.host,
                ssl_handshake_timeout=tls_timeout,
                **options,
            )

        if not self._uri:
            await connect(connection)
            return
        from headwater_host.client.websocket import WebSocket

        websocket = WebSocket(connection, self._uri)
        try:
            await connect(websocket)
            await websocket.opened
        except BaseException:
            websocket.abort()
            raise
