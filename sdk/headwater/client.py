"""The client that applications use: an MQTT session over a transport, on boards and wherever a loop polls.

    client = Client(Tcp("broker.local"), b"board-1", clean=False)
    client.on_message = lambda message: print(message.topic_text(), message.payload_bytes())
    client.connect()
    client.subscribe(b"board-1/commands", 1)
    while True:
        client.publish(b"board-1/telemetry", sample(), 1)
        client.wait(1000)

``Tcp`` stands for a dialer (``headwater.types.Dialer``): what opens a transport, tells the time and waits, on
this port. The core itself has no clock. Publishing, polling and receiving allocate nothing once connected.
"""

from headwater.errors import E_AGAIN, E_CLOSED, E_OFFLINE, E_TIMEOUT, HeadwaterError
from headwater.mqtt.encode import short_publish
from headwater.mqtt.session import ClientSession
from headwater.mqtt.transitions import CLOSING, ONLINE
from headwater.wire import TICKS_MASK, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.mqtt.decode import Packet
    from headwater.types import Bytes, Dialer, Sink, Transport

# How often one poll reads before it lets the application have its turn.
_READS = const(16)
_TURN_MS = const(20)
# What fits into the transmit buffer as it is; other bytes-like objects take the longer way.
_PLAIN = (bytes, bytearray)


