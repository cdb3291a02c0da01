"""The clients of MicroPython's umqtt.simple and umqtt.robust.

The port provides the dialer. On a MicroPython board, import this in ``boot.py`` or in the first line of the program:

    import headwater_board.umqtt

Then ``from umqtt.simple import MQTTClient`` and ``from umqtt.robust import MQTTClient`` find these classes, and the
program stays unchanged. On another port, assign ``MQTTClient.dialer``.

Intended differences:

- Nothing blocks forever. Without an answer within ``response_ms``, or on a dead connection with ``keepalive``, methods
  raise OSError(ETIMEDOUT).
- QoS 2 works in both directions. Invalid arguments raise MQTTException with a negative code of ``headwater.errors``; a
  refusal has the server's code, as in umqtt.
- If ``publish`` raises OSError at QoS 1 or 2, the message stays in the outbox and is sent after the next ``connect``.
  Do not publish it again.
- A message is acknowledged when the callback returns. If the callback raises at QoS 1, the message is redelivered on
  the next connection. ``wait_msg`` delivers one message, ``check_msg`` all received messages.
- ``reconnect`` subscribes again if the server has lost the session.
- Messages must fit in ``tx_size`` (QoS 0) or ``outbox_size`` (QoS 1 and 2), attributes of the class that are set before
  the first client is created. Received messages can be as large as the heap allows.

The callback gets copies, so messages allocate, as in umqtt. ``headwater.mqtt.client`` does not allocate.
"""

from headwater.connection import idle
from headwater.errors import (
    CALLER,
    E_AGAIN,
    E_CLOSED,
    E_OFFLINE,
    E_REFUSED,
    E_RX_WINDOW,
    E_TIMEOUT,
    E_WINDOW,
    ROOM,
    HeadwaterError,
    blame,
)
from headwater.mqtt.client import Client
from headwater.mqtt.manual_ack import ManualAck
from headwater.streaming import stream_to
from headwater.wire import TICKS_MASK, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from headwater.mqtt.packets import Packet
    from headwater.types import Bytes, Dialer

_TURN_MS = const(50)
_QOS_1 = const(1)
#: errno, where MicroPython's ports and Linux agree: ENOTCONN, ETIMEDOUT, ECONNRESET, ENOBUFS; EPROTO for any other.
_ERRNO = {E_OFFLINE: 107, E_TIMEOUT: 110, E_CLOSED: 104, E_RX_WINDOW: 105}
_EPROTO = const(71)


class MQTTException(Exception):  # noqa: N818
    """The server's return code, or a negative code of ``headwater.errors`` for an invalid argument."""


