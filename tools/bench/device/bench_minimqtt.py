"""MiniMQTT (adafruit-circuitpython-minimqtt) over a socket pool made of MicroPython's sockets.

Its annotations need the modules in `shims`, which contain names only.
"""

import socket

import common


class PoolSocket:
    """CircuitPython's socket with MicroPython's own methods, so that the wrapper costs nothing."""

    def __init__(self, family, kind):
        self.s = s = socket.socket(family, kind)
        self.send = s.send
        self.recv_into = s.readinto
        self.close = s.close

    def settimeout(self, seconds):
        # It stays blocking: the measurement ends before messages run out.
        pass

    def connect(self, address):
        self.s.connect(socket.getaddrinfo(address[0], address[1])[0][-1])
        common.no_delay(self.s)


class Pool:
    """The interface of `socketpool.SocketPool`."""

    SOCK_STREAM = socket.SOCK_STREAM
    socket = PoolSocket

    def getaddrinfo(self, host, port, family, kind):
        return [(socket.AF_INET, kind, 0, "", (host, port))]


class Bench(common.Base):
    """QoS 0 and 1; publishing at QoS 1 waits for the acknowledgement."""

    def connect(self, host, port, clean):
        from adafruit_minimqtt.adafruit_minimqtt import MQTT

        self.client = client = MQTT(
            broker=host,
            port=port,
            client_id=common.CLIENT_ID,
            socket_pool=Pool(),
            socket_timeout=0,
            use_binary_mode=True,
        )
        client.on_message = self.on_message
        client.connect(clean_session=clean)

    def on_message(self, client, topic, payload):
        self.received += 1
        self.last = topic, payload

    def publish(self, n):
        publish = self.client.publish
        qos = self.qos
        for _ in range(n):
            publish(common.TOPIC, common.PAYLOAD, False, qos)

    def subscribe(self):
        self.client.subscribe(common.TOPIC, self.qos)

    def pump(self):
        # One message per call: with a timeout of 0 the loop ends after one millisecond.
        self.client.loop(0)
