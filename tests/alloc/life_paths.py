# paths: feed the watchdog, do not feed the watchdog, write log records, drain log records, nothing to log
"""What a board's program does in every turn beside its connection."""

from prove import prove

from headwater_board.logs import WARNING, LogRing
from headwater_board.watchdog import Watchdog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes


class Wdt:
    def feed(self) -> None:
        pass


class Stream:
    """Takes a few bytes at a time."""

    def readinto(self, buf: "bytearray | memoryview", n: int) -> "int | None":
        return None

    def write(self, buf: "Bytes", off: int, n: int) -> "int | None":
        return min(n, 50)

    def close(self) -> None:
        pass


watchdog = Watchdog(wdt=Wdt())
log = LogRing(512)
log.ticks_ms = lambda: 0x3FFFFFFF
stream = Stream()
TEXT = b"the sensor\ndoes not answer"


def write_records() -> None:
    for _ in range(20):
        log.write(WARNING, TEXT)


def drain_records() -> None:
    log.write(WARNING, TEXT)
    while log.waiting():
        log.drain(stream)


prove("feed the watchdog", lambda: watchdog.fed(0), 200)
prove("do not feed the watchdog", lambda: watchdog.fed(-3), 200)
prove("write log records", write_records, 50)
assert log.dropped
prove("drain log records", drain_records, 50)
prove("nothing to log", lambda: log.drain(stream), 200)
