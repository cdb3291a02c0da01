import time

from headwater.client import Client
from headwater.errors import HeadwaterError
from headwater_board.tcp import Tcp

client = Client(Tcp("broker.local"), b"board-1", clean=False)
client.on_message = lambda message: print(message.topic_text(), message.payload_bytes())
while True:
    try:
        client.connect()
        client.subscribe(b"board-1/commands", 1)
        while client.wait(1000) == 0:
            client.publish(b"board-1/uptime", str(time.ticks_ms()).encode(), 1)
    except (OSError, HeadwaterError) as error:
        print("again in a second:", error)
        time.sleep(1)
