"""chumicro-mqtt, used as documented: `handle` once per turn of the loop."""

import select
import time

import common


class Bench(common.Base):
    """QoS 0 and 1."""

    def connect(self, host, port, clean):
        from chumicro_mqtt import MQTTClient
        from chumicro_timing import ticks_ms

        self.ticks_ms = ticks_ms
        self.client = client = MQTTClient.from_config(
            {"mqtt.broker.host": host, "mqtt.broker.port": port, "mqtt.client_id": common.CLIENT_ID},
            rx_buffer_size=common.BUFFER,
            clean_session=clean,
        )
        client.on_message = self.on_message
        client.connect()
        while client.state != "connected":
            if client.last_error:
                raise client.last_error
            client.handle(ticks_ms())
            time.sleep_ms(1)
        # Its socket's wrapper, and the socket.
        socket = client.io_socket.sock
        common.no_delay(socket)
        self.poll = select.poll()
        self.poll.register(socket, select.POLLIN)
        self.acked = 0

    def on_message(self, topic, payload):
        self.received += 1
        self.last = topic, payload

    def on_publish(self, topic, payload):
        self.acked += 1

    def prepare_publish(self):
        if self.qos:
            self.client.on_publish = self.on_publish

    def publish(self, n):
        client = self.client
        handle = client.handle
        ticks_ms = self.ticks_ms
        if self.qos == 0:
            for _ in range(n):
                client.publish(common.TOPIC, common.PAYLOAD)
                handle(ticks_ms())
            while client.io_interest(0) & 2:
                handle(ticks_ms())
        else:
            sent = 0
            window = self.window
            begin = self.acked
            while self.acked - begin < n:
                if sent < n and sent - (self.acked - begin) < window:
                    client.publish(common.TOPIC, common.PAYLOAD, qos=1)
                    sent += 1
                elif not self.is_timed:
                    self.poll.poll(1000)
                handle(ticks_ms())
        if client.state != "connected":
            raise client.last_error

    def subscribe(self):
        self.client.subscribe(common.TOPIC, self.qos)

    def pump(self):
        if not self.is_timed:
            self.poll.poll(1000)
        self.client.handle(self.ticks_ms())
        if self.client.state != "connected":
            raise self.client.last_error