class Client:
    """One connection to a broker, and the session that outlives it.

    ``session`` may be given; otherwise it is made from ``client_id`` and the other keywords of
    ``ClientSession``. Methods return a status integer (``headwater.errors``): 0 or more is success. Only
    ``connect`` and ``flush`` raise.

    A negative status of ``poll`` says that the connection is over; ``connect`` begins the next one, and what
    was unacknowledged is sent again. ``connected`` says whether messages can pass.
    """

    def __init__(
        self,
        dialer: "Dialer",
        client_id: "Bytes" = b"",
        session: "ClientSession | None" = None,
        **options: "object",
    ):
        self.dialer = dialer
        self.session = session or ClientSession(client_id, **options)  # type: ignore[arg-type]
        self._ticks = dialer.ticks_ms
        self._transport: Transport | None = None
        self._readinto: Callable[[bytearray | memoryview, int], int | None] = _nothing
        self._write: Callable[[Bytes, int, int], int | None] = _nothing
        #: Why the last connection ended: a code of ``headwater.errors``.
        self.status = 0

    @property
    def connected(self) -> bool:
        """Whether the server has accepted this connection and it has not ended."""
        return self.session.state == ONLINE

    @property
    def on_message(self) -> "Callable[[Packet], object] | None":
        """Called with the reusable cursor of each message that arrives."""
        return self.session.on_message

    @on_message.setter
    def on_message(self, handler: "Callable[[Packet], object] | None") -> None:
        self.session.on_message = handler

    @property
    def on_delivered(self) -> "Callable[[int], object] | None":
        """Called with the packet id of each of our messages that the server has acknowledged to its end."""
        return self.session.on_delivered

    @on_delivered.setter
    def on_delivered(self, handler: "Callable[[int], object] | None") -> None:
        self.session.on_delivered = handler

    @property
    def sink(self) -> "Sink | None":
        """Where messages larger than the receive buffer go."""
        return self.session.sink

    @sink.setter
    def sink(self, sink: "Sink | None") -> None:
        self.session.sink = sink

    def connect(self) -> bool:
        """Open the transport, send CONNECT and wait for the answer: whether the server had kept the session.

        Raises OSError when the transport cannot be opened, and HeadwaterError: E_REFUSED
        (``session.return_code`` says why), E_TIMEOUT after the session's ``response_ms``, E_CLOSED,
        E_ARGUMENT or E_TOO_LARGE (CONNECT cannot be built), or what was wrong with the server's answer.
        """
        self.close()
        session = self.session
        transport = self.dialer.open()
        self._transport = transport
        self._readinto = transport.readinto
        self._write = transport.write
        self.status = 0
        bad = session.connect(self._ticks())
        if bad == 0:
            bad = self.poll()
        while bad == 0 and session.state != ONLINE:
            self.dialer.wait(_TURN_MS)
            bad = self.poll()
        if bad < 0:
            self.close()
            self.status = bad
            raise HeadwaterError(bad)
        return self.session_present

    @property
    def session_present(self) -> bool:
        """Whether the server had kept the session when it accepted this connection."""
        return self.session.session_present

    def publish(self, topic: "Bytes", payload: "Bytes", qos: int = 0, retain: bool = False) -> int:
        """Publish; bytes-like arguments allocate nothing.

        0 (QoS 0: handed to the transport or waiting for it), or the packet id (QoS 1, 2: kept until
        acknowledged; ``on_delivered`` tells), or an error as of ``ClientSession.publish``: E_WINDOW means
        poll, and try again.
        """
        if (
            qos == 0
            and topic is self.session.known_topic
            and not self.session.tx_end
            and not self.session.out_n
            and self.session.state == ONLINE
            and isinstance(payload, _PLAIN)
        ):
            # Nothing waits: straight to the transport, the shortest way there is. It is cut into small functions
            # because a board takes a frame of more than 11 words from the heap, and looks long for it.
            return self._publish_now(topic, payload, 0x31 if retain else 0x30)
        return self._publish(topic, payload, qos, retain)

    def _publish_now(self, topic: "Bytes", payload: "Bytes", head: int) -> int:
        n = short_publish(self.session.tx, topic, payload, head)
        if n == 0 or n > self.session.tx_size:
            return self._publish_long(topic, payload, head)
        k = self._write_now(n)
        if k != n:
            return self._keep(n, k)
        self.session.tx_time = self.session.now
        return 0

    def _publish_long(self, topic: "Bytes", payload: "Bytes", head: int) -> int:
        return self._publish(topic, payload, 0, head == 0x31)

    def _write_now(self, n: int) -> int:
        """Send the packet of ``n`` bytes that alone stands in the transmit buffer: how many were taken, or -1."""
        try:
            return self._write(self.session.tx, 0, n) or 0
        except OSError:
            return -1

    def _keep(self, n: int, k: int) -> int:
        """The transport took ``k`` bytes of ``n``, and the rest waits; or it is broken."""
        if k < 0:
            return self._drop(E_CLOSED)
        session = self.session
        session.tx_end = n
        if k:
            session.out()
            session.sent(k)
        return 0

    def _publish(self, topic: "Bytes", payload: "Bytes", qos: int, retain: bool) -> int:
        session = self.session
        status = session.publish(topic, payload, qos, retain)
        if status == E_AGAIN and self._flush() == 0:
            status = session.publish(topic, payload, qos, retain)
        if status >= 0:
            self._flush()
        return status

    def subscribe(self, topic_filter: "Bytes", qos: int = 0) -> int:
        """Ask for the messages of a filter: the request's packet id, or an error of ``ClientSession.subscribe``.

        The answer comes to ``session.on_answer``.
        """
        status = self.session.subscribe(topic_filter, qos)
        if status >= 0:
            self._flush()
        return status

    def unsubscribe(self, topic_filter: "Bytes") -> int:
        """Take a subscription back; as ``subscribe``."""
        status = self.session.unsubscribe(topic_filter)
        if status >= 0:
            self._flush()
        return status

    def poll(self) -> int:
        """Send what waits, take what has arrived, keep the connection alive; never blocks.

        0, or the negative status with which the connection ended; E_OFFLINE when there is none.
        """
        transport = self._transport
        if transport is None:
            return self.status or E_OFFLINE
        session = self.session
        status = self._flush()
        if status:
            return status
        status = session.poll(self._ticks())
        if status:
            return self._drop(status)
        rx = session.rx
        readinto = self._readinto
        for _ in range(_READS):
            if session.stalled:
                status = session.feed(0)
                if self._transport is not transport:
                    return self.status
                if status:
                    return self._drop(status)
            room = rx.window()
            if room == 0:
                break
            try:
                n = readinto(rx.view, room)
            except OSError:
                return self._drop(E_CLOSED)
            if n is None:
                break
            if n == 0:
                return self._drop(E_CLOSED)
            status = session.feed(n)
            if self._transport is not transport:
                # A handler has closed this connection, or has opened another: nothing here is its business.
                return self.status
            if status:
                return self._drop(status)
            # Answers leave together, one write for all that a read brought.
            status = self._flush()
            if status:
                return status
            if n < room:
                break
        else:
            return 0
        return self._flush()

    def wait(self, ms: int) -> int:
        """Poll for ``ms`` milliseconds, idle in between: 0, or the status with which the connection ended."""
        begin = self._ticks()
        while True:
            status = self.poll()
            left = ms - ((self._ticks() - begin) & TICKS_MASK)
            if status or left <= 0:
                return status
            self.dialer.wait(min(left, _TURN_MS))

    def flush(self, timeout_ms: int) -> None:
        """Poll until everything published at QoS 1 and 2 is acknowledged and everything else is sent.

        Raises HeadwaterError: E_TIMEOUT, or the status with which the connection ended.
        """
        session = self.session
        begin = self._ticks()
        while True:
            status = self.poll()
            if status == 0:
                if not session.outbox.count and not session.out():
                    return
                if (self._ticks() - begin) & TICKS_MASK >= timeout_ms:
                    status = E_TIMEOUT
            if status:
                raise HeadwaterError(status)
            self.dialer.wait(_TURN_MS)

    def disconnect(self) -> None:
        """Say DISCONNECT, as far as the transport takes it at once, and close."""
        if self._transport is not None and self._flush() == 0 and self.session.disconnect() == 0:
            self._flush()
        self.close()

    def close(self) -> None:
        """Close the transport without a word: the server then publishes the will."""
        transport = self._transport
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

    def _drop(self, status: int) -> int:
        """The connection is over: give the transport back and say why."""
        if self.session.state == CLOSING:
            status = E_CLOSED
        self.close()
        self.status = status
        return status

    def _flush(self) -> int:
        """Send what can be sent now: 0, or the status with which the connection ended."""
        session = self.session
        write = self._write
        while True:
            n = session.out()
            if n <= 0:
                return self._drop(n) if n else 0
            try:
                k = write(session.out_buf, session.out_at, n)
            except OSError:
                return self._drop(E_CLOSED)
            if not k:
                return 0
            session.sent(k)
            if k < n:
                return 0


def _nothing(*_: object) -> None:
    """Stands for the transport's methods while there is none."""
