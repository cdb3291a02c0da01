"""An access point that is away for ten minutes, with limits of ``offline_ms``: one line of JSON for each.

micropython -m world.due PORT
"""

import json
import sys

from world import rig
from world.clock import clock

PORT = sys.argv[1]
rig.setup(PORT)

from world.board import Board  # noqa: E402  the world comes first

for minutes in (0, 5, 20):
    world = rig.setup(PORT)
    # A reset that only counts: on a board it would end the program.
    board = Board(world, offline_ms=minutes * rig.MINUTE, reset=lambda: None)
    board.keeper.start()
    for begin, end in ((0, 1), (1, 11), (11, 14)):
        world.access_point["up"] = begin != 1
        while clock.now < end * rig.MINUTE:
            board.poll()
            board.rest()
        if end == 11:
            resets = board.wifi.resets
    print(json.dumps({"offline_min": minutes, "resets": resets, "online": world.broker.online()}))
