"""Reset the board when its program stops polling.

    watchdog = Watchdog()
    while True:
        watchdog.fed(keeper.poll())

Only a healthy poll feeds the watchdog: one that returned, with status 0. A keeper that has given up or was stopped, a
handler that never returns and a driver that hangs lead to a reset.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The longest timeout of an RP2040 in milliseconds. An RP2350 has 16,777, an ESP32 hours.
RP2040_LIMIT_MS = 8388
#: The last one that was made, for ``headwater board``, which stops its program and then copies files.
current: "Watchdog | None" = None


class Watchdog:
    """The board's watchdog, which nothing can stop once it runs.

    ``wdt`` is a watchdog that runs already; by default ``machine.WDT`` is started with ``timeout_ms``. Raises
    ValueError if the port does not allow that timeout. ``timer`` is the number of the ``machine.Timer`` for ``allow``;
    where the port does not have it, 0. Before MicroPython 1.27 ESP32 does not have -1, a virtual timer.
    """

    def __init__(self, timeout_ms: int = 8000, wdt: "Any" = None, timer: int = -1):
        global current
        current = self
        if wdt is None:
            from machine import WDT

            start: Any = WDT
            wdt = start(timeout=timeout_ms)
        self._feed = wdt.feed
        self._period = timeout_ms // 2
        self._timer_number = timer
        self._timer: Any = None
        #: The number of times that the timer still feeds.
        self._left = 0
        # Bound once, because binding allocates.
        self._tick = self._on_timer

    def fed(self, status: int) -> None:
        """Feed the watchdog if ``status``, which a poll has returned, is 0. Allocates nothing."""
        if status == 0:
            self._left = 0
            self._feed()

    def allow(self, ms: int) -> None:
        """Feed now, and from a timer for at most ``ms`` milliseconds, while a call blocks. The next ``fed`` ends it.

        For calls in which the port runs scheduled callbacks, such as ``socket.getaddrinfo`` on RP2. ESP32 runs none
        there; it allows a longer ``timeout_ms``.
        """
        from machine import Timer

        self._feed()
        self._left = ms // self._period
        if self._timer is None:
            make: Any = Timer
            try:
                self._timer = make(self._timer_number)
            except ValueError:
                self._timer = make(0)
            self._timer.init(period=self._period, mode=make.PERIODIC, callback=self._tick)

    def _on_timer(self, timer: "Any") -> None:
        if self._left > 0:
            self._left -= 1
            self._feed()
        else:
            timer.deinit()
            self._timer = None
