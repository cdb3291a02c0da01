"""A network interface that a keeper owns: a state machine that restarts the interface, and at last the board.

It escalates in three steps, each with a counter and a limit:

1. ``reconnects``: an attempt to connect failed, or the link was lost. A pause follows, then the next attempt.
2. ``restarts``: ``attempts`` rounds of attempts failed; or ``silences`` connections in a row ended without an answer
   from any server, which shows a dead link that the driver takes for a good one; or the driver raised an error. The
   interface goes down and comes up again. As long as that does not help, the limits double, up to 16 times.
3. ``resets``: the driver raised ``faults`` errors without a link in between (0: never resets); or no server has
   accepted a connection for ``offline_ms`` (0, the default: never). The board is reset.

An access point, a router or a server that is away is no reason for a reset, unless ``offline_ms`` says so.
"""

import errno

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    #: Address, mask, gateway and DNS server.
    Address = tuple[str, str, str, str]

    def ticks_ms() -> int:
        """Return ``time.ticks_ms()``, typed as an integer."""
        ...
else:
    from time import ticks_ms

_TICKS_MASK = 0x3FFFFFFF
# Of ``headwater.errors``, whose file a program of the components need not load.
_E_TIMEOUT = -61
_E_CLOSED = -62
_E_UNREACHABLE = -63
#: Not started, or stopped.
OFF = 0
#: The interface is down, and comes up after a pause.
STARTING = 1
#: An attempt is in progress: no link yet, or no address.
CONNECTING = 2
#: There are a link and an address, as far as the driver knows.
UP = 3
#: Between two attempts.
PAUSE = 4

#: How long the driver needs between two attempts: after its access point has restarted, an ESP32 that is not given
#: this pause fails with "wrong password" again and again.
SETTLE_MS = 1000
# Pauses between rounds double up to eight times that, limits of restarts up to 16 times theirs.
_LONGEST = 3
_GROWTH = 16
# Errors of a dialer that say nothing against the link: a host refused the connection, or TLS found no memory.
_OTHER_ERRORS = (errno.ECONNREFUSED, errno.ECONNRESET, errno.ENOMEM)


