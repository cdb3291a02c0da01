"""Send a reading every ten seconds, and install updates of this program that arrive over MQTT.

This is ``app.py``; ``main.py`` starts it with ``headwater_board.loader``.
"""

import gc

import machine

from headwater.mqtt.client import Client
from headwater.mqtt.keeper import Keeper
from headwater_board.ota import Receiver, read_key
from headwater_board.tcp import Tcp
from headwater_board.watchdog import Watchdog
from headwater_board.wifi import Wifi

VERSION = "1.0"

watchdog = Watchdog()
client = Client(Tcp("broker.local"), b"shed", clean_start=False)
keeper = Keeper(client, network=Wifi([("workshop", "correct horse")]))
update = Receiver(keeper, b"boards/shed/update", read_key("/update.key"), "shed", restart=machine.reset)
client.on_message = lambda message: update.take(message) or print(message.topic_text())
keeper.subscribe(update.topic, 1)
keeper.start()
print("version", VERSION)
while True:
    keeper.publish(b"boards/shed/heap", b"%d" % gc.mem_free(), 1)
    for _ in range(100):
        watchdog.fed(keeper.wait(100))
        update.poll()
