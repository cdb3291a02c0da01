"""The lease of leadership, without a database and without a clock.

The database holds one row: the epoch, a beat, the holder, and the length of the lease. The leader renews the lease by
increasing the beat. A candidate takes it over by increasing the epoch, under the condition that epoch and beat are
those that it has seen.

1. A lease has run out when a candidate has seen the same row for the row's length, by the candidate's own clock,
   counted from the reply that showed it the row first. A read that begins after that must show the same row again.
2. A leader trusts its lease for ``TRUST`` of its length, by its own clock, counted from before the request that renewed
   it. A request whose reply is lost renews nothing.
3. A leader that no longer trusts its lease steps down, and does not resume: it has to take the lease over again.
4. A lease may be taken over at once if its row names this process, which does not lead; if the row's length is 0, since
   its holder has released it; and if its holder is proven to have ended.

From 1 and 2: no two hubs trust their leases at once, as long as no clock runs more than ``1 / TRUST`` times as fast as
another. Clocks are monotonic, count in seconds, and need no common origin. Time stamps of the database and wall clocks
are not used. Writes do not depend on clocks at all: each names its epoch, and the database refuses a former one.
"""

import enum
from typing import NamedTuple

#: The part of its length for which a leader trusts its lease. The rest is for clocks of different speeds.
TRUST = 0.9
#: A leader renews its lease this many times within its length.
RENEWALS = 4
#: Seconds between reads of the row by a candidate, at most.
POLL = 0.2


class Role(enum.Enum):
    """The role of a hub."""

    FOLLOWER = "follower"
    LEADER = "leader"


class Row(NamedTuple):
    """The row of leadership. ``holder`` names one run of one hub; ``length`` is in seconds, 0 when released."""

    epoch: int
    beat: int
    holder: str
    length: float


class Lease:
    """The lease as one hub sees it. ``holder`` names this run of this hub; ``length`` is in seconds.

    ``now`` and ``asked`` are times by the hub's own monotonic clock. ``asked`` is the time before the request was sent.
    """

    def __init__(self, holder: str, length: float):
        if not holder or length <= 0:
            raise ValueError("a lease needs a holder, and a length above 0")
        self.holder = holder
        self.length = length
        #: The row as it was seen last; None before the first read.
        self.row: Row | None = None
        #: The epoch that this hub leads, 0 if it does not lead.
        self.epoch = 0
        # When the row was seen first, and when the last read of it began.
        self._since = self._read = 0.0
        # The time until which the lease is trusted, and when it was last asked to be renewed.
        self._until = self._asked = 0.0

    @property
    def role(self) -> Role:
        """The role, by what the hub did last. ``trusts`` says whether a leader may act as one."""
        return Role.LEADER if self.epoch else Role.FOLLOWER

    # -- candidates ------------------------------------------------------------------------------------------------

    def see(self, row: Row, asked: float, now: float) -> None:
        """Take the row that a read, or a refused takeover, has shown. Another epoch ends leadership."""
        if self.row is None or (row.epoch, row.beat, row.holder) != (
            self.row.epoch,
            self.row.beat,
            self.row.holder,
        ):
            self._since = now
        self.row = row
        self._read = asked
        if self.epoch and row.epoch != self.epoch:
            self.step_down()

    def may_take(self, *, ended: bool = False) -> bool:
        """Return whether the lease may be taken over. ``ended``: the holder that the row names is proven to have
        ended."""
        if self.epoch or self.row is None:
            return False
        free = ended or self.row.length <= 0 or self.row.holder == self.holder
        return free or self._read >= self._since + self.row.length

    def took(self, epoch: int, asked: float) -> None:
        """Lead: a takeover that was sent at ``asked`` has written this epoch, with this holder and length."""
        self.row = Row(epoch, 0, self.holder, self.length)
        self.epoch = epoch
        self._trust(asked)

    # -- leaders ---------------------------------------------------------------------------------------------------

    def renewed(self, found: bool, asked: float) -> None:
        """Take the reply to a renewal that was sent at ``asked``. ``found``: the row still had this epoch."""
        if not self.epoch:
            return
        if found:
            self._trust(asked)
        else:
            self.step_down()

    def _trust(self, asked: float) -> None:
        self._asked = asked
        self._until = max(self._until, asked + self.length * TRUST)

    def trusts(self, now: float) -> bool:
        """Return whether the hub leads at this time. A lease that has run out ends leadership for good."""
        if self.epoch and now >= self._until:
            self.step_down()
        return self.epoch > 0

    def step_down(self) -> None:
        """Stop leading."""
        self.epoch = 0
        self._until = 0.0

    # -- times -----------------------------------------------------------------------------------------------------

    @property
    def until(self) -> float:
        """The time until which a leader trusts its lease."""
        return self._until

    def due(self) -> float:
        """Return when a leader renews its lease next, or when a candidate reads the row next."""
        if self.epoch:
            return self._asked + self.length / RENEWALS
        if self.row is None:
            return self._read
        end = self._since + self.row.length
        # The read that decides begins right after the end.
        return min(self._read + POLL, end) if self._read < end else self._read + POLL
