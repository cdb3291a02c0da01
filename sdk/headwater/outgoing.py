"""The way out of a connection, whatever its protocol: the state it is in, what is to be sent, what is unacknowledged,
and whether anybody is still there.

Control packets and QoS 0 go through one transmit buffer, behind each other; messages at QoS 1 and 2 leave from the
outbox, in which they stay until they are acknowledged. Each protocol's ``sender`` adds how messages are written.

Here and in the senders, what runs for each message is functions with few names, for MicroPython's sake. It looks for a
method among the object's attributes first, in vain, which takes longer than the call. And a function that needs more
than eleven machine words, three more and six at least where it catches an exception, gets them from the heap.
"""

from headwater import errors
from headwater.transitions import NEXT
from headwater.wire import TICKS_MASK, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.types import Bytes, Outbox

# In the first byte of every protocol's PUBLISH.
_DUP = const(8)
# As in ``transitions``; a constant costs less than a name.
_IDLE = const(0)
_CONNECTING = const(1)
_ONLINE = const(2)
_FAIL = const(3)
_LOST = const(4)
_EVENTS = const(5)
_AT2 = const(2)


class Outgoing:
    """What a session sends with, and knows of time. ``on_delivered(number)`` is called when a message of ours at QoS 1
    or 2 has been acknowledged to its end."""

    #: Seconds; 0 is none.
    keep_alive: int

    def __init__(self, tx_size: int, outbox: "Outbox", window: int, response_ms: int):
        self.tx = bytearray(tx_size)
        self.tx_end = 0
        # Whatever a slice is given, the buffer keeps its length.
        self._pin = memoryview(self.tx)
        self.tx_size = tx_size
        self.outbox = outbox
        self.window = window
        #: A topic that has been checked, and cannot change.
        self.known_topic: Bytes | None = None
        self.state = _IDLE
        #: Counts the events of the connection: what was known of it holds as long as this is the same.
        self.turn = 0
        self.status = 0
        #: How long the other end, or the transport, may take to answer.
        self.response_ms = response_ms
        self.now = self.rx_time = self.tx_time = 0
        #: Whether a PINGREQ is unanswered, and since when.
        self.pinged = False
        self.ping_time = 0
        # Since when the transport has taken nothing of what is to be sent; None when it has, or there is nothing.
        self._stuck: int | None = None
        self.on_delivered: Callable[[int], object] | None = None
        #: Acknowledgements of what is not under way.
        self.strays = 0
        # The chunk under way, a piece of ``tx`` or of the outbox, neither of which is replaced meanwhile; then the
        # entries that this connection has not sent yet.
        self.out_buf: Bytes = self.tx
        self.out_at = 0
        self.out_n = 0
        self._entry = outbox.head
        self._unsent = 0
        # Not 0: something is to be sent ahead of these (``_put_ahead``).
        self._ahead = 0
        self.in_flight = 0

    # -- the connection ------------------------------------------------------------------------------------------------

    def event(self, event: int) -> None:
        """Move the connection along its table (``transitions.NEXT``)."""
        self.state = NEXT[self.state * _EVENTS + event]
        self.turn += 1

    def lost(self) -> None:
        """The transport is gone: what is unacknowledged waits for the next connection."""
        self.event(_LOST)
        self._stop()

    def fail(self, code: int) -> int:
        """End the connection for a reason; returns ``code``, which stays in ``status``."""
        self.status = code
        self.event(_FAIL)
        self._stop()
        return code

    def _stop(self) -> None:
        if self.out_n and self.out_buf is not self.tx:
            # Who knows how much of it arrived.
            self.outbox.buf[self.outbox.at[self._entry]] |= _DUP
        self.tx_end = self.out_n = self._unsent = self._ahead = 0
        # A handler that is running may hold room for its answer, which nobody waits for now.
        self.tx_size = len(self.tx)
        self._stuck = None

    def poll(self, now_ms: int) -> int:
        """Tell the time, a few times a second: 0, or the status of a broken connection. ``now_ms`` wraps at 2**30 or a
        multiple of it.

        E_TIMEOUT when for ``response_ms`` the transport has taken nothing of what is to be sent, or the connection was
        not accepted; and when the other end is silent for too long.
        """
        self.now = now_ms
        if self.status:
            return self.status
        if not self.out_n and not self.tx_end:
            self._stuck = None
        elif self._stuck is None:
            self._stuck = now_ms
        elif (now_ms - self._stuck) & TICKS_MASK >= self.response_ms:
            return self.fail(errors.E_TIMEOUT)
        if self.state == _CONNECTING:
            # Since the greeting left, or could have come: a byte now and then does not hold the connection open.
            late = (now_ms - self.tx_time) & TICKS_MASK >= self.response_ms
        else:
            late = self.state == _ONLINE and self.keep_alive > 0 and self._is_silent(now_ms)
        return self.fail(errors.E_TIMEOUT) if late else 0

    def _is_silent(self, now_ms: int) -> bool:
        """Whether the other end has been silent for too long; a client keeps the connection alive.

        PINGREQ goes out when nothing was sent, or nothing received, for three quarters of the keep-alive.
        """
        interval = self.keep_alive * 750
        quiet = (now_ms - self.rx_time) & TICKS_MASK
        if self.tx_end:
            # What waits to be sent is as good as a ping, or is one: then its time has not begun.
            self.ping_time = now_ms
        elif self.pinged and quiet >= self.response_ms <= (now_ms - self.ping_time) & TICKS_MASK:
            return True
        elif (now_ms - self.tx_time) & TICKS_MASK >= interval or (quiet >= interval and not self.pinged):
            # Also when a ping is unanswered, because the answer is queued behind something large: the server wants to
            # hear from us in every interval.
            self.ping()
        return False

    def ping(self) -> int:
        """Queue PINGREQ, on a connection that was accepted: 0, or E_AGAIN when the transmit buffer is full for now."""
        if self._put(self._put_ping()):
            return errors.E_AGAIN
        if not self.pinged:
            self.pinged = True
            self.ping_time = self.now
        return 0

    def _put_ping(self) -> int:
        """Write PINGREQ behind what is to be sent: where it ends, or E_TOO_LARGE."""
        raise NotImplementedError

    def awaits(self) -> bool:
        """Whether something is due from the other end: an acknowledgement, or an answer."""
        return self.outbox.count > 0 or self.state == _CONNECTING

    # -- sending -------------------------------------------------------------------------------------------------------

    def out(self) -> int:
        """How many bytes are to be sent now, from ``out_buf[out_at]`` on; or the status of a broken connection."""
        n = self.out_n
        if n:
            return n
        n = self.tx_end
        if not n and self._ahead:
            n = self._put_ahead()
            if n < 0:
                return 0
        if n:
            self.out_buf = self.tx
            self.out_at = 0
            self.out_n = n
            return n
        if self.state == _ONLINE and self._unsent and self.in_flight < self.window:
            box = self.outbox
            self.out_buf = box.buf
            self.out_at = box.at[self._entry]
            self.out_n = n = box.size[self._entry]
            return n
        return self.status

    def _put_ahead(self) -> int:
        """Put what is to be sent ahead of the messages in the outbox into the empty transmit buffer: how many bytes; or
        -1 when no message may leave for now."""
        return 0

    def sent(self, k: int) -> int:
        """The transport took ``k`` of the bytes that ``out`` offered. Returns what ``out`` offers now."""
        self.tx_time = self.now
        self._stuck = None
        k += self.out_at
        n = self.out_at + self.out_n - k
        self.out_at = k
        if n == 0:
            if self.out_buf is self.tx:
                n = self.tx_end - k
                if n == 0:
                    self.tx_end = 0
            else:
                # Its next sending, if there is one, is a repetition.
                self.outbox.buf[self.outbox.at[self._entry]] |= _DUP
                self.in_flight += 1
                go_behind(self, self._entry, self._unsent)
        self.out_n = n
        return n or (self.out() if self.tx_end or self._unsent else 0)

    def _put(self, end: int) -> int:
        """Take what an encoder wrote behind the control bytes: 0 or its error, E_AGAIN when it may fit later."""
        if end < 0:
            return errors.E_AGAIN if end == errors.E_TOO_LARGE and self.tx_end else end
        self.tx_end = end
        return 0


def go_behind(s: Outgoing, i: int, n: int) -> None:
    """Of the ``n`` last entries, the first of which is ``i``, go on to the first behind it that is to be sent.

    One that is acknowledged may leave the outbox at any time.
    """
    box = s.outbox
    while True:
        i = i + 1 if i + 1 < box.slots else 0
        n -= 1
        if not n or box.state[i] <= _AT2:
            break
    s._entry = i
    s._unsent = n
