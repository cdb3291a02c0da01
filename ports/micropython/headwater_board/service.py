"""Channel 1 of a serial link to a gateway: log records to its log, its time to the board's clock.

serial = Serial(1, tx=4, rx=5, channels=2)
service = Service(serial, log)
while keeper.wait(100) == 0:
    service.poll()
"""

from micropython import const

from headwater.link.link import ENDED, IDLE, UP
from headwater.link.pump import Stream
from headwater_board.clock import set_clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater_board.logs import LogRing
    from headwater_board.serial import Serial

    def ticks_ms() -> int:
        """Return ``time.ticks_ms()``, typed as an integer."""
        ...
else:
    from time import ticks_ms

_SIZE = const(64)
_TICKS_MASK = const(0x3FFFFFFF)
# A gateway that closes each new stream at once would keep the line busy.
_REOPEN_MS = const(1000)


class Service:
    """Sends the records of ``log`` and sets the clock, which the gateway tells on opening and each hour.

    The channel is opened again after its end, at most once a second.
    """

    def __init__(self, serial: "Serial", log: "LogRing | None" = None, channel: int = 1):
        self.log = log
        #: The number of times the clock was set.
        self.syncs = 0
        self.ticks_ms = ticks_ms
        self._opened_at = self.ticks_ms() - _REOPEN_MS
        self._stream = Stream(serial.pump, serial.link.channels[channel])
        self._buf = bytearray(_SIZE)
        self._text = b""

    def poll(self) -> None:
        """Move what there is to move. Allocates nothing while no time arrives. Raises OSError for a broken line."""
        channel = self._stream.channel
        if channel.state == IDLE or channel.state == ENDED:
            if (self.ticks_ms() - self._opened_at) & _TICKS_MASK < _REOPEN_MS:
                return
            self._opened_at = self.ticks_ms()
            self._text = b""
            channel.open()
        n = self._stream.readinto(self._buf, _SIZE)
        if n:
            self._take(n)
        if self.log is not None and channel.state == UP:
            self.log.drain(self._stream)

    def _take(self, n: int) -> None:
        *lines, self._text = (self._text + bytes(self._buf[:n])).split(b"\n")
        for line in lines:
            if line[:5] == b"time ":
                try:
                    self.syncs += set_clock(int(line[5:]))
                except ValueError:
                    # Not a number: the line is ignored.
                    pass
        self._text = self._text[-_SIZE:]
