"""Run headwater's board program through each fault in each state: one line of JSON for each case.

micropython -m world.matrix PORT [FAULT STATE]
"""

import json
import sys

from world import rig
from world.clock import clock

PORT = sys.argv[1]
rig.setup(PORT)

from world.board import STATES, Board  # noqa: E402  the world comes first

_REACH_MS = 3 * rig.MINUTE
_RECOVER_MS = 30 * rig.MINUTE
_CALM_MS = 20 * rig.SECOND
_SETTLE_MS = 2 * rig.MINUTE


def _run(board, ms, until=None):
    """Poll for ``ms`` milliseconds, or until ``until()``: whether that came about."""
    end = clock.now + ms
    while clock.now < end:
        board.poll()
        if until is not None and until():
            return True
        board.rest()
    return False


def case(fault, state):
    """Begin a fault in a state, end it, and measure how the board recovers."""
    name, begin, end, duration = fault
    world = rig.setup(PORT)
    board = Board(world)
    # The first state follows a soft reset only, which leaves the interface up; two follow failures only.
    if state == "interface starting":
        world.station.set_active(True)
    elif state == "WiFi pause":
        world.access_point["up"] = False
    elif state == "session pause":
        world.broker.up = False
    board.keeper.start()
    reached = _run(board, _REACH_MS, lambda: board.state() == state)
    world.access_point["up"] = world.broker.up = True
    begin(world)
    _run(board, duration)
    end(world)
    ended = clock.now
    broker = world.broker
    # A message that was published after the fault.
    mark = board.accepted
    recovered = _run(board, _RECOVER_MS, lambda: broker.next > mark)
    ms = broker.arrived_at - ended
    _run(board, _CALM_MS)
    broker.command(b"on")
    commanded = _run(board, _SETTLE_MS, lambda: board.commands > 0)
    board.publish_ms = 0
    _run(board, _SETTLE_MS, lambda: not board.keeper.waiting())
    return {
        "fault": name,
        "state": state,
        "reached": reached,
        "recovered": recovered,
        "ms": ms,
        "restarts": board.wifi.restarts,
        "resets": world.resets + board.wifi.resets,
        "accepted": board.accepted,
        "lost": board.accepted - broker.next + broker.missing,
        "duplicates": broker.duplicates,
        "command": commanded,
        "heard": board.commands,
    }


wanted = sys.argv[2:]
for one in rig.FAULTS:
    for place in STATES:
        if not wanted or wanted == [one[0], place]:
            print(json.dumps(case(one, place)))
