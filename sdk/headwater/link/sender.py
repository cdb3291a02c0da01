"""The sending half of a channel: what is written and not yet acknowledged, in frames, and when to send which of them.

Go-back-N: up to ``window`` frames are under way. The receiver takes them in order only, says how far it has come, and
how many more it has room for (credit). After a NAK, or when the time is up, everything not yet acknowledged goes out
again. The time-out follows the measured round trip (RFC 6298; a repeated frame is not timed, Karn's rule), and
doubles while nothing is acknowledged.
"""

from array import array

from headwater.link.cobs import stuff, stuffed_size
from headwater.link.crc16 import INIT, crc16
from headwater.link.frame import COUNT_MASK, DATA, frame_size
from headwater.wire import TICKS_MASK, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

_NONE = const(-1)
#: Room in a slot for what it costs to join small writes.
_JOINS = const(8)
_MIN_RTO = const(40)
_MAX_RTO = const(4000)
_MIN_MARGIN = const(20)
#: Up to here the time-out may double. A line that loses frames is not congested: waiting longer does not help it.
_PATIENCE = const(1000)

# What ``expired`` says.
WAIT = const(0)
REPEAT = const(1)
BLOCKED = const(2)


class Sender:
    """A queue of up to ``window`` frames of up to ``payload`` bytes, and the clock of their repetition.

    Slot i of ``store`` begins at ``i * slot``: a byte for a delimiter, the stuffed payload up to ``end[i]``, and room
    for the trailer. The frames from the sequence number ``una`` on are in the slots from ``_head`` on: ``queued`` of
    them, of which the first ``flight`` have been sent at least once, and the first ``_sent`` since the sender last
    went back.
    """

    def __init__(self, window: int, payload: int):
        self.window = window
        self.payload = payload
        self._area = stuffed_size(payload) + _JOINS
        self.slot = frame_size(payload) + _JOINS
        self.store = bytearray(window * self.slot)
        self.end = array("H", bytes(2 * window))
        self.crc = array("H", bytes(2 * window))
        self.size = bytearray(window)
        self.kind = bytearray(window)
        #: The slot that is on the line right now: it must not change.
        self.busy = _NONE
        # Counters, modulo 2**29.
        self.frames = 0
        self.repeated = 0
        self.timeouts = 0
        self.clear(0)

    def clear(self, rto_ms: int) -> None:
        """For a new stream; ``rto_ms`` is the time-out until a round trip was measured."""
        self._head = self.queued = self.flight = self._sent = 0
        self.una = 0
        self.credit = 0
        #: The largest payload that the other end takes.
        self.limit = self.payload
        # How many frames may be sent: one after a time-out, until it is acknowledged.
        self._burst = self.window
        # Round trip time times 8, its variation times 4, and the time-out that follows from them, in ms. ``rto`` is the
        # one in use: it doubles when the time was up.
        self._srtt = self._var = 0
        self._base = self.rto = rto_ms
        # How many frames from ``una`` on are timed together (0: none), and since when.
        self._timed = self._timed_at = 0
        self._timer_at = 0

    def write(self, buf: "Bytes", off: int, n: int, now: int) -> int:
        """Take up to ``n`` bytes of ``buf`` from ``off``: how many."""
        taken = 0
        while taken < n:
            k = self._take(buf, off + taken, n - taken, now)
            if k == 0:
                break
            taken += k
        return taken

    def _take(self, buf: "Bytes", off: int, n: int, now: int) -> int:
        """Put bytes into the last frame, if it has not been sent yet, or into a new one: how many."""
        i = (self._head + self.queued - 1) % self.window
        room = self._room(i) if self.queued > self.flight else 0
        if room <= 0:
            i = self.add(DATA, now)
            if i < 0:
                return 0
            room = self._room(i)
        n = min(n, room)
        self.crc[i] = crc16(buf, off, off + n, self.crc[i])
        self.end[i] = stuff(buf, off, n, self.store, self.end[i])
        self.size[i] += n
        return n

    def _room(self, i: int) -> int:
        """How many bytes slot ``i`` still takes: small pieces joined are longer than one, stuffed."""
        return min(self.limit - self.size[i], (i * self.slot + 1 + self._area - self.end[i]) * 33 // 34)

    def add(self, kind: int, now: int) -> int:
        """An empty frame at the end of the queue: its slot, or -1 when there is none, or it is still on the line."""
        i = (self._head + self.queued) % self.window
        if self.queued == self.window or i == self.busy:
            return _NONE
        if self.queued == 0:
            self._timer_at = now
        self.end[i] = i * self.slot + 1
        self.crc[i] = INIT
        self.size[i] = 0
        self.kind[i] = kind
        self.queued += 1
        return i

    def next(self, now: int) -> int:
        """The sequence number of the frame that is to be sent now, or -1; ``busy`` is its slot from here on."""
        sent = self._sent
        if sent >= self.queued or sent >= self._burst:
            return _NONE
        i = (self._head + sent) % self.window
        if sent >= self.credit and self.kind[i] == DATA:
            # FIN needs no room.
            return _NONE
        if sent == 0:
            self._timer_at = now
        if sent < self.flight:
            self.repeated = self.repeated + 1 & COUNT_MASK
        else:
            self.flight = sent + 1
            self.frames = self.frames + 1 & COUNT_MASK
            if self._timed == 0:
                self._timed = sent + 1
                self._timed_at = now
        self._sent = sent + 1
        self.busy = i
        return self.una + sent & 0xFF

    def acknowledge(self, ack: int, credit: int, now: int) -> None:
        """The other end expects the frame ``ack`` next, and has room for ``credit`` from there on."""
        n = ack - self.una & 0xFF
        if n > self.flight:
            # Of a frame that came twice, older than what we know.
            return
        self.credit = credit
        if n == 0:
            return
        if 0 < self._timed <= n:
            self._measure((now - self._timed_at) & TICKS_MASK)
            self._timed = 0
        else:
            if self._timed:
                self._timed -= n
            # Back towards what was measured, but slowly: should the line have become slower than that, the time-out
            # then still outgrows the round trip, so that one can be measured again.
            self.rto = max(self._base, self.rto - (self.rto >> 2))
        self.una = ack
        self._head = (self._head + n) % self.window
        self.queued -= n
        self.flight -= n
        self._sent = max(0, self._sent - n)
        self._burst = self.window
        self._timer_at = now

    def missed(self) -> None:
        """The other end missed a frame: go back."""
        self._sent = 0
        self._timed = 0

    def expired(self, now: int) -> int:
        """Go back when the time is up: REPEAT. BLOCKED: the other end has had no room for that long. Else WAIT."""
        if not self.queued or self.left(now) > 0:
            return WAIT
        self._timer_at = now
        self.rto = min(2 * self.rto, max(2 * self._base, _PATIENCE))
        if not self.flight:
            return WAIT if self.credit else BLOCKED
        self.timeouts = self.timeouts + 1 & COUNT_MASK
        self._burst = 1
        self._sent = 0
        self._timed = 0
        return REPEAT

    def left(self, now: int) -> int:
        """Milliseconds until the time is up, if anything is queued."""
        return self.rto - ((now - self._timer_at) & TICKS_MASK)

    def _measure(self, ms: int) -> None:
        """Take one round trip into the time-out (RFC 6298, in whole milliseconds)."""
        if self._srtt == 0:
            self._srtt = 8 * ms
            self._var = 2 * ms
        else:
            off = ms - (self._srtt >> 3)
            self._srtt += off
            self._var += abs(off) - (self._var >> 2)
        self._base = min(max((self._srtt >> 3) + max(self._var, _MIN_MARGIN), _MIN_RTO), _MAX_RTO)
        self.rto = self._base
