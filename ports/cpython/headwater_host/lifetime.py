"""Age time: a monotonic clock that survives restarts.

People and NTP set a wall clock forward and back. A step forward that exceeds a lifetime would expire everything at
once. Each file that holds lifetimes therefore has its own clock, which counts only time that the process can prove:

* within one boot of the machine, CLOCK_BOOTTIME: also while the process is down or the machine suspended;
* across boots, what the wall clock says, if the kernel's clock was synchronized (NTP) at both ends; else nothing.

Age time starts at the wall clock's time when the file is created, but only differences mean anything. It never goes
back. The owner of a file regularly writes the text of ``AgeClock.kept`` into it and passes it to the next ``AgeClock``.
After a power cut, the time since the last write is not counted.
"""

import json
import time
from pathlib import Path
from typing import NamedTuple

#: Seconds between writes of ``kept``, while the file is written anyway.
CHECKPOINT = 10.0

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: The state that adjtimex reports for an unsynchronized clock: TIME_ERROR.
_UNSYNCHRONIZED = 5
#: Bytes reserved for struct timex, which is smaller.
_TIMEX = 512
# Elsewhere than on Linux there is no boot id either, so nothing counts while the process is down.
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clocks:
    """The machine's clocks. Tests replace them."""

    def boot(self) -> str:
        """Return the boot id of the machine, or "" if it is unknown."""
        try:
            return _BOOT_ID.read_text().strip()
        except OSError:
            return ""

    def boottime(self) -> int:
        """Return the nanoseconds since boot, including suspended time."""
        return time.clock_gettime_ns(_BOOTTIME)

    def wall(self) -> int:
        """Return the wall clock's time in nanoseconds since 1970."""
        return time.time_ns()

    def synchronized(self) -> bool:
        """Return whether the kernel's clock is synchronized. Setting it by hand resets that until the next NTP sync.

        False if it is unknown: in some containers, and on systems other than Linux. chrony needs ``rtcsync``.
        """
        return 0 <= _clock_state() < _UNSYNCHRONIZED


def _clock_state() -> int:
    """Return the clock state that adjtimex reports, or -1 if it is not available."""
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
    """Age time of one file. ``kept`` is the text that an earlier clock's ``kept()`` returned, "" for a new file.

    Raises ValueError if ``kept`` is not such text.
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
        """Seconds of age time."""
        return self.now() / 1e9

    def look(self) -> None:
        """Count the time that the machine was off once its clock is synchronized. Call this regularly."""
        if not self._clocks.synchronized():
            return
        now, wall, mark = self.now(), self._clocks.wall(), self._mark
        if mark is not None and not (mark.boot and mark.boot == self._boot):
            off = wall - mark.wall - (now - mark.age)
            self._age += max(0, off)
            now += max(0, off)
        self._mark = _Mark(now, wall, self._boot)

    def kept(self) -> str:
        """Return the text to write into the file."""
        self.look()
        self._written = self._clocks.boottime()
        return json.dumps([self.now(), self._boot, self._written, self._mark])

    @property
    def unwritten(self) -> float:
        """Seconds since the last call of ``kept``."""
        return (self._clocks.boottime() - self._written) / 1e9

    @property
    def is_due(self) -> bool:
        """True if to write ``kept`` with the next write to the file."""
        return self.unwritten >= CHECKPOINT

    def follow(self, now: int) -> None:
        """Continue from the age time of a leader, whose messages this process has."""
        self._since, self._age, self._mark = self._boottime(), now, None
        self.look()

    def join(self, kept: str) -> None:
        """Adopt the age time that another process wrote into the same file, if it is later. Raises ValueError."""
        other = AgeClock(kept, self._clocks)
        if other.now() > self.now():
            self._age, self._since, self._mark = other._age, other._since, other._mark
