"""headwater, as a board runs it."""

import common


class Bench(common.Base):
    """The handler gets a view of the receive buffer; `bench_headwater_copies` copies."""

    def connect(self, host, port, clean):
        from headwater_board.tcp import Tcp

        self.client = client = self.face()(
            Tcp(host, port),
            common.CLIENT_ID.encode(),
            clean_start=clean,
            rx_size=common.BUFFER,
            tx_size=common.BUFFER,
            slots=self.window,
            window=self.window,
            receive_window=20,
        )
        client.on_message = self.on_first
        client.connect()

    def face(self):
        from headwater.mqtt.client import Client

        return Client

    def on_first(self, message):
        """Keep the first messages for `check`."""
        self.received += 1
        self.last = message.topic_bytes(), message.payload_bytes()
        self.client.on_message = self.on_message

    def on_message(self, message):
        self.received += 1

    def publish(self, n):
        client = self.client
        publish = client.publish
        poll = client.poll
        topic = common.TOPIC_BYTES
        payload = common.PAYLOAD
        qos = self.qos
        sent = 0
        while sent < n:
            if publish(topic, payload, qos) >= 0:
                sent += 1
            else:
                poll()
        session = client.session
        while session.outbox.count or session.out():
            poll()

    def subscribe(self):
        self.client.subscribe(common.TOPIC_BYTES, self.qos)

    def pump(self):
        if self.client.poll():
            raise OSError(self.client.status)
