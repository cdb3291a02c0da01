"""aiomqttc, in asyncio."""

import asyncio

import common


def silent(*_):
    """Replace its log, which prints a line for each acknowledgement with a clock that this build lacks."""


class Bench(common.Base):
    """QoS 0 and 1. It polls for acknowledgements every 100 ms; several publishers may wait at once."""

    def connect(self, host, port, clean):
        import aiomqttc

        aiomqttc.log = silent
        self.run = asyncio.get_event_loop().run_until_complete
        self.client = client = aiomqttc.MQTTClient(common.CLIENT_ID, host, port, clean_session=clean)
        client.on_message = self.on_message
        if not self.run(client.connect()):
            raise OSError("not connected")
        common.no_delay(client.protocol.stream.writer.s)

    async def on_message(self, client, topic, payload, retain):
        self.received += 1
        self.last = topic, payload

    async def publish_n(self, n):
        publish = self.client.publish
        for _ in range(n):
            if not await publish(common.TOPIC, common.PAYLOAD, self.qos):
                raise OSError("not published")

    async def publish_window(self, n):
        each = n // self.window
        await asyncio.gather(*[self.publish_n(each) for _ in range(self.window)])
        await self.publish_n(n - each * self.window)

    def publish(self, n):
        self.run(self.publish_n(n) if self.window <= 1 else self.publish_window(n))

    def subscribe(self):
        self.run(self.client.subscribe(common.TOPIC, self.qos))

    async def rest(self):
        await asyncio.sleep_ms(20 if self.is_timed else 1)

    def pump(self):
        # Its own task receives in the meantime.
        self.run(self.rest())
