"""headwater's FMQ client, as a board runs it."""

import bench_headwater
import common


class Bench(bench_headwater.Bench):
    """The client has the interface of MQTT's; subscriptions have no QoS."""

    def face(self):
        from headwater.fmq.client import Client

        return Client

    def subscribe(self):
        self.client.subscribe(common.TOPIC_BYTES)
