"""The base class of the measured clients."""

TOPIC = "x/telemetry"
TOPIC_BYTES = b"x/telemetry"
PAYLOAD = b"0123456789abcdef"
CLIENT_ID = "bench-device"
#: Receive buffer of clients that have one.
BUFFER = 512


class Base:
    """One client in one task. `qos` and `window` are the task's; `received` counts delivered messages.

    - `connect(host, port, clean)` imports the client and connects it.
    - `prepare_publish()` is called once before `publish`.
    - `publish(n)` sends n messages: at QoS 0 until the system has accepted all bytes, at QoS 1 and 2 until all are
      acknowledged, with at most `window` in flight.
    - `subscribe()` subscribes, `pump()` receives some messages.
    - `check()` raises if delivered messages differ from those sent.

    `is_timed` is false while heap is counted: the system must do the waiting then, because polling uses heap in
    some clients.
    """

    is_timed = True

    def __init__(self, qos, window):
        self.qos = qos
        self.window = window
        self.received = 0
        self.last = None

    def prepare_publish(self):
        pass

    def check(self):
        if self.received:
            topic, payload = self.last
            if isinstance(topic, bytes):
                topic = topic.decode()
            if (topic, bytes(payload)) != (TOPIC, PAYLOAD):
                raise ValueError("delivered %r, %r" % (topic, payload))


def no_delay(socket):
    """Set TCP_NODELAY; clients that write a packet in pieces are not comparable without it."""
    socket.setsockopt(6, 1, 1)