class MQTTClient:
    """``umqtt.simple.MQTTClient``. ``port`` 0: 1883, with ``ssl`` 8883. ``keepalive``: seconds, 0 for none."""

    rx_size = 512
    tx_size = 1024
    outbox_size = 2048
    #: Milliseconds that the server may take to answer.
    response_ms = 10000
    #: The number of messages that may wait for a callback to return. Beyond that, messages at QoS 0 are dropped. At
    #: QoS 1 ``unacknowledged`` more may wait, at QoS 2 as many as the session's ``receive_window``. Further ones are
    #: not accepted, and the connection ends when the callback returns. The server retransmits them on the next
    #: connection if it keeps the session.
    queue = 16
    unacknowledged = 64

    def __init__(
        self,
        client_id: "str | Bytes",
        server: str,
        port: int = 0,
        user: "str | Bytes | None" = None,
        password: "str | Bytes | None" = None,
        keepalive: int = 0,
        ssl: "Any" = None,
        ssl_params: "dict[str, Any] | None" = None,
    ):
        if port == 0:
            port = 8883 if ssl else 1883
        self.client_id = client_id
        self.sock: Any = None
        self.server = server
        self.port = port
        self.keepalive = keepalive
        self.cb: Callable[[bytes, bytes], object] | None = None
        self._client = Client(
            self.dialer(server, port, ssl, ssl_params or {}),
            _bytes(client_id),
            keep_alive=keepalive,
            user=None if user is None else _bytes(user),
            password=None if password is None else _bytes(password),
            rx_size=self.rx_size,
            tx_size=self.tx_size,
            outbox_size=self.outbox_size,
            response_ms=self.response_ms,
        )
        session = self._session = self._client.session
        self._acks = ManualAck(session, defer_excess_qos2=True)
        session.on_message = self._arrived
        session.on_delivered = self._delivered
        session.on_answer = self._answered
        stream_to(session, self)
        #: The number of dropped messages at QoS 0; True if a message at QoS 1 was not accepted.
        self.dropped = 0
        self._missed = False
        # Received messages: (topic, payload, QoS, packet identifier, epoch).
        self._inbox: list[tuple[bytes, bytes, int, int, int]] = []
        self._undelivered: set[int] = set()
        self._answers: dict[int, int] = {}
        self._filters: dict[bytes, int] = {}
        self._calling = False
        self._pinged_at: int | None = None
        self._large: tuple[bytes, bytearray, int, int, int] | None = None
        self._large_at = 0

    @staticmethod
    def dialer(server: str, port: int, ssl: "Any", ssl_params: "dict[str, Any]") -> "Dialer":
        """Return a dialer; the port assigns its own function (a ``staticmethod``)."""
        raise RuntimeError("no dialer: import headwater_board.umqtt first, or assign MQTTClient.dialer")

    # -- umqtt.simple --------------------------------------------------------------------------------------------------

    def set_callback(self, f: "Callable[[bytes, bytes], object]") -> None:
        """Set the callback ``f(topic, msg)``; both arguments are bytes."""
        self.cb = f

    def set_last_will(
        self, topic: "str | Bytes", msg: "str | Bytes", retain: bool = False, qos: int = 0
    ) -> None:
        """Set the will message: published by the server if the client disconnects unexpectedly."""
        _check(self._session.set_will(_bytes(topic), _bytes(msg), qos, retain))

    def connect(self, clean_session: bool = True, timeout: "float | None" = None) -> int:
        """Connect. Return 1 if the server has kept the session. Raises OSError; MQTTException if the server refuses.

        ``timeout``, in seconds, is the limit for connecting and for every later answer.
        """
        session = self._session
        if timeout:
            session.response_ms = int(timeout * 1000)
            if hasattr(self._client.dialer, "timeout_ms"):
                self._client.dialer.timeout_ms = session.response_ms
        session.clean_start = bool(clean_session)
        session.keep_alive = self.keepalive
        # Messages at QoS 1 are redelivered.
        self._inbox = [one for one in self._inbox if one[2] != _QOS_1]
        self._missed = False
        self._pinged_at = None
        self.sock = None
        try:
            present = self._client.connect()
        except HeadwaterError as e:
            raise _error(e.code, session.return_code)
        self.sock = self._client.transport
        if clean_session:
            self._filters.clear()
        elif not present:
            for topic_filter in self._filters:
                self.subscribe(topic_filter, self._filters[topic_filter])
        return 1 if present else 0

    def disconnect(self) -> None:
        """Send DISCONNECT and close."""
        self._client.disconnect()
        self.sock = None

    def ping(self) -> None:
        """Send PINGREQ. ``wait_msg`` and ``check_msg`` receive the answer, and raise OSError if none arrives."""
        self._poll()
        if self._client.ping() == 0:
            self._pinged_at = self._session.now
        self._poll()

    def publish(self, topic: "str | Bytes", msg: "str | Bytes", retain: bool = False, qos: int = 0) -> None:
        """Publish and wait until the message is sent (QoS 0) or acknowledged (QoS 1, 2)."""
        packet_id = self._enqueue(_bytes(topic), _bytes(msg), retain, qos)
        if packet_id:
            self._until(self._has_been_delivered, packet_id)
        else:
            self._until(self._has_been_sent, 0)

    def subscribe(self, topic: "str | Bytes", qos: int = 0) -> None:
        """Subscribe and wait for the answer. Raises MQTTException(128) if the server refuses."""
        topic = _bytes(topic)
        self._ask(self._client.subscribe, topic, qos)
        self._filters[topic] = qos

    def unsubscribe(self, topic: "str | Bytes") -> None:
        """Unsubscribe and wait for the answer."""
        topic = _bytes(topic)
        self._filters.pop(topic, None)
        self._ask(self._client.unsubscribe, topic)

    def wait_msg(self) -> "int | None":
        """Wait for one message and deliver it. Return its packet's first byte, or None for the answer to a ``ping``."""
        while not self._inbox:
            self._poll()
            if self._inbox:
                break
            if self._pinged_at is not None and not self._client.pinged:
                self._pinged_at = None
                return None
            idle(self._client, _TURN_MS)
        return self._call_back()

    def check_msg(self) -> "int | None":
        """Deliver all received messages. Return the first byte of the last packet, or None."""
        head = None
        if not self._inbox:
            self._poll()
        while self._inbox:
            head = self._call_back()
        return head

    # -- internals -----------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        """Receive available messages. Raises OSError if the connection has ended."""
        client = self._client
        session = self._session
        # ``_take`` stops reading: outside of a callback the inbox has only messages from one receive buffer.
        client.reading = True
        status = client.poll()
        client.reading = True
        if status == 0 and (self._missed or self._acks.excess) and not (self._calling or self._inbox):
            client.close()
            status = E_RX_WINDOW
        if status == 0 and self._pinged_at is not None and client.pinged:
            now = session.now
            if session.response_ms <= min(
                (now - self._pinged_at) & TICKS_MASK, (now - session.rx_time) & TICKS_MASK
            ):
                client.close()
                status = E_TIMEOUT
        if status:
            self.sock = None
            raise _error(status, 0)

    def _until(self, done: "Callable[[int], bool]", what: int) -> None:
        """Poll until ``done(what)`` is true. Deliver received messages, except from within a callback."""
        begin = self._client.dialer.ticks_ms()
        while True:
            self._poll()
            while self._inbox and not self._calling:
                self._call_back()
            if done(what):
                return
            if (self._client.dialer.ticks_ms() - begin) & TICKS_MASK >= self._session.response_ms:
                raise _error(E_TIMEOUT, 0)
            idle(self._client, _TURN_MS)

    def _has_been_delivered(self, packet_id: int) -> bool:
        return packet_id not in self._undelivered

    def _has_been_sent(self, _: int) -> bool:
        return self._session.out() <= 0

    def _has_been_answered(self, packet_id: int) -> bool:
        return packet_id in self._answers

    def _has_room(self, _: int) -> bool:
        return self._session.out() <= 0 and self._session.outbox.count < self._session.outbox.slots

    def _enqueue(self, topic: bytes, msg: bytes, retain: bool, qos: int) -> int:
        while True:
            status = self._client.publish(topic, msg, qos, retain)
            if status not in (E_AGAIN, E_WINDOW):
                break
            self._until(self._has_room, 0)
        _check(status)
        if status:
            self._undelivered.add(status)
        return status

    def _ask(self, request: "Callable[..., int]", *arguments: object) -> None:
        status = request(*arguments)
        while status == E_AGAIN:
            self._until(self._has_been_sent, 0)
            status = request(*arguments)
        _check(status)
        self._until(self._has_been_answered, status)
        code = self._answers.pop(status)
        if code & 0x80:
            raise MQTTException(code)

    def _call_back(self) -> int:
        topic, msg, qos, packet_id, epoch = self._inbox.pop(0)
        calling = self._calling
        self._calling = True
        try:
            if self.cb is not None:
                self.cb(topic, msg)
        except BaseException:
            if qos == _QOS_1:
                # Unacknowledged, so that the server redelivers it.
                qos = 0
            raise
        finally:
            self._calling = calling
            if qos and self._acks.acknowledge(packet_id, qos, epoch) == E_AGAIN:
                self._until(self._has_been_sent, 0)
                self._acks.acknowledge(packet_id, qos, epoch)
        if qos:
            self._client.poll()
        return 0x30 | qos << 1

    def _arrived(self, m: "Packet") -> None:
        self._take(m.topic_bytes(), m.payload_bytes(), m.qos(), m.packet_id, self._session.epoch)

    def _take(self, topic: bytes, msg: bytes, qos: int, packet_id: int, epoch: int) -> None:
        self._client.reading = False
        if self._calling and len(self._inbox) >= self.queue:
            # The callback may wait for an answer that follows this message, and the inbox stays full until then.
            if qos == 0:
                self.dropped += 1
                return
            if len(self._inbox) >= self.queue + self.unacknowledged:
                self._missed = True
        if qos == 1 and self._missed:
            return
        self._inbox.append((topic, msg, qos, packet_id, epoch))

    def _delivered(self, packet_id: int) -> None:
        self._undelivered.discard(packet_id)

    def _answered(self, packet_id: int, code: int) -> None:
        self._answers[packet_id] = code

    # -- the sink of messages that are larger than the buffer ----------------------------------------------------------

    def open(self, m: "Packet", size: int) -> bool:
        """Start a large message (``headwater.types.Sink``). Return False if it does not fit in the heap."""
        try:
            self._large = (m.topic_bytes(), bytearray(size), m.qos(), m.packet_id, self._session.epoch)
        except MemoryError:
            return False
        self._large_at = 0
        return True

    def write(self, buf: "Bytes", at: int, n: int) -> None:
        """Take the next ``n`` bytes (``headwater.types.Sink``)."""
        if self._large is not None:
            self._large[1][self._large_at : self._large_at + n] = buf[at : at + n]
            self._large_at += n

    def close(self, complete: bool) -> None:
        """End a large message (``headwater.types.Sink``)."""
        large = self._large
        self._large = None
        if complete and large is not None:
            topic, msg, qos, packet_id, epoch = large
            self._take(topic, bytes(msg), qos, packet_id, epoch)


