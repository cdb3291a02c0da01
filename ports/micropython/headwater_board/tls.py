"""TLS under MicroPython: a dialer like ``Tcp`` that verifies the server's certificate.

    dialer = Tls("broker.local", ca="ca.der")
    client = Client(dialer, b"board-1")

The handshake is part of the first write and never blocks: ``Client.connect`` polls until it is done and raises its
error. ``docs/tls-on-boards.md`` describes the setup, the memory use and the remedy for each error.
"""

import binascii
import errno
import gc
import select
import time

import tls

from headwater_board.tcp import Tcp, ticks_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from headwater_board.resolver import Resolver

_TICKS_MASK = 0x3FFFFFFF
# The largest payload of a record: with the overhead of TLS it fills one TCP segment on Ethernet. It must also be less
# than the limit of one write in every port's TLS (4096), see ``_Stream.write``.
_RECORD = 1360
_BEGIN = b"-----BEGIN "
_CERTIFICATE = b"CERTIFICATE"
_KEY = b"PRIVATE KEY"
_CLOSED = (
    "the server closed the connection during the handshake: it may require a client certificate; see its log"
)


class Tls(Tcp):
    """Dials ``host``, a name or an address that the server's certificate must contain.

    - ``server_name``: the name to request and verify instead, if ``host`` is an address.
    - ``ca``: CA certificates, or the server's self-signed certificate.
    - ``cert``, ``key``: the client's, if the server requires one. These three are paths or bytes; DER needs less memory
      than PEM.
    - ``timeout_ms``: limit for connecting, and again for the handshake.
    - ``resolver``: that of ``Tcp``.
    - ``context``: a ``tls.SSLContext`` instead of ``ca``, ``cert`` and ``key``; it decides what is verified.

    Raises OSError if a file cannot be read, ValueError for an invalid or missing certificate or key.
    """

    def __init__(
        self,
        host: str,
        port: int = 8883,
        ca: "str | bytes | None" = None,
        cert: "str | bytes | None" = None,
        key: "str | bytes | None" = None,
        server_name: "str | None" = None,
        timeout_ms: int = 10000,
        context: "Any" = None,
        resolver: "Resolver | None" = None,
    ):
        super().__init__(host, port, timeout_ms, resolver)
        self.server_name = server_name or host
        if context is None:
            if ca is None:
                raise ValueError("ca is missing: pass the CA certificate (path or bytes), or a context")
            if (cert is None) != (key is None):
                raise ValueError("pass cert and key together: one of them is missing")
            # This class verifies certificates by default; MicroPython's ``ssl``, which is built on it, does not.
            context = tls.SSLContext(tls.PROTOCOL_TLS_CLIENT)
            for one in _ders("ca", ca, _CERTIFICATE):
                _load("ca", context.load_verify_locations, one)
            if cert is not None and key is not None:
                own = _ders("cert", cert, _CERTIFICATE)
                private = _ders("key", key, _KEY)
                if len(own) != 1 or len(private) != 1:
                    raise ValueError(
                        "cert: %d, key: %d: need one certificate and one key" % (len(own), len(private))
                    )
                _load("cert and key (unencrypted)", context.load_cert_chain, own[0], private[0])
        self._context = context
        #: The error of the last handshake; None after ``open``.
        self.error: OSError | None = None

    def open(self) -> "_Stream":
        """Connect and start the handshake. Raises OSError (ETIMEDOUT: no answer; ENOMEM)."""
        self.error = None
        raw = super().open()
        self._poll.unregister(raw)
        self._socket = None
        # TLS needs two large blocks of memory. The collection joins the free blocks of the last connection.
        gc.collect()
        try:
            s = self._context.wrap_socket(
                raw, do_handshake_on_connect=False, server_hostname=self.server_name
            )
        except OSError:
            raw.close()
            raise
        except MemoryError:
            raw.close()
            raise OSError(errno.ENOMEM)
        # Not ``raw``: only ``s`` knows of decrypted bytes that were not read.
        self._poll.register(s, select.POLLIN)
        self._socket = s
        return _Stream(self, s)


def _load(name: str, load: "Callable[..., None]", *ders: bytes) -> None:
    try:
        load(*ders)
    except ValueError as e:
        raise ValueError("%s: %s: pass DER or PEM" % (name, e))


