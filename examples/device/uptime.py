import json
import os
import time

from headwater.errors import HeadwaterError
from headwater.mqtt.client import Client
from headwater_board.tcp import Tcp

# Replace localhost with your broker's name or address.
client = Client(Tcp("localhost"), b"board-1", clean_start=False)
client.on_message = lambda message: print(message.topic_text(), message.payload_bytes())
boot, seq = int.from_bytes(os.urandom(6), "big"), 0
while True:
    try:
        client.connect()
        client.subscribe(b"board-1/commands", 1)
        while client.wait(1000) == 0:
            reading = {"board": "board-1", "boot": boot, "seq": seq, "uptime_ms": time.ticks_ms()}
            client.publish(b"board-1/uptime", json.dumps(reading).encode(), 1)
            seq += 1
    except (OSError, HeadwaterError) as error:
        print("reconnecting in 1 s:", error)
        time.sleep(1)
