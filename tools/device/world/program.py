"""Run a whole program through one fault that begins while it is online: one line of JSON.

    micropython -m world.program PORT MODULE FAULT

MODULE is one of ``world.programs``: it has ``run``, ``n`` (the number that it publishes next) and ``commands`` (the
count of messages that it has received).
"""

import gc
import json
import sys

from world import rig
from world.clock import OverError, clock

_BEGIN_MS = 60 * rig.SECOND
_RECOVER_MS = 10 * rig.MINUTE
_SETTLE_MS = 2 * rig.MINUTE


class Watch:
    """Begins and ends the fault, and watches what the broker gets."""

    def __init__(self, world, fault, module):
        self.world = world
        self.module = module
        self.name, self._start, self._stop, self._duration = fault
        self.heap = 0
        self.online = False
        self.recovered_ms = -1
        self.mark = 0
        self.ended_at = 0
        #: Whether the broker has published a command during the fault; how many the program had when it published one
        #: afterwards, -1: it has not.
        self.commanded = False
        self.heard = -1
        world.broker.on_arrival = self._arrived
        clock.at(_BEGIN_MS, self.begin)

    def begin(self, _):
        gc.collect()
        self.heap = gc.mem_alloc()
        self.online = self.world.broker.online() and self.module.n > 0
        self._start(self.world)
        clock.at(self._duration, self.end)
        if self._duration >= rig.MINUTE and self.world.broker.up:
            self.commanded = True
            clock.at(self._duration // 2, self._command)

    def end(self, _):
        self._stop(self.world)
        self.ended_at = clock.now
        self.mark = self.module.n
        clock.end = clock.now + _RECOVER_MS

    def _arrived(self, number):
        if self.ended_at and self.recovered_ms < 0 and number >= self.mark:
            self.recovered_ms = clock.now - self.ended_at
            clock.end = clock.now + _SETTLE_MS
            clock.at(_SETTLE_MS // 2, self._command_again)

    def _command_again(self, _):
        self.heard = self.module.commands
        self._command(None)

    def _command(self, _):
        self.world.broker.command(b"on")


def run():
    """Run the program: what came of it."""
    port, name, fault = sys.argv[1], sys.argv[2], int(sys.argv[3])
    world = rig.setup(port)
    gc.collect()
    heap = gc.mem_alloc()
    path = "world.programs." + name
    module = __import__(path, None, None, ["run"])
    watch = Watch(world, rig.FAULTS[fault], module)
    ended = ""
    clock.end = _BEGIN_MS + 60 * rig.MINUTE
    try:
        module.run()
    except OverError:
        pass
    except BaseException as error:
        ended = "%s: %s" % (type(error).__name__, error)
        # The world goes on without the program.
        try:
            clock.advance(60 * rig.MINUTE)
        except OverError:
            pass
    broker = world.broker
    return {
        "program": name,
        "fault": watch.name,
        "online": watch.online,
        "ended": ended,
        "ms": watch.recovered_ms,
        "resets": world.resets,
        "accepted": module.n,
        "missing": broker.missing,
        "lost": max(0, module.n - broker.next) + broker.missing
        if watch.recovered_ms >= 0
        else broker.missing,
        "duplicates": broker.duplicates,
        "command_lost": watch.commanded and watch.heard == 0,
        "subscribed": module.commands > watch.heard >= 0,
        "heap": watch.heap - heap,
    }


print(json.dumps(run()))
