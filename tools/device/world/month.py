"""A month of a board's life with a fault every hour or two: one line of JSON with what the broker got and the heap.

micropython -m world.month PORT DAYS SEED [update]

With ``update`` the board also receives updates over the air: after each fault the broker sends a request and an image
with a wrong signature.
"""

import gc
import json
import sys

from world import rig
from world.clock import clock

PORT, DAYS, SEED = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
WORLD = rig.setup(PORT)

from world.board import Board  # noqa: E402  the world comes first

_DAY = 24 * 60 * rig.MINUTE
_CALM_MS = 20 * rig.MINUTE
_GAP_MS = 120 * rig.MINUTE
_PUBLISH_MS = 60000
_STEPS = (200, 1000, 10000)
_TOPIC = b"board/update"
_REQUEST = b"12345678\x01\x00\x00\x00"
_IMAGE = b"87654321\x01\x00\x00\x00HWU1\x00\x1487654321" + bytes(24) + b'{"format": 1, "v": 2}'


class Dice:
    """Numbers by chance, the same for each seed, without allocation."""

    def __init__(self, seed):
        self._x = seed * 7919 % 2147483646 + 1

    def below(self, n):
        """Return a number from 0 to n - 1."""
        self._x = self._x * 48271 % 2147483647
        return (self._x >> 8) % n


def used():
    """Return the bytes of heap in use."""
    gc.collect()
    gc.collect()
    return gc.mem_alloc()


def run(board, ms):
    """Poll for ``ms`` milliseconds."""
    end = clock.now + ms
    while clock.now < end:
        board.poll()
        if receiver is not None:
            receiver.poll()
        board.rest()


def fault(board, which):
    """Let one fault come and go, and wait until the board has recovered."""
    _, begin, end, duration = rig.FAULTS[which]
    begin(WORLD)
    run(board, duration)
    end(WORLD)
    run(board, _CALM_MS)
    WORLD.access_point["dhcp_ms"] = 300
    if receiver is not None:
        WORLD.broker.command(_REQUEST, _TOPIC)
        WORLD.broker.command(_IMAGE, _TOPIC)
        run(board, _CALM_MS)


def make_receiver(board):
    """Return a receiver of updates, which gets the messages first."""
    from headwater_board import loader
    from headwater_board.ota import Receiver

    loader.started = True
    made = Receiver(board.keeper, _TOPIC, bytes(16), "board")
    handler = board.client.on_message
    board.client.on_message = lambda message: made.take(message) or handler(message)
    board.keeper.subscribe(_TOPIC, 1)
    return made


WORLD.broker.tick_ms = 10000
board = Board(WORLD, _PUBLISH_MS, _STEPS)
receiver = make_receiver(board) if sys.argv[4:] == ["update"] else None
dice = Dice(SEED)
board.keeper.start()
run(board, _CALM_MS)
for i in range(len(rig.FAULTS)):
    fault(board, i)
before = used()
most = 0
faults = 0
while clock.now < DAYS * _DAY:
    run(board, dice.below(_GAP_MS))
    fault(board, dice.below(len(rig.FAULTS)))
    faults += 1
    most = max(most, used())
after = used()
board.publish_ms = 0
run(board, _CALM_MS)
broker = WORLD.broker
print(
    json.dumps(
        {
            "days": clock.now / _DAY,
            "faults": faults,
            "connections": board.keeper.connections,
            "restarts": board.wifi.restarts,
            "resets": WORLD.resets + board.wifi.resets,
            "accepted": board.accepted,
            "refused": board.refused,
            "lost": board.accepted - broker.next + broker.missing,
            "duplicates": broker.duplicates,
            "reports": broker.reports,
            "heap_before": before,
            "heap_after": after,
            "heap_most": most,
        }
    )
)
