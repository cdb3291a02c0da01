"""Boot number, cause of the last reset and last error, kept on flash.

    boots = Boots()
    keeper.publish(b"board-1/boot", boots.report("board-1"), 1)
    while True:
        reading = {"boot": boots.boot, "seq": boots.next_seq(), "celsius": read_sensor()}
        ...

``boot`` and ``seq`` together identify a message. A start writes to flash once; ``next_seq`` writes nothing.

The state is in two small files, ``path.0`` and ``path.1``, which are written in turn. Each has a checksum, so a power
cut at any point leaves the older one, on littlefs and on FAT.
"""

import json
import os
import sys
from binascii import crc32
from errno import ENOENT
from io import StringIO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    machine: Any

    def print_exception(error: BaseException, file: StringIO) -> None:
        """``sys.print_exception``."""
        ...
else:
    print_exception = getattr(sys, "print_exception", None)

#: Constants of ``machine.reset_cause()``, of which a port has some, and what ``cause`` calls them.
CAUSES = (
    ("PWRON_RESET", "power on"),
    ("HARD_RESET", "hard reset"),
    ("WDT_RESET", "watchdog"),
    ("DEEPSLEEP_RESET", "deep sleep"),
    ("SOFT_RESET", "soft reset"),
)
# Characters of a traceback that are kept: its end, which has the error.
_ERROR_SIZE = 200
# The number of times that one start of the board writes an error.
_ERRORS = 8


class Boots:
    """The board's starts. Creating the object counts one: create it once, early in ``main.py``.

    - ``boot``: the number of this start, from 1; larger than all before. If the file system does not store it
      (``error`` has the OSError), a random number from 2**31 to 2**32 - 1, so that no message has another's identity.
    - ``cause``: why the board started: "power on", "watchdog", "deep sleep", "hard reset", "soft reset", "unknown", or
      what ``note`` or ``reset`` of the run before stored.
    - ``last_error``: the end of the traceback that ``failed`` stored last; "" without one. ``error_boot`` is its boot.
    """

    def __init__(self, path: str = "/headwater.boot"):
        self._path = path
        self.seq = 0
        self.error: OSError | None = None
        #: [number of the write, boot, note, last error, its boot]
        states = (_load(path + ".0"), _load(path + ".1"))
        self._state: list[Any] = max(states)
        if self._state[0] < 0:
            # No file tells which numbers were used. These are larger, also than that of the last write.
            self._state[0] = self._state[1] = 1 << 31 | int.from_bytes(os.urandom(4), "big") >> 2
        self._errors = _ERRORS
        self.cause = _cause(self._state[2])
        damaged = min(states)[0] < 0
        # A damaged file may have had the number that follows.
        self._state[1] += 2 if damaged else 1
        self._state[2] = ""
        self._store()
        if damaged:
            # To the other file as well, so that the numbers in the two never differ by more than one.
            self._store()
        self.boot: int = self._state[1]
        if self.error is not None:
            self.boot = 1 << 31 | int.from_bytes(os.urandom(4), "big")

    @property
    def last_error(self) -> str:
        """The end of the traceback that ``failed`` stored last."""
        return str(self._state[3])

    @property
    def error_boot(self) -> int:
        """The boot in which ``last_error`` happened."""
        return int(self._state[4])

    def next_seq(self) -> int:
        """Return the next sequence number of this boot, from 1."""
        self.seq += 1
        return self.seq

    def note(self, cause: str) -> None:
        """Store the ``cause`` of the next start, unless the power is switched off before."""
        self._state[2] = cause
        self._store()

    def reset(self, why: str) -> None:
        """Store ``why`` and reset the board: ``cause`` of the next start is "ours: " and ``why``."""
        import machine

        self.note("ours: " + why)
        machine.reset()

    def failed(self, error: BaseException) -> None:
        """Store ``error`` as ``last_error``. The same error again, and more than 8 in one start, are not written."""
        text = StringIO()
        print_exception(error, text)
        state = self._state
        last = [text.getvalue().strip()[-_ERROR_SIZE:], state[1]]
        if self._errors and last != state[3:]:
            self._errors -= 1
            state[3:] = last
            self._store()

    def report(self, board: str) -> bytes:
        """Return ``board``, ``boot``, ``cause``, ``last_error`` and ``error_boot`` as JSON, to be published after a
        restart."""
        report = {"board": board, "boot": self.boot, "cause": self.cause}
        if self.last_error:
            report["error"] = self.last_error
            report["error_boot"] = self.error_boot
        return json.dumps(report).encode()

    def _store(self) -> None:
        state = self._state
        state[0] += 1
        text = json.dumps(state).encode()
        try:
            # The file with the older state.
            with open("%s.%d" % (self._path, state[0] & 1), "wb") as file:
                file.write(b"%08x" % crc32(text) + text)
        except OSError as e:
            # The next write must not touch the newer one either.
            state[0] -= 1
            self.error = e


def _load(path: str) -> "list[Any]":
    """Return the state in a file; the first state if there is none, with -1 if it is torn or cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        if not data:
            # The first write was cut.
            return [0, 0, "", "", 0]
        if int(data[:8], 16) == crc32(data[8:]):
            state: list[Any] = json.loads(data[8:])
            return state
    except OSError as error:
        if error.errno == ENOENT:
            return [0, 0, "", "", 0]
    except ValueError:
        pass
    return [-1, 0, "", "", 0]


def _cause(note: str) -> str:
    """Return why the board started."""
    import machine

    code = machine.reset_cause()
    for name, text in CAUSES:
        if getattr(machine, name, None) == code:
            # After a power cut the note tells of something that did not happen.
            return text if text == "power on" else note or text
    return note or "unknown"
