"""Time that passes only while somebody waits: it jumps to the next event.

``install`` replaces ``time`` and ``select``, and the parts of ``asyncio`` that read the real clock.
"""

import select as _unix_select
import sys
import time as _unix_time

_PERIOD = 1 << 30
_HALF = _PERIOD >> 1
_FOREVER = 1 << 60


class OverError(BaseException):
    """The time of the simulation is up. Programs that catch Exception do not catch it."""


class Clock:
    """``now`` is in milliseconds. ``at`` plans a call, ``advance`` and ``jump`` let time pass."""

    def __init__(self):
        self.now = 0
        #: When ``advance`` raises OverError.
        self.end = _FOREVER
        self._plan = []
        self._number = 0

    def restart(self):
        """Forget the time and the plan."""
        self.now = 0
        self.end = _FOREVER
        self._plan.clear()

    def at(self, delay, call, argument=None):
        """Call ``call(argument)`` after ``delay`` milliseconds. Calls of the same time keep their order."""
        self._number += 1
        entry = (self.now + int(delay), self._number, call, argument)
        plan = self._plan
        i = len(plan)
        # The latest first, so that the next one is the last of the list.
        while i and plan[i - 1] < entry[:2]:
            i -= 1
        plan.insert(i, entry)

    def left(self):
        """Return the milliseconds to the next event."""
        return self._plan[-1][0] - self.now if self._plan else _FOREVER

    def advance(self, ms):
        """Let ``ms`` milliseconds pass."""
        to = self.now + ms
        while self._plan and self._plan[-1][0] <= to:
            when, _, call, argument = self._plan.pop()
            self.now = when
            call(argument)
        self.now = to
        if to >= self.end:
            raise OverError

    def jump(self, most):
        """Let time pass up to the next event, at most ``most`` milliseconds."""
        self.advance(min(max(self.left(), 1), most))


clock = Clock()


def ticks_ms():
    """Return the time as a board does: it wraps at 2**30."""
    return clock.now & (_PERIOD - 1)


def ticks_diff(a, b):
    """``time.ticks_diff`` with a board's period."""
    return ((a - b + _HALF) & (_PERIOD - 1)) - _HALF


def ticks_add(a, b):
    """``time.ticks_add`` with a board's period."""
    return (a + b) & (_PERIOD - 1)


class Module:
    """A module made of names."""

    def __init__(self, name, base, **names):
        self.__name__ = name
        for known in dir(base):
            if not known.startswith("__"):
                setattr(self, known, getattr(base, known))
        for known, value in names.items():
            setattr(self, known, value)


class Poll:
    """``select.poll`` in simulated time, over objects with ``ioctl``."""

    def __init__(self):
        self._watched = {}

    def register(self, stream, events=5):
        self._watched[id(stream)] = [stream, events]

    def modify(self, stream, events):
        self._watched[id(stream)][1] = events

    def unregister(self, stream):
        self._watched.pop(id(stream), None)

    def poll(self, ms=-1):
        ms = -1 if ms is None or ms < 0 else int(ms)
        end = clock.now + ms
        while True:
            ready = []
            for stream, events in self._watched.values():
                found = stream.ioctl(3, events)
                if found:
                    ready.append((stream, found))
            if ready or ms == 0 or (ms > 0 and clock.now >= end):
                return ready
            # Not to the next event alone: the stand-ins' radio moves when it is looked at.
            clock.jump(min(10, end - clock.now) if ms > 0 else 10)

    def ipoll(self, ms=-1, flags=0):
        return iter(self.poll(ms))


class Task:
    """``asyncio.Task`` in Python; the unix build's own reads the real clock."""

    def __init__(self, coro, names=None):
        self.coro = coro
        self.data = None
        self.state = True
        self.ph_key = 0

    def __iter__(self):
        if not self.state:
            self.state = False
        elif self.state is True:
            self.state = TaskQueue()
        elif not isinstance(self.state, TaskQueue):
            raise RuntimeError("can't wait")
        return self

    def __next__(self):
        if not self.state:
            raise self.data
        core = sys.modules["asyncio.core"]
        self.state.push(core.cur_task)
        core.cur_task.data = self

    def done(self):
        return not self.state

    def cancel(self):
        if not self.state:
            return False
        core = sys.modules["asyncio.core"]
        if self is core.cur_task:
            raise RuntimeError("can't cancel self")
        task = self
        while isinstance(task.data, Task):
            task = task.data
        if hasattr(task.data, "remove"):
            task.data.remove(task)
            core._task_queue.push(task)
        elif ticks_diff(task.ph_key, ticks_ms()) > 0:
            core._task_queue.remove(task)
            core._task_queue.push(task)
        task.data = core.CancelledError
        return True


class TaskQueue:
    """Tasks by the time when they are due. A task's turn takes a millisecond, or a task that yields would stop time."""

    def __init__(self):
        self._tasks = []

    def push(self, task, key=None):
        task.data = None
        task.ph_key = ticks_ms() if key is None else key
        i = len(self._tasks)
        while i and ticks_diff(self._tasks[i - 1].ph_key, task.ph_key) > 0:
            i -= 1
        self._tasks.insert(i, task)

    def peek(self):
        return self._tasks[0] if self._tasks else None

    def pop(self):
        clock.advance(1)
        return self._tasks.pop(0)

    def remove(self, task):
        self._tasks.remove(task)


def install():
    """Replace the modules that know the time. Call it before the program is imported."""
    names = {
        "ticks_ms": ticks_ms,
        "ticks_us": lambda: ticks_ms() * 1000 & (_PERIOD - 1),
        "ticks_diff": ticks_diff,
        "ticks_add": ticks_add,
        "sleep_ms": lambda ms: clock.advance(max(int(ms), 0)),
        "sleep": lambda s: clock.advance(max(int(s * 1000), 0)),
        "sleep_us": lambda us: None,
        "time": lambda: clock.now // 1000,
        "time_ns": lambda: clock.now * 1000000,
    }
    sys.modules["time"] = sys.modules["utime"] = Module("time", _unix_time, **names)
    sys.modules["select"] = sys.modules["uselect"] = Module("select", _unix_select, poll=Poll)
    sys.modules["_asyncio"] = Module("_asyncio", None, Task=Task, TaskQueue=TaskQueue)
