"""headwater with a handler that copies, as other clients do: the topic as text and the payload as bytes."""

import bench_headwater


class Bench(bench_headwater.Bench):
    """headwater with another handler."""

    def on_message(self, message):
        self.last = message.topic_text(), message.payload_bytes()
        self.received += 1
