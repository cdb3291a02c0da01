"""Stay connected for a year: two brokers, commands, and telemetry of which only the newest matters."""

import gc

from headwater.errors import name_of
from headwater.mqtt.backlog import Backlog
from headwater.mqtt.client import Client
from headwater.mqtt.keeper import Keeper
from headwater_board.tcp import Tcp

brokers = [Tcp("broker.local"), Tcp("broker-2.local")]
client = Client(brokers[0], b"board-1", clean_start=False, keep_alive=10)
client.on_message = lambda message: print(message.topic_text(), message.payload_bytes())
keeper = Keeper(client, brokers, longest_ms=30000, backlog=Backlog(2048, 32))
keeper.on_online = lambda session_present: print("online")
keeper.on_offline = lambda status: print("offline:", name_of(status))
keeper.subscribe(b"board-1/commands", 1)
keeper.start()
while keeper.wait(1000) == 0:
    keeper.publish(b"board-1/heap", b"%d" % gc.mem_free(), 1)
print("gave up:", name_of(keeper.status))
