"""Publish over a UART to a gateway: messages, log records, and the gateway's time on one line."""

import gc
import json

from headwater.mqtt.client import Client
from headwater.mqtt.keeper import Keeper
from headwater_board.boots import Boots
from headwater_board.clock import is_set, unix_ms
from headwater_board.flash import flash_outbox
from headwater_board.logs import WARNING, LogRing
from headwater_board.serial import Serial
from headwater_board.service import Service
from headwater_board.watchdog import Watchdog

boots = Boots()
watchdog = Watchdog()
log = LogRing()
serial = Serial(1, tx=4, rx=5, channels=2)
service = Service(serial, log)
outbox = flash_outbox("/outbox.hwj")
keeper = Keeper(Client(serial, b"board-7", clean_start=False, outbox=outbox))
keeper.publish(b"board-7/boot", boots.report("board-7"), 1)
log.write(WARNING, b"started: " + boots.cause.encode())
keeper.start()
while True:
    for _ in range(100):
        watchdog.fed(keeper.wait(10))
        service.poll()
    reading = {"board": "board-7", "boot": boots.boot, "seq": boots.next_seq(), "free": gc.mem_free()}
    if is_set():
        reading["t"] = unix_ms() * 1000
    if keeper.publish(b"board-7/heap", json.dumps(reading).encode(), 1) < 0:
        log.write(WARNING, b"the outbox is full; a reading is lost")