class Interface:
    """Keeps ``nic``, an interface of ``network``, up from ``start`` to ``stop``, by ``poll``.

    - ``address``: address, mask, gateway and DNS server; None: DHCP.
    - ``connect_ms``: limit for one attempt, address included.
    - ``attempts``, ``silences``, ``faults``, ``offline_ms``: limits of the escalation, see above.
    - ``reset``: resets the board; ``machine.reset`` by default.

    Raises ValueError for ``offline_ms`` from six days on.
    """

    #: The networks to choose from.
    choices = 1

    def __init__(
        self,
        nic: "Any",
        address: "Address | None" = None,
        connect_ms: int = 30000,
        attempts: int = 4,
        silences: int = 3,
        faults: int = 10,
        offline_ms: int = 0,
        reset: "Callable[[], object] | None" = None,
    ):
        if not 0 <= offline_ms < 1 << 29:
            raise ValueError("offline_ms: below 2**29 ms, six days")
        self.nic = nic
        self.address = address
        self.connect_ms = connect_ms
        self.attempts = attempts
        self.silences = silences
        self.faults = faults
        self.offline_ms = offline_ms
        self.reset = reset
        self.ticks_ms = ticks_ms
        self.state = OFF
        #: What the driver's ``status`` returned last: in an attempt, or as the link came or went.
        self.status = 0
        #: The last error that the driver raised.
        self.error: Exception | None = None
        #: How many times the link came up, and was lost.
        self.connects = self.lost = 0
        #: The steps of the escalation.
        self.reconnects = self.restarts = self.resets = 0
        self._since = self._pause_ms = 0
        # The current choice, and the number of choices tried in this round.
        self._at = self._tried = 0
        # Rounds and errors since there was a link, silences since there was an answer, and the limits of a restart.
        self._rounds = self._errors = self._silent = 0
        self._round_limit = attempts
        self._silence_limit = silences
        # True if no server has accepted a connection since the link was last lost, or a connection; and since when.
        self._offline = False
        self._offline_at = 0

    def start(self) -> None:
        """Bring the interface up, at the next ``poll``; harmless while it runs."""
        if self.state == OFF:
            self._at = 0
            self._linked()
            self.works()
            self._missing()
            self._enter(STARTING, 0)
            if self.nic.active():
                # A soft reset leaves the interface as it was, half up.
                self._down()
                self._pause_ms = SETTLE_MS

    def stop(self) -> None:
        """Take the interface down."""
        self.state = OFF
        self._offline = False
        self._down()

    def poll(self, busy: bool = True) -> bool:
        """Drive the interface. Return whether it has a link and an address. Allocates nothing while it has both.

        Never waits; bringing an interface up takes as long as its driver does.
        """
        if self.state == UP and not self._offline and self.nic.isconnected():
            self._save(not busy)
            return True
        # Apart, because MicroPython heap-allocates a frame with an except clause.
        self._advance(busy)
        return self.state == UP

    def failed(self, status: int, number: int = 0) -> None:
        """Record that a connection or an attempt ended with ``status``; ``number`` is the dialer's errno, or 0.

        After ``silences`` without an answer in a row, the interface restarts, with the next network if there are
        several.
        """
        self._missing()
        if status == _E_TIMEOUT or (status == _E_UNREACHABLE and number not in _OTHER_ERRORS):
            self._silent += 1
            if self._silent >= self._silence_limit and self.state == UP:
                self._silent = 0
                self._silence_limit = min(self._silence_limit * 2, self.silences * _GROWTH)
                self._at = (self._at + 1) % self.choices
                self._restart()
        elif status != _E_CLOSED:
            self._silent = 0

    def works(self) -> None:
        """Record that a server has accepted a connection."""
        self._offline = False
        self._silent = 0
        self._silence_limit = self.silences

    # -- what differs between interfaces -------------------------------------------------------------------------------

    def _configure(self) -> None:
        """Apply settings to the active interface."""

    def _connect(self) -> None:
        """Begin an attempt."""

    def _disconnect(self) -> None:
        """End an attempt."""

    def _is_over(self, passed: int) -> bool:
        """Return whether the attempt, which has lasted ``passed`` milliseconds, has failed."""
        return False

    def _save(self, idle: bool) -> None:
        """Save power, or not."""

    # -- the machine ---------------------------------------------------------------------------------------------------

    def _passed(self, since: int) -> int:
        return (self.ticks_ms() - since) & _TICKS_MASK

    def _enter(self, state: int, pause_ms: int) -> None:
        self.state = state
        self._since = self.ticks_ms()
        self._pause_ms = pause_ms

    def _missing(self) -> None:
        if not self._offline:
            self._offline = True
            self._offline_at = self.ticks_ms()

    def _advance(self, busy: bool) -> None:
        if self._offline and self.offline_ms and self._passed(self._offline_at) >= self.offline_ms:
            self._reset()
        elif self.state == UP:
            if self.nic.isconnected():
                self._save(not busy)
            else:
                self.lost += 1
                self.status = self.nic.status()
                self._missing()
                self._again(SETTLE_MS)
        elif self.state != OFF:
            try:
                self._continue(self.state)
            except (OSError, RuntimeError) as e:
                self.error = e
                self._errors += 1
                self._at = (self._at + 1) % self.choices
                if self.faults and self._errors >= self.faults:
                    self._reset()
                else:
                    self._restart()

    def _continue(self, state: int) -> None:
        passed = self._passed(self._since)
        if state == CONNECTING:
            if self.nic.isconnected():
                self.connects += 1
                self.status = self.nic.status()
                self._linked()
                self._enter(UP, 0)
            elif self._is_over(passed) or passed >= self.connect_ms:
                self._next()
        elif passed >= self._pause_ms:
            if state == STARTING:
                self.nic.active(True)
                self._configure()
            else:
                self.reconnects += 1
            if self.address is not None:
                self.nic.ifconfig(self.address)
            self._connect()
            self._enter(CONNECTING, 0)

    def _linked(self) -> None:
        self._rounds = self._errors = self._tried = 0
        self._round_limit = self.attempts

    def _again(self, pause_ms: int) -> None:
        try:
            self._disconnect()
        except (OSError, RuntimeError) as e:
            self.error = e
        self._enter(PAUSE, pause_ms)

    def _next(self) -> None:
        """Go on with the next choice; after a round, after a longer pause, or a restart."""
        self._at = (self._at + 1) % self.choices
        self._tried += 1
        pause_ms = SETTLE_MS
        if self._tried >= self.choices:
            self._tried = 0
            pause_ms <<= min(self._rounds, _LONGEST)
            self._rounds += 1
            if self._rounds >= self._round_limit:
                self._rounds = 0
                self._round_limit = min(self._round_limit * 2, self.attempts * _GROWTH)
                self._restart()
                return
        self._again(pause_ms)

    def _restart(self) -> None:
        self.restarts += 1
        self._down()
        self._enter(STARTING, SETTLE_MS << min(self._errors, _LONGEST))

    def _down(self) -> None:
        # An RP2 switches its radio on to leave a network, even one that it is not in.
        if self.nic.active():
            for step in (self._disconnect, self._deactivate):
                try:
                    step()
                except (OSError, RuntimeError) as e:
                    self.error = e

    def _deactivate(self) -> None:
        self.nic.active(False)
        if hasattr(self.nic, "deinit"):
            # Only this switches the RP2's radio off.
            self.nic.deinit()

    def _reset(self) -> None:
        self.resets += 1
        self._errors = 0
        self._offline = False
        reset = self.reset
        if reset is None:
            import machine

            reset = machine.reset
        reset()
        # Only a reset that is deferred returns.
        self._missing()
        self._restart()
