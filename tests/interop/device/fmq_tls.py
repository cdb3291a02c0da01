"""FMQ over TLS on MicroPython: ``PORT CA TOPIC``. Publishes at each QoS and says what was stored."""

import sys

from headwater.fmq.client import Client
from headwater_board.tls import Tls

port, ca, topic = sys.argv[1:]
delivered: list[int] = []
client = Client(Tls("127.0.0.1", int(port), ca=ca), b"board", clean_start=False)
client.on_delivered = delivered.append
client.connect()
for qos in (0, 1, 2):
    assert client.publish(topic.encode(), b"%d" % qos, qos) >= 0
client.flush(30000)
client.disconnect()
print("stored", delivered)
