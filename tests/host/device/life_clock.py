"""``headwater_board.clock`` on MicroPython, with the servers of ``tests/host/test_board_life.py``.

Arguments: the port of the server, and how many times it answers wrongly before it answers right.
"""

import sys
import time

import micropython

SET = []


class Machine:
    """``machine`` with the clock that the unix build lacks."""

    class RTC:
        def datetime(self, when):
            SET.append(when)


sys.modules["machine"] = Machine()

from headwater_board.clock import Sntp, set_clock  # noqa: E402 - it is for this machine

# 2026-11-23, a Monday, in the clock's order; RP2 takes no fractions.
set_clock(1795392000789)
assert SET.pop() == (2026, 11, 23, 0, 0, 0, 0, 789000)

port, wrong = int(sys.argv[1]), int(sys.argv[2])
sntp = Sntp(("127.0.0.1",) * (wrong + 1), port=port, timeout_ms=300)
begin = time.ticks_ms()
while not sntp.poll():
    assert time.ticks_diff(time.ticks_ms(), begin) < 20000
    assert not SET
    time.sleep_ms(1)
assert (sntp.syncs, sntp.failures) == (1, wrong), (sntp.syncs, sntp.failures)
print("set", SET.pop())


def idle(poll):
    micropython.heap_lock()
    try:
        for _ in range(100):
            poll()
    finally:
        micropython.heap_unlock()


idle(sntp.poll)
assert sntp.syncs == 1

# A round in vain is followed by a pause.
now = 0
sntp = Sntp(("127.0.0.1",), port=9, timeout_ms=300)
sntp.ticks_ms = lambda: now
sntp._at = 0
asked = []
for now in range(0, 5000000, 100):
    before = sntp.failures
    sntp.poll()
    if sntp.failures > before:
        asked.append(now)
    if len(asked) > 9:
        break
pauses = [(b - a) // 1000 for a, b in zip(asked, asked[1:])]  # noqa: RUF007 - it has no itertools
assert [p - p % 16 for p in pauses] == [16, 32, 64, 128, 256, 512, 1024, 1024, 1024], pauses
print("done")