class RobustMQTTClient(MQTTClient):
    """``umqtt.robust.MQTTClient``: reconnects while it publishes and waits."""

    #: Seconds between two attempts.
    DELAY = 2
    DEBUG = False

    def delay(self, i: int) -> None:
        """Wait before attempt ``i``; may be overridden."""
        dialer = self._client.dialer
        begin = dialer.ticks_ms()
        left = int(self.DELAY * 1000)
        while left > 0:
            dialer.wait(left)
            left = int(self.DELAY * 1000) - ((dialer.ticks_ms() - begin) & TICKS_MASK)

    def log(self, in_reconnect: bool, e: BaseException) -> None:
        """Print an error if ``DEBUG`` is set; may be overridden."""
        if self.DEBUG:
            print("mqtt reconnect:" if in_reconnect else "mqtt:", repr(e))

    def reconnect(self) -> int:
        """Reconnect to the session until it succeeds."""
        i = 0
        while True:
            try:
                return self.connect(False)
            except OSError as e:
                self.log(True, e)
                i += 1
                self.delay(i)

    def publish(self, topic: "str | Bytes", msg: "str | Bytes", retain: bool = False, qos: int = 0) -> None:
        """Publish as ``MQTTClient.publish`` does, reconnecting if needed; at QoS 2 exactly once."""
        packet_id = 0
        while True:
            try:
                if packet_id == 0:
                    packet_id = self._enqueue(_bytes(topic), _bytes(msg), retain, qos)
                self._until(self._has_been_delivered if packet_id else self._has_been_sent, packet_id)
                return
            except OSError as e:
                self.log(False, e)
                self.reconnect()

    def wait_msg(self) -> "int | None":
        """Wait for one message as ``MQTTClient.wait_msg`` does, reconnecting if needed."""
        while True:
            try:
                return super().wait_msg()
            except OSError as e:
                self.log(False, e)
                self.reconnect()

    def check_msg(self, attempts: int = 2) -> "int | None":
        """Deliver messages as ``MQTTClient.check_msg`` does; reconnect at most ``attempts`` times."""
        while attempts > 0:
            try:
                return super().check_msg()
            except OSError as e:
                self.log(False, e)
                self.reconnect()
                attempts -= 1
        return None


def _bytes(text: "str | Bytes") -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)


def _check(status: int) -> None:
    if status < 0:
        raise _error(status, 0)


def _error(status: int, return_code: int) -> Exception:
    """Return the exception that umqtt would raise: OSError if reconnecting may help, otherwise MQTTException."""
    if status == E_REFUSED:
        return MQTTException(return_code)
    if status not in _ERRNO and blame(status) in (CALLER, ROOM):
        return MQTTException(status)
    return OSError(_ERRNO.get(status, _EPROTO))
