"""How to reach a server: host and port, TLS or not, WebSocket or not; and what is said when there is no way."""

import asyncio
import os
import re
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwater_host.errors import ArgumentError, NotConnectedError, TimedOutError, TlsError

#: By (TLS, WebSocket).
DEFAULT_PORTS = {(False, False): 1883, (True, False): 8883, (False, True): 80, (True, True): 443}
#: Where brokers serve WebSocket unless told.
DEFAULT_PATH = "/mqtt"
# What OpenSSL calls bytes that are no record of TLS, and what to say of them.
_NOT_TLS = (
    "WRONG_VERSION_NUMBER",
    "RECORD_LAYER_FAILURE",
    "UNKNOWN_PROTOCOL",
    "HTTP_REQUEST",
    "PACKET_LENGTH_TOO_LONG",
)
_NO_TLS = "the handshake failed ({}); the server may not speak TLS on this port"
# So long after one address of a host the next one is tried beside it (RFC 8305, "Happy Eyeballs").
_NEXT_ADDRESS_S = 0.25
# An abandoned handshake is given up so long after nobody waits for it any more.
_LINGER_S = 1.0


@dataclass(frozen=True)
class Tls:
    """What a TLS connection needs beyond the defaults, which trust what the operating system trusts and check the name.

    ``ca`` is what vouches for the server: a file (PEM), a directory as ``openssl rehash`` makes it, or bytes (PEM or
    DER). ``cert`` and ``key`` are files with the client's certificate and key, ``key_password`` opens the key.
    ``server_name`` is the name to ask for and to check, where it is not the host that is connected to.
    ``check_hostname=False`` leaves the name unchecked, not the certificate. ``context`` takes the place of all but
    ``server_name``.
    """

    ca: str | Path | bytes | None = None
    cert: str | Path | None = None
    key: str | Path | None = None
    key_password: str | bytes | None = field(default=None, repr=False)
    server_name: str | None = None
    check_hostname: bool = True
    context: ssl.SSLContext | None = field(default=None, repr=False)

    def make_context(self) -> ssl.SSLContext:
        """The context of these settings. Raises ArgumentError when a file cannot be used."""
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
                # Without a password given, OpenSSL would ask the terminal for one.
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
            # Python would take it for no CA given, and trust what the system trusts.
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
        # Where a host name was to be looked up, and elsewhere a text that is none.
        return "not a host name"
    if isinstance(error, ValueError):
        return "no certificate or key"
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error)


def _speaks_no_tls(error: ssl.SSLError) -> bool:
    """Whether what came is no TLS at all, or nothing did."""
    return isinstance(error, ssl.SSLEOFError) or error.reason in _NOT_TLS


def _no_host(url: str) -> str:
    """What to pass for a URL, without what may be a password in it."""
    scheme, _, rest = url.partition("://")
    host, colon, port = rest.partition("/")[0].rpartition("@")[2].partition(":")
    options = f", {port}" if colon and port.isdecimal() else ""
    options += ", tls=True" if scheme in ("mqtts", "wss", "ssl") else ""
    options += ", connection=ConnectionOptions(websocket='/...')" if scheme in ("ws", "wss") else ""
    return f"the host is a URL; pass the name and the options apart: Client({host!r}{options})"


class Route:
    """The way to one server. Raises ArgumentError for settings that lead nowhere."""

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
        self._server_name = (tls.server_name or host) if tls else None
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

    async def open(self, connection: asyncio.BufferedProtocol, timeout: float) -> None:
        """Connect: ``connection`` has its transport when this returns.

        Raises TlsError, NotConnectedError, and TimedOutError after ``timeout`` seconds.
        """
        opening = asyncio.ensure_future(self._open(connection, timeout))
        try:
            # Before Python 3.12 ``wait_for`` forgets a cancellation that comes when what it waits for is just done.
            await asyncio.wait({opening}, timeout=timeout)
        finally:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        try:
            if opening.cancelled():
                raise asyncio.TimeoutError
            opening.result()
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
            # There was a connection, and it ended in the handshake.
            why = _NO_TLS.format(_reason(error) or "it closed the connection")
            raise TlsError(f"no connection to {self}: TLS: {why}") from error
        except (OSError, UnicodeError) as error:
            # The latter: what was given is no host name at all.
            raise NotConnectedError(f"no connection to {self}: {_reason(error)}") from error

    async def _open(self, connection: asyncio.BufferedProtocol, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        tls_timeout = None if self._context is None else timeout + _LINGER_S
        # uvloop does not know this option, and tries one address after the other.
        options: dict[str, Any] = {}
        if isinstance(loop, asyncio.BaseEventLoop):
            options["happy_eyeballs_delay"] = _NEXT_ADDRESS_S

        async def connect(protocol: asyncio.BaseProtocol) -> None:
            await loop.create_connection(
                lambda: protocol,
                self.host,
                self.port,
                ssl=self._context,
                server_hostname=self._server_name,
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
