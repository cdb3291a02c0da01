import time

from headwater.errors import HeadwaterError
from headwater.fmq.client import Client
from headwater.fmq.numbers import put_float
from headwater.fmq.spec import MAP
from headwater.fmq.values import put_count, put_int, put_text
from headwater_board.tcp import Tcp

payload = bytearray(64)
view = memoryview(payload)


def sample() -> memoryview:
    """Encode a Map that conditions can use: ``celsius > 25``."""
    at = put_count(payload, 0, 64, MAP, 2)
    at = put_text(payload, at, 64, b"celsius")
    at = put_float(payload, at, 64, 21.5)
    at = put_text(payload, at, 64, b"time")
    at = put_int(payload, at, 64, int(time.time()))
    return view[:at]


client = Client(Tcp("hub.local", 7760), b"board-1", clean_start=False)
client.on_message = lambda frame: print(frame.topic_text(), frame.payload_bytes())
client.on_delivered = lambda number: print("stored", number)
while True:
    try:
        client.connect()
        client.subscribe(b"board-1/commands")
        while client.wait(1000) == 0:
            client.publish(b"board-1/telemetry", sample(), 1)
    except (OSError, HeadwaterError) as error:
        print("reconnecting in 1 s:", error)
        time.sleep(1)
