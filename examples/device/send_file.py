"""Send a file of any size in segments of one kilobyte, over connections that may be lost."""

import os

from headwater.errors import name_of
from headwater.ibmmq.segments import Segmenter
from headwater.mqtt.client import Client
from headwater.mqtt.keeper import Keeper
from headwater_board.ids import group_ids
from headwater_board.tcp import Tcp

keeper = Keeper(Client(Tcp("broker.local"), b"board-1", clean_start=False, outbox_size=8192))
segmenter = Segmenter(keeper, bytearray(1024), group_ids(), format=b"MQSTR")
keeper.start()
with open("log.txt", "rb") as file:
    status = segmenter.begin(b"board-1/log", file, os.stat("log.txt")[6])
    if status == 0:
        status = segmenter.run()
if status == 0:
    # Every segment is published; wait for the acknowledgements.
    status = keeper.stop(60000)
print("sent" if status == 0 else name_of(status), segmenter.offset)
