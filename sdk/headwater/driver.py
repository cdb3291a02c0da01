"""What clients of every protocol are made of: a session driven over a transport, by polling.

It dials, reads into the session and writes out of it, tells it the time, and gives the transport back when the
connection is over. The core itself has no clock: the dialer has (``headwater.types.Dialer``).
"""

from headwater.errors import E_CLOSED, E_OFFLINE, E_STATE, E_TIMEOUT, E_UNREACHABLE, HeadwaterError
from headwater.wire import TICKS_MASK, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from headwater.types import Bytes, Dialer, Session, Transport

# How often one poll reads before it lets the application have its turn.
_READS = const(16)
_TURN_MS = const(20)
_ENOMEM = const(12)
# As in ``transitions``.
_ONLINE = const(2)
_CLOSING = const(3)
_ERROR = const(4)


class Driver:
    """One connection, and the session that outlives it. Only ``connect`` and ``flush`` raise, and ``poll`` and ``wait``
    what a handler raises, or E_REFUSED for a subscription that the server refuses and no handler is told of."""

    #: Whether the last poll left off receiving before it had everything.
    behind = False

    def __init__(self, dialer: "Dialer", session: "Session"):
        self.dialer = dialer
        self.session = session
        self._ticks = dialer.ticks_ms
        # Bound once, because binding allocates; and an attribute is found faster than a method.
        self._out = self.session.out
        self._sent = self.session.sent
        self._window = self.session.rx.window
        self._feed = self.session.feed
        self._transport: Transport | None = None
        self._dialing = False
        self._readinto: Callable[[bytearray | memoryview, int], int | None] = _nothing
        self._write: Callable[[Bytes, int, int], int | None] = _nothing
        #: Why the last connection ended: a code of ``headwater.errors``.
        self.status = 0
        #: The error number of the dialer, where that is E_UNREACHABLE.
        self.errno = 0
        #: With False messages wait in the transport, and so does the server: for a program that has enough to do. The
        #: silence is then no sign of a dead line. What is in the receive buffer is delivered all the same. While an
        #: acknowledgement or an answer is due, what lies before it is received and delivered as well, one read a poll.
        self.reading = True

    @property
    def connected(self) -> bool:
        """Whether the server has accepted this connection and it has not ended."""
        return self.session.state == _ONLINE

    def connect(self) -> bool:
        """Open the transport, greet the server and wait for the answer: whether the server had kept the session.

        Raises OSError when the transport cannot be opened, and HeadwaterError: E_REFUSED
        (``session.return_code`` says why), E_TIMEOUT after the session's ``response_ms``, E_CLOSED,
        E_ARGUMENT or E_TOO_LARGE (the greeting cannot be built), or what was wrong with the server's answer.
        """
        self.close()
        session = self.session
        bad = _begin(self, self.dialer.open())
        if bad == 0:
            bad = self.poll()
        while bad == 0 and session.state != _ONLINE:
            idle(self, _TURN_MS)
            bad = self.poll()
        if bad < 0:
            self.close()
            self.status = bad
            # A dialer whose transports open in their first write, such as TLS, knows better than E_CLOSED.
            raise getattr(self.dialer, "error", None) or HeadwaterError(bad)
        return self.session_present

    def begin_connect(self) -> int:
        """Begin to connect, and let ``poll`` go on with it until ``connected``, or until it returns why not.

        Waits only where the dialer does: for a name, and for everything where it has no ``ready``
        (``headwater.types.PollDialer``). 0, or as ``poll``: E_UNREACHABLE (``errno`` says why), E_ARGUMENT or
        E_TOO_LARGE (the greeting cannot be built), E_REFUSED, E_TIMEOUT, E_CLOSED, or what was wrong with the answer.
        """
        self.close()
        self.status = 0
        self._dialing = True
        return _dial(self)

    @property
    def on_message(self) -> "Any":
        """Called with the reusable cursor of each message that arrives."""
        return self.session.on_message

    @on_message.setter
    def on_message(self, handler: "Any") -> None:
        self.session.on_message = handler

    @property
    def on_delivered(self) -> "Callable[[int], object] | None":
        """Called with the number (of MQTT: the packet id) of each message of ours that was acknowledged to its end."""
        return self.session.on_delivered

    @on_delivered.setter
    def on_delivered(self, handler: "Callable[[int], object] | None") -> None:
        self.session.on_delivered = handler

    @property
    def sink(self) -> "Any":
        """Where messages larger than the receive buffer go."""
        return self.session.sink

    @sink.setter
    def sink(self, sink: "Any") -> None:
        self.session.sink = sink

    @property
    def session_present(self) -> bool:
        """Whether the server had kept the session when it accepted this connection."""
        return self.session.session_present

    @property
    def transport(self) -> "Transport | None":
        """What the connection runs over, None without one."""
        return self._transport

    @property
    def pinged(self) -> bool:
        """Whether a PINGREQ is unanswered."""
        return self.session.pinged

    def ping(self) -> int:
        """Send PINGREQ now, besides those of the keep-alive: 0, E_OFFLINE, or E_AGAIN (no room to send it for now)."""
        if self.session.state != _ONLINE:
            return E_OFFLINE
        return self.session.ping() or send_out(self)

    def poll(self) -> int:
        """Receive what has arrived, check the timeouts, send what waits; never blocks.

        0, or the negative status with which the connection ended; E_OFFLINE when there is none. Called by a handler,
        it receives nothing: what has arrived waits for the handler to return.
        """
        transport = self._transport
        if transport is None:
            return _dial(self) if self._dialing else self.status or E_OFFLINE
        session = self.session
        session.now = self._ticks()
        n = 0
        if session.feeding or not (self.reading or session.awaits()):
            # What has arrived waits as well: silence is no sign of a dead connection.
            session.rx_time = session.now
            n = send_out(self)
        else:
            for _ in range(_READS):
                n = _read(self, transport)
                if n or not self.reading:
                    break
            self.behind = n == 0
        if n < 0 or self._transport is not transport:
            return n if n < 0 else 0
        # The answer that a timeout waits for may have been in the transport, and the transport may have taken what was
        # stuck: only now is silence silence.
        n = session.poll(session.now)
        return _drop(self, n) if n else send_out(self)

    def wait(self, ms: int) -> int:
        """Poll for ``ms`` milliseconds, idle in between: 0, or the status with which the connection ended."""
        begin = self._ticks()
        while True:
            status = self.poll()
            left = ms - ((self._ticks() - begin) & TICKS_MASK)
            if status or left <= 0:
                return status
            idle(self, min(left, _TURN_MS))

    def flush(self, timeout_ms: int) -> None:
        """Poll until everything published at QoS 1 and 2 is acknowledged and everything else is sent.

        Raises HeadwaterError: E_TIMEOUT; E_STATE when a handler waits for acknowledgements, which cannot come before
        it returns; or the status with which the connection ended.
        """
        session = self.session
        begin = self._ticks()
        while True:
            status = self.poll()
            if status == 0:
                if not session.outbox.count and not session.out():
                    return
                if session.feeding and session.outbox.count:
                    status = E_STATE
                elif (self._ticks() - begin) & TICKS_MASK >= timeout_ms:
                    status = E_TIMEOUT
            if status:
                raise HeadwaterError(status)
            idle(self, _TURN_MS)

    def disconnect(self) -> None:
        """Say goodbye, as far as the transport takes it at once, and close."""
        if self._transport is not None and send_out(self) == 0 and self.session.disconnect() == 0:
            send_out(self)
        self.close()

    def close(self) -> None:
        """Close the transport without a word: the server then publishes the will."""
        transport = self._transport
        if (transport is not None or self._dialing) and hasattr(self.dialer, "hang_up"):
            self.dialer.hang_up()
        self._dialing = False
        if transport is not None:
            self._transport = None
            self._readinto = self._write = _nothing
            try:
                self.session.lost()
            finally:
                # Also when a sink raises that is told of it.
                try:
                    transport.close()
                except OSError:
                    # It was to be given up, and now it is.
                    pass


