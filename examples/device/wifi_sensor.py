"""Publish a reading every ten seconds over WiFi: a sensor with a power supply."""

import json

from machine import ADC, Pin

from headwater.mqtt.client import Client
from headwater.mqtt.keeper import Keeper
from headwater_board.boots import Boots
from headwater_board.flash import flash_outbox
from headwater_board.tcp import Tcp
from headwater_board.watchdog import Watchdog
from headwater_board.wifi import Wifi

NETWORKS = [("workshop", "correct horse"), ("workshop-2", "correct horse")]
# A pin of the first analog-to-digital converter: 26 to 28 on RP2, 32 to 39 on ESP32.
PIN = 26

boots = Boots()
watchdog = Watchdog()
adc = ADC(Pin(PIN))
client = Client(Tcp("broker.local"), b"board-1", clean_start=False, outbox=flash_outbox("/outbox.hwj"))
# If the WiFi driver fails for good, the reason is on flash before the board is reset.
keeper = Keeper(client, network=Wifi(NETWORKS, reset=lambda: boots.reset("network")))
keeper.on_online = lambda session_present: print("online")
keeper.on_offline = lambda status: print("offline")
keeper.publish(b"board-1/boot", boots.report("board-1"), 1)
keeper.start()
while True:
    reading = {"board": "board-1", "boot": boots.boot, "seq": boots.next_seq(), "level": adc.read_u16()}
    if keeper.publish(b"board-1/level", json.dumps(reading).encode(), 1) < 0:
        print("the outbox is full; a reading is lost")
    for _ in range(100):
        watchdog.fed(keeper.wait(100))