def _ders(name: str, source: "str | bytes", what: bytes) -> "list[bytes]":
    """Return the DER form of ``source``, a path or bytes; not every port's TLS reads PEM."""
    if isinstance(source, str):
        with open(source, "rb") as file:
            data: bytes = file.read()
    else:
        data = source
    if data.find(_BEGIN) < 0:
        return [data]
    found = []
    for part in data.split(_BEGIN)[1:]:
        body = part.find(b"-----")
        end = part.find(b"-----END")
        # The prefix of a label, such as EC in EC PRIVATE KEY, is ignored: TLS detects the format.
        if part[:body].endswith(what) and 0 <= body < end:
            found.append(binascii.a2b_base64(part[body + 5 : end]))
    if not found:
        raise ValueError(name + ": no PEM block " + what.decode() + " found: pass one that has it, or DER")
    return found


def _with_remedy(text: str, name: str) -> str:
    """Return mbedTLS's messages about a certificate as one line, each with its remedy."""
    clock = "this board's clock says %d-%02d-%02d" % time.gmtime()[:3]
    found = [line for line in text.split("\n") if line]
    for sign, remedy in (
        ("trusted CA", "give the certificate of the server's CA as ca"),
        ("(CN)", name + " is not in it: give a name that is as server_name"),
        ("future", clock + ": set it before TLS"),
        ("expired", clock),
    ):
        if text.find(sign) >= 0:
            found.append(remedy)
    return "; ".join(found)


class _Stream:
    """A transport over a socket of ``tls``."""

    def __init__(self, dialer: Tls, s: "Any"):
        self._dialer = dialer
        self._socket = s
        self._readinto = s.readinto
        self._write = s.write
        self._began: int | None = ticks_ms()
        # The number of bytes that TLS has encrypted and not sent yet, and their place.
        self._owed = 0
        self._buf: bytes | bytearray | memoryview = b""
        self._off = 0

    def readinto(self, buf: "bytearray | memoryview", n: int) -> int | None:
        """Read at most ``n`` bytes (``headwater.types.Transport``). Return None until the handshake is done."""
        if self._began is not None:
            return None
        if self._owed:
            self._settle()
        got: int | None = self._readinto(buf, n)
        return got

    def write(self, buf: "bytes | bytearray | memoryview", off: int, n: int) -> int | None:
        """Write up to ``n`` bytes (``headwater.types.Transport``). Return 0 until the handshake is done. Raises OSError
        if it fails."""
        if n > _RECORD:
            n = _RECORD
        if self._began is not None:
            return self._begin(buf, off, n)
        if self._owed and not self._settle():
            return None
        k: int | None = self._write(buf, off, n)
        if k is None:
            # TLS has encrypted the bytes as one record and keeps the unsent rest, so they count as written. The next
            # call must pass the same number of bytes; TLS would count others as written.
            self._buf = buf
            self._off = off
            self._owed = k = n
        return k

    def _settle(self) -> bool:
        """Send the rest of a record. Return whether everything is sent."""
        if self._write(self._buf, self._off, self._owed) is None:
            return False
        self._owed = 0
        return True

    def _begin(self, buf: "bytes | bytearray | memoryview", off: int, n: int) -> int | None:
        """Continue the handshake; write once it is done. Until then TLS accepts no byte."""
        dialer = self._dialer
        try:
            k: int | None = self._write(buf, off, n)
            if k is None and (ticks_ms() - (self._began or 0)) & _TICKS_MASK > dialer.timeout_ms:
                raise OSError(errno.ETIMEDOUT)
        except OSError as e:
            dialer.error = e
            # mbedTLS's own errors include a text.
            if len(e.args) == 1 and e.errno != errno.ETIMEDOUT:
                dialer.error = OSError(e.errno, _CLOSED)
            raise dialer.error
        except ValueError as e:
            # The text names the problem of the server's certificate.
            dialer.error = OSError(errno.EACCES, _with_remedy(str(e), dialer.server_name))
            raise dialer.error
        if k is None:
            return 0
        self._began = None
        return k

    def close(self) -> None:
        """Close the connection; may be called twice."""
        self._socket.close()
