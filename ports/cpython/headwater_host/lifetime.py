"""Age time: a clock for lifetimes, which nobody can set.

A wall clock is set, forward and back, by people and by NTP. What expires by it is lost when it is set forward by more
than its lifetime. So every file with lifetimes in it keeps a clock of its own, which counts only time that the process
can vouch for:

* within one boot of the machine, CLOCK_BOOTTIME: also while the process is down or the machine suspended;
* across boots, what the wall clock says, if the kernel's clock was synchronized (NTP) at both ends; else nothing.

Age time begins at the wall clock's time when the file is made, so it looks like one; only differences mean anything.
It never goes back. ``AgeClock.kept`` is text that the owner of a file writes into it every now and then and hands to
the next ``AgeClock``; what is lost since the last time it was written, at a power cut, is not counted.
"""

import json
import time
from pathlib import Path
from typing import NamedTuple

#: Seconds between writes of ``kept``, while the file is written anyway.
CHECKPOINT = 10.0

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: What adjtimex answers for a clock that nothing keeps: TIME_ERROR.
_UNSYNCHRONIZED = 5
#: Bytes of its struct timex, and some.
_TIMEX = 512
# Elsewhere than on Linux there is no boot id either, so nothing counts while the process is down.
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clocks:
    """The machine's clocks; tests have others."""

    def boot(self) -> str:
        """Which boot of which machine this is, "" where that is not known."""
        try:
            return _BOOT_ID.read_text().strip()
        except OSError:
            return ""

    def boottime(self) -> int:
        """Nanoseconds of this boot, suspended ones included."""
        return time.clock_gettime_ns(_BOOTTIME)

    def wall(self) -> int:
        """Nanoseconds since 1970, as the machine has been told."""
        return time.time_ns()

    def synchronized(self) -> bool:
        """Whether something keeps the kernel's clock right. Setting it by hand ends that, until NTP says otherwise.
        False when it is not known: in some containers, and elsewhere than on Linux. (chrony needs ``rtcsync``.)"""
        return 0 <= _clock_state() < _UNSYNCHRONIZED


def _clock_state() -> int:
    """What adjtimex answers when it is asked to change nothing; -1 where there is none."""
    try:
        import ctypes  # seldom needed, and slow to import

        return int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX)))
    except (ImportError, OSError, AttributeError):
        return -1


#: The real ones.
MACHINE = Clocks()


class _Mark(NamedTuple):
    """A moment at which the wall clock was synchronized: in age time, by the wall clock, and in which boot."""

    age: int
    wall: int
    boot: str


class AgeClock:
    """Age time of one file: ``now()`` in nanoseconds. ``kept``: what an earlier one had, "" for a new file.

    Raises ValueError for text that ``kept`` did not make.
    """

    def __init__(self, kept: str = "", clocks: Clocks | None = None):
        self._clocks = clocks or MACHINE
        self._boot = self._clocks.boot()
        self._boottime = self._clocks.boottime
        #: Age time at a moment of this boot.
        self._since = self._written = self._clocks.boottime()
        self._age = self._clocks.wall()
        self._mark: _Mark | None = None
        if kept:
            self._restore(kept)
        self.look()

    def _restore(self, kept: str) -> None:
        try:
            age, boot, since, mark = json.loads(kept)
            self._age = int(age)
            self._mark = _Mark(int(mark[0]), int(mark[1]), str(mark[2])) if mark else None
            if boot and boot == self._boot:
                self._age += max(0, self._since - int(since))
        except (TypeError, ValueError, LookupError) as error:
            raise ValueError(f"{kept!r} is no age time") from error

    def now(self) -> int:
        """Nanoseconds of age time."""
        passed = self._boottime() - self._since
        # A machine that was restored from a snapshot may have gone back.
        return self._age + passed if passed > 0 else self._age

    def seconds(self) -> float:
        """The same in seconds."""
        return self.now() / 1e9

    def look(self) -> None:
        """Count time that the machine was off, once its clock is synchronized; to be called now and then."""
        if not self._clocks.synchronized():
            return
        now, wall, mark = self.now(), self._clocks.wall(), self._mark
        if mark is not None and not (mark.boot and mark.boot == self._boot):
            off = wall - mark.wall - (now - mark.age)
            self._age += max(0, off)
            now += max(0, off)
        self._mark = _Mark(now, wall, self._boot)

    def kept(self) -> str:
        """What to write into the file."""
        self.look()
        self._written = self._clocks.boottime()
        return json.dumps([self.now(), self._boot, self._written, self._mark])

    @property
    def unwritten(self) -> float:
        """Seconds since ``kept`` was asked for."""
        return (self._clocks.boottime() - self._written) / 1e9

    @property
    def is_due(self) -> bool:
        """Whether ``kept`` is to be written again, if the file is written anyway."""
        return self.unwritten >= CHECKPOINT

    def join(self, kept: str) -> None:
        """Go on with what another process has written into the same file, if that is further. Raises ValueError."""
        other = AgeClock(kept, self._clocks)
        if other.now() > self.now():
            self._age, self._since, self._mark = other._age, other._since, other._mark
