"""headwater, with a handler that takes what other clients give: the topic as text and the payload as bytes."""

import bench_headwater


class Bench(bench_headwater.Bench):
    """Only the handler differs."""

    def on_message(self, message):
        self.last = message.topic_text(), message.payload_bytes()
        self.received += 1