def _dial(client: Driver) -> int:
    """Go on with opening the transport, and begin the session when it is open."""
    dialer = client.dialer
    try:
        if hasattr(dialer, "ready") and not dialer.ready():
            return 0
        transport = dialer.open()
    except (OSError, MemoryError) as e:
        # TLS on a board needs two large pieces of memory, and the next attempt may well find them.
        client.close()
        client.errno = e.errno or 0 if isinstance(e, OSError) else _ENOMEM
        client.status = E_UNREACHABLE
        return E_UNREACHABLE
    return _begin(client, transport)


def _begin(client: Driver, transport: "Transport") -> int:
    """There is a transport: let the session greet. 0, or why it cannot be built."""
    client._dialing = False
    client._transport = transport
    client._readinto = transport.readinto
    client._write = transport.write
    client.status = 0
    bad = client.session.connect(client._ticks())
    return _drop(client, bad) if bad else 0


def idle(client: Driver, ms: int) -> None:
    """Wait for bytes for at most ``ms`` milliseconds. Where they would not be received, let the time pass: the dialer's
    ``wait`` would return at once as long as they are there."""
    session = client.session
    if (session.stalled or session.feeding or not (client.reading or session.awaits())) and hasattr(
        client.dialer, "sleep"
    ):
        client.dialer.sleep(ms)
    else:
        client.dialer.wait(ms)


