"""What the clients under measurement have in common."""

TOPIC = "x/telemetry"
TOPIC_BYTES = b"x/telemetry"
PAYLOAD = b"0123456789abcdef"
CLIENT_ID = "bench-device"
#: Receive buffer, for those that have one.
BUFFER = 512


class Base:
    """One client in one task: ``qos`` and ``window`` are the task's; ``received`` counts delivered messages.

    - ``connect(host, port, clean)`` imports the client and connects it.
    - ``prepare_publish()`` is called once before ``publish``.
    - ``publish(n)`` sends n messages: at QoS 0 until the system has taken all their bytes, at QoS 1 and 2 until all are
      acknowledged, with at most ``window`` unacknowledged.
    - ``subscribe()`` asks for the messages, ``pump()`` lets some of them arrive.
    - ``check()`` raises when what was delivered is not what was sent.

    ``is_timed`` is false while heap is counted: then waiting must be done by the system, not by trying again, which
    for some clients uses heap.
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
    """TCP_NODELAY, which a client that writes a packet in pieces needs to be comparable at all."""
    socket.setsockopt(6, 1, 1)
