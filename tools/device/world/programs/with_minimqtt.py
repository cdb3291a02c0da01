import socket
import time

import network
from adafruit_minimqtt.adafruit_minimqtt import MQTT, MMQTTException
from world.rig import HOST, PASSWORD, SSID

n = commands = 0


class Socket:
    def __init__(self, family, kind):
        self.socket = s = socket.socket(family, kind)
        self.settimeout, self.send, self.close = s.settimeout, s.send, s.close

    def connect(self, address):
        self.socket.connect(socket.getaddrinfo(address[0], address[1])[0][-1])

    def recv_into(self, buffer, size):
        data = self.socket.recv(size)
        buffer[: len(data)] = data
        return len(data)


class Pool:
    SOCK_STREAM = socket.SOCK_STREAM
    socket = Socket

    def getaddrinfo(self, host, port, family, kind):
        return [(socket.AF_INET, kind, 0, "", (host, port))]


def received(client, topic, message):
    global commands
    commands += 1


def connected(client, userdata, flags, code):
    client.subscribe("board/command", 1)


def run():
    global n
    wlan = network.WLAN(network.STA_IF)
    wlan.active(True)
    wlan.connect(SSID, PASSWORD)
    while not wlan.isconnected():
        time.sleep(1)
    client = MQTT(broker=HOST, client_id="board", socket_pool=Pool(), keep_alive=30, socket_timeout=0.2)
    client.on_message = received
    client.on_connect = connected
    client.connect(clean_session=False)
    while True:
        try:
            client.loop(0.5)
            client.publish("board/n", "%08d" % n, False, 1)
            n += 1
            time.sleep(0.5)
        except (MMQTTException, OSError):
            time.sleep(5)
            try:
                if not wlan.isconnected():
                    wlan.connect(SSID, PASSWORD)
                    for _ in range(20):
                        if not wlan.isconnected():
                            time.sleep(1)
                client.reconnect()
            except (MMQTTException, OSError):
                pass
