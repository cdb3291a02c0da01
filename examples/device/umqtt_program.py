"""A program written for umqtt.simple, as it was. `boot.py` has the one line that is new."""

import time

import network
from umqtt.simple import MQTTClient

wlan = network.WLAN(network.STA_IF)
wlan.active(True)
wlan.connect("workshop", "correct horse")
while not wlan.isconnected():
    time.sleep_ms(100)


def on_message(topic: bytes, message: bytes) -> None:
    """Print a message."""
    print(topic, message)


client = MQTTClient("board-1", "broker.local", keepalive=30)
client.set_callback(on_message)
client.connect(clean_session=False)
client.subscribe(b"board-1/commands", qos=1)
n = 0
while True:
    client.check_msg()
    client.publish(b"board-1/count", str(n).encode(), qos=1)
    n += 1
    time.sleep(1)
