"""Measure, publish, sleep for ten minutes: a sensor on a battery."""

# First, because the time awake counts from here.
from headwater_board import sleep  # isort: split

import json

from machine import ADC, Pin

from headwater.mqtt.client import Client
from headwater.mqtt.keeper import Keeper
from headwater_board.boots import Boots
from headwater_board.flash import flash_outbox
from headwater_board.resolver import Resolver
from headwater_board.tcp import Tcp
from headwater_board.wifi import Wifi

NETWORKS = [("workshop", "correct horse")]
# A pin of the first analog-to-digital converter: 26 to 28 on RP2, 32 to 39 on ESP32.
PIN = 26

boots = Boots()
resolver = Resolver(addresses=sleep.load_addresses())
client = Client(
    Tcp("broker.local", resolver=resolver), b"meter-7", clean_start=False, outbox=flash_outbox("/outbox.hwj")
)
keeper = Keeper(client, network=Wifi(NETWORKS))
reading = {"board": "meter-7", "boot": boots.boot, "seq": boots.next_seq(), "level": ADC(Pin(PIN)).read_u16()}
keeper.publish(b"meter-7/level", json.dumps(reading).encode(), 1)
sleep.cycle(keeper, 600000, boots=boots, resolver=resolver)
