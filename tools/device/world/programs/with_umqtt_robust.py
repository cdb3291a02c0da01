import time

import network
from umqtt.robust import MQTTClient
from world.rig import HOST, PASSWORD, SSID

n = commands = 0


class Client(MQTTClient):
    def connect(self, clean_session=True):
        if not super().connect(clean_session):
            self.subscribe(b"board/command", 1)


def received(topic, message):
    global commands
    commands += 1


def run():
    global n
    wlan = network.WLAN(network.STA_IF)
    wlan.active(True)
    wlan.connect(SSID, PASSWORD)
    while not wlan.isconnected():
        time.sleep(1)
    client = Client("board", HOST, keepalive=30)
    client.set_callback(received)
    client.connect(clean_session=False)
    while True:
        client.check_msg()
        client.publish(b"board/n", b"%08d" % n, qos=1)
        n += 1
        time.sleep(1)
