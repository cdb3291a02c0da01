"""A program that connects to WiFi once: on RP2, nobody connects again."""

import time

import network
from world.rig import HOST, PASSWORD, SSID

from headwater.mqtt.client import Client
from headwater.mqtt.keeper import Keeper
from headwater_board.tcp import Tcp

n = commands = 0


def run():
    global n
    wlan = network.WLAN(network.STA_IF)
    wlan.active(True)
    wlan.connect(SSID, PASSWORD)
    while not wlan.isconnected():
        time.sleep(1)
    keeper = Keeper(Client(Tcp(HOST), b"board", clean_start=False, keep_alive=30))
    keeper.start()
    while True:
        if keeper.publish(b"board/n", b"%08d" % n, 1) >= 0:
            n += 1
        keeper.wait(1000)
