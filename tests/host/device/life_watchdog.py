"""``headwater_board.watchdog`` on MicroPython: what feeds it. What a reset is: ``tests/hil/test_board_life.py``."""

from headwater.errors import E_OFFLINE, E_REFUSED
from headwater_board.watchdog import Watchdog


class Meals:
    """Counts, like ``machine.WDT`` whose timeout never passes."""

    def __init__(self):
        self.n = 0

    def feed(self):
        self.n += 1


def test_only_a_healthy_poll_feeds():
    meals = Meals()
    watchdog = Watchdog(wdt=meals)
    for status in (0, E_OFFLINE, E_REFUSED, 0):
        watchdog.fed(status)
    assert meals.n == 2
