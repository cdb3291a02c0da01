"""A broker for one client, of headwater's own server session, on the simulated wire."""

from headwater.connection import CLOSING
from headwater.mqtt.server import SESSION_PRESENT, ServerSession
from world import wire
from world.clock import clock

ADDRESS = ("10.0.0.2", 1883)
#: Where the receiver of updates reports.
STATE = b"board/update/state"
_TICK_MS = 1000
_MASK = (1 << 30) - 1


class Broker:
    """Takes connections at ``ADDRESS`` and counts what is published: payloads are decimal numbers that go up.

    ``next``: the number that is expected; ``duplicates``: numbers that came again; ``missing``: numbers that did not
    come before a higher one; ``reports``: messages on the topic ``STATE``. ``accepted``, ``arrived``: the times of
    CONNECTs and of the last message.
    """

    def __init__(self):
        self.session = ServerSession(response_ms=10000)
        self.session.on_message = self._message
        self.session.on_connect = self._connect
        self.session.on_subscribe = self._subscribe
        self.up = True
        self.next = 0
        self.duplicates = 0
        self.missing = 0
        self.reports = 0
        self.accepted = 0
        self.accepted_at = 0
        self.arrived_at = 0
        self.subscribed = False
        #: Called with each message's number.
        self.on_arrival = None
        self._peer = None
        wire.listeners[ADDRESS] = self._accept
        #: How often the session is told the time.
        self.tick_ms = _TICK_MS
        clock.at(_TICK_MS, self._tick)

    def kill(self):
        """Stop as a killed process does: connections are reset, the session is forgotten."""
        self.up = False
        self._drop(reset=True)
        self.session.outbox.clear()
        self.session.has_session = self.subscribed = False

    def start(self):
        """Start again."""
        self.up = True

    def online(self):
        """Whether a client is connected."""
        return self._peer is not None and self._peer.open

    def command(self, payload, topic=b"board/command"):
        """Publish a command at QoS 1, for the client if it has subscribed."""
        if self.subscribed:
            self.session.enqueue(topic, payload, 2)
            self._flush()

    def _accept(self, peer):
        if self.up:
            # Whose connection it is, CONNECT says.
            peer.on_data = lambda data: self._first(peer, data)
            peer.on_close = lambda: None
        return self.up

    def _first(self, peer, data):
        if not self.up:
            peer.reset()
            return
        self._drop(reset=False)
        self._peer = peer
        peer.on_data = self._data
        peer.on_close = self._closed
        self.session.listen(clock.now & _MASK)
        self._data(data)

    def _data(self, data):
        session = self.session
        while data:
            room = min(session.rx.window(), len(data))
            session.rx.view[:room] = data[:room]
            data = data[room:]
            if session.feed(room) < 0 or session.state == CLOSING:
                self._flush()
                self._drop(reset=False)
                return
            self._flush()

    def _flush(self):
        session = self.session
        while self._peer is not None:
            n = session.out()
            if n <= 0:
                return
            self._peer.send(bytes(memoryview(session.out_buf)[session.out_at : session.out_at + n]))
            session.sent(n)

    def _closed(self):
        self._peer = None
        self.session.lost()

    def _drop(self, reset):
        peer = self._peer
        if peer is not None:
            self._closed()
            if peer.open:
                peer.reset() if reset else peer.close()

    def _tick(self, _):
        clock.at(self.tick_ms, self._tick)
        if self._peer is not None:
            if self.session.poll(clock.now & _MASK) < 0:
                self._drop(reset=False)
            else:
                self._flush()

    def _connect(self, connect, packet):
        self.accepted += 1
        self.accepted_at = clock.now
        if connect.clean_start() or not self.session.has_session:
            self.subscribed = False
        return SESSION_PRESENT if self.session.has_session else 0

    def _subscribe(self, packet, qos):
        self.subscribed = True
        return qos

    def _message(self, packet):
        if packet.topic_is(STATE):
            self.reports += 1
            return
        number = int(packet.payload_bytes())
        self.arrived_at = clock.now
        if number < self.next:
            self.duplicates += 1
        else:
            self.missing += number - self.next
            self.next = number + 1
        if self.on_arrival is not None:
            self.on_arrival(number)