def send_ready(client: Driver, n: "int | None") -> int:
    """Send the ``n`` bytes of the transmit buffer, which are all that waits: 0 or E_CLOSED."""
    try:
        n = client._write(client.session.tx, 0, n)  # type: ignore[arg-type]  # it is a number until here
    except OSError:
        return _drop(client, E_CLOSED)
    if n == client.session.tx_end:
        client.session.tx_end = 0
        client.session.tx_time = client.session.now
    elif n:
        client.session.out()
        client.session.sent(n)
        return send_out(client)
    return 0


def send_out(client: Driver) -> int:
    """Send what can be sent now: 0, or the status with which the connection ended."""
    n: int | None = client._out()
    while n > 0:  # type: ignore[operator]  # None has returned
        try:
            n = client._write(client.session.out_buf, client.session.out_at, n)  # type: ignore[arg-type]
        except OSError:
            return _drop(client, E_CLOSED)
        if not n:
            if n == 0:
                # A handshake under way, which has a timeout of its own.
                client._sent(0)
            return 0
        n = client._sent(n)
    return _drop(client, n) if n else 0


def send_request(client: Driver, status: int) -> int:
    """Send what waits, when ``status`` is one of success; returns ``status``."""
    if status >= 0:
        send_out(client)
    return status


def _read(client: Driver, transport: "Transport") -> int:
    """Read once and take what came: 0; 1 when there is no more now; or the status with which the connection ended."""
    done = 1
    k = _take(client, 0) if client.session.stalled else 0
    if k == 0 and client._transport is transport:
        room = client._window()
        k = _receive(client, room) if room else 0
        if k > 0:
            done = room - k
            k = _take(client, k)
    if client._transport is not transport:
        # A handler has closed this connection, or has opened another: nothing here is its business.
        return client.status or 1
    if k:
        return _drop(client, k)
    # Answers leave together, one write for all that a read brought.
    return send_out(client) or done


def _take(client: Driver, n: int) -> int:
    """Let the session take ``n`` bytes that were read: its status. Where a handler raises, the next poll goes on."""
    try:
        n = client._feed(n)
    except BaseException:
        client.session.feeding = False
        client.session.stalled = True
        raise
    client.session.feeding = False
    return n


def _receive(client: Driver, n: "int | None") -> int:
    """Read at most ``n`` bytes: their number, 0 when there are none now, or E_CLOSED."""
    try:
        n = client._readinto(client.session.rx.view, n)  # type: ignore[arg-type]  # it is a number until here
    except OSError:
        return E_CLOSED
    return 0 if n is None else n or E_CLOSED


def _drop(client: Driver, status: int) -> int:
    """The connection is over: give the transport back and say why."""
    if client.session.state == _CLOSING:
        status = E_CLOSED
    elif client.session.state == _ERROR:
        _last_word(client)
    client.close()
    client.status = status
    return status


def _last_word(client: Driver) -> None:
    """Where the version has one, a broken session ends with a packet that says why."""
    n = client._out()
    if n > 0:
        try:
            client._write(client.session.out_buf, client.session.out_at, n)
        except OSError:
            pass


def _nothing(*_: object) -> None:
    """Stands for the transport's methods while there is none."""
