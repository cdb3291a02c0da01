"""Publish a reading every five seconds, and print the commands that arrive: the program of the first tutorial."""

import gc
import time

from headwater_board.device import Device

device = Device()  # from /headwater.json
device.on_message = lambda message: print(message.topic_text(), message.payload_bytes())
device.on_online = lambda session_present: print("online")
device.subscribe(b"board-1/commands", 1)
with device:
    while device.wait(5000) == 0:
        device.send({"uptime_ms": time.ticks_ms(), "heap_free": gc.mem_free()})
