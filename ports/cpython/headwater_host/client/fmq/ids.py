"""Message ids from the computer's clock, and their tables."""

import time
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING

from headwater.errors import E_ARGUMENT
from headwater.fmq.ids import IdMaker, IdTable
from headwater.fmq.spec import DATETIME, ID_SIZE, PUBLISH

if TYPE_CHECKING:
    from headwater.types import Bytes

# From here on (1972) a time takes eight bytes; a correct clock is later.
_FIRST = 1 << 56
# A later time (2116) of the hub is ignored.
_LAST = 1 << 62
_TIME = bytes((DATETIME << 4,))
# The maximum size of a process number, besides a head, a thread number of one byte, and a time.
_PROCESS = ID_SIZE - 11
#: Nanoseconds for which ids are reserved in one step.
RESERVE = 10_000_000_000


class ClockIdMaker(IdMaker):
    """``IdMaker`` with the computer's clock, or the hub's if that is ahead. A clock set back is ignored.

    ``process`` is the process number, little-endian; the first id is later than ``floor``. ``keep(process, ceiling)``
    is called when the process number changes, and before an id at or above the last ceiling is created. A store that
    keeps both passes them to the next ``ClockIdMaker`` as ``process`` and ``floor``.
    """

    def __init__(
        self,
        process: bytes = b"",
        floor: int = 0,
        keep: Callable[[bytes, int], object] | None = None,
    ):
        self._last = max(floor, _FIRST)
        self._ahead = 0
        self._ceiling = floor
        self._process = process
        self._keep = keep
        super().__init__()
        self.set_process(process, 0, len(process))

    def set_process(self, buf: "Bytes", at: int, end: int) -> int:
        """Set the process number. Return 0, or E_ARGUMENT if it is too long."""
        process = bytes(buf[at:end]).rstrip(b"\0")
        if len(process) > _PROCESS:
            return E_ARGUMENT
        # The id without type and time.
        self._size = len(process)
        self._behind = process + b"\0" + _TIME
        self.ident = memoryview(b"\0" + self._behind + bytes(8))
        if process and process != self._process:
            self._process = process
            self._reserve()
        return 0

    def _reserve(self) -> None:
        self._ceiling = max(self._last, time.time_ns() + self._ahead) + RESERVE
        if self._keep is not None:
            # A failing store is reported when the message with the id is stored.
            self._keep(self._process, self._ceiling)

    def set_time(self, buf: "Bytes", at: int, end: int, now_ms: int) -> int:
        """Set the hub's time. It is used if plausible and later than the local time. Return 0 or E_ARGUMENT."""
        hub = int.from_bytes(buf[at:end], "little")
        if end - at != 8 or hub > _LAST:
            return E_ARGUMENT
        self._ahead = max(0, hub - time.time_ns())
        return 0

    def next(self, kind: int, now_ms: int) -> "Bytes":
        """Return the next id for a message of type ``kind``."""
        now = time.time_ns() + self._ahead
        if now <= self._last:
            now = self._last + 1
        self._last = now
        if now >= self._ceiling:
            self._reserve()
        self.ident = bytes((kind << 4 | self._size,)) + self._behind + now.to_bytes(8, "little")
        return self.ident


class ChosenIdMaker(ClockIdMaker):
    """``ClockIdMaker`` that gives the next published message the id ``chosen``, if that is not empty.

    Assign it to ``client.session.ids`` before the client connects. The program must not choose an id twice on one
    connection: the hub would take the second message for a retransmission of the first.
    """

    chosen: bytes = b""
    _made: "Bytes" = b""

    @property
    def ident(self) -> "Bytes":
        """The id of the next message if it is chosen, otherwise the last id; both have the size of the next one."""
        return self.chosen or self._made

    @ident.setter
    def ident(self, made: "Bytes") -> None:
        self._made = made

    def next(self, kind: int, now_ms: int) -> "Bytes":
        """Return the chosen id for a PUBLISH, otherwise the next id of the clock."""
        if kind == PUBLISH and self.chosen:
            chosen, self.chosen = self.chosen, b""
            return chosen
        super().next(kind, now_ms)
        return self._made


class _States(bytearray):
    """States of the places of a table, with the free places and an index by state and id."""

    def __init__(self, places: int):
        super().__init__(places)
        self.idents = [b""] * places
        self.places: dict[tuple[int, bytes], int] = {}
        # The first place is taken first, so that a scan of the table finds entries early.
        self.free = list(range(places - 1, -1, -1))

    def __setitem__(self, i: int, state: int) -> None:  # type: ignore[override]  # there are no slices of it
        before = self[i]
        if before:
            key = (before, self.idents[i])
            if self.places.get(key) == i:
                del self.places[key]
            if not state:
                self.free.append(i)
        elif state:
            # Mostly the place that ``free`` returned, which is the last one.
            if self.free[-1] == i:
                self.free.pop()
            else:
                self.free.remove(i)
        super().__setitem__(i, state)
        if state:
            self.places[state, self.idents[i]] = i


class HostIdTable(IdTable):
    """``IdTable`` of any size that finds entries without a search."""

    def __init__(self, places: int):
        # The base's constructor is not called: its numbers are bytes.
        self.places = places
        self._states = _States(places)
        self.state = self._states
        self.more = array("H", bytes(2 * places))  # type: ignore[assignment]  # numbers by place, as there
        self.ids = bytearray(places * ID_SIZE)
        self.sizes = bytearray(places)
        self._turns = bytearray(places)

    def free(self) -> int:
        """Return a free place, or -1."""
        free = self._states.free
        return free[-1] if free else -1

    def rename(self, i: int, state: int, buf: "Bytes", at: int, end: int) -> None:
        """Replace the id of a place."""
        ident = bytes(buf[at:end])
        states = self._states
        if states[i]:
            states[i] = 0
        states.idents[i] = ident
        self.sizes[i] = len(ident)
        self.ids[i * ID_SIZE : i * ID_SIZE + len(ident)] = ident
        states[i] = state

    def find(self, first: int, last: int, buf: "Bytes", at: int, end: int) -> int:
        """Return the place of an id in a state from ``first`` to ``last``, or -1."""
        places = self._states.places
        ident = bytes(buf[at:end])
        return next((places[s, ident] for s in range(first, last + 1) if (s, ident) in places), -1)
