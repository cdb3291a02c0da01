"""Control a MicroPython board over its serial port: run code, copy files, reset it.

It uses mpremote's transport, so that every program sees the same behavior.
"""

import contextlib
import io
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from mpremote.transport import TransportError, TransportExecError
from mpremote.transport_serial import SerialTransport

from headwater_host.board.errors import BoardResetError, DeviceError, is_full, unopened

_Self = TypeVar("_Self", bound="Board")

#: Seconds until a port is back after a reset, and until a board stops its program.
BACK_S = 15.0
_INTERRUPT_S = 5.0
#: Number of requests for the raw prompt, and seconds for each.
_ATTEMPTS = 3
_PROMPT_S = 4.0
#: Seconds for one step of the raw prompt's protocol.
_STEP_S = 10.0
_CHUNK = 1024
#: Lines of a board that starts: the ROM of ESP32 chips, a soft reset, the prompt.
_STARTED = re.compile(
    rb'rst:0x[0-9a-f]+ \([A-Z0-9_]+\),boot:0x|MPY: soft reboot\r?$|Type "help\(\)" for more information\.\r?$'
)
_LONGEST_SIGN = 256
# Nothing can stop a watchdog: this lets a timer feed it for ten minutes.
_FEED = """
import sys
_watchdog = getattr(sys.modules.get("headwater_board.watchdog"), "current", None)
if _watchdog:
    _watchdog.allow(600000)
"""
# The board waits until this machine has closed the port.
_RESET = "import time, machine; time.sleep_ms(200); machine.reset()"
# One piece of code, because each takes a round trip.
_MAKE_FOLDERS = """
import os
_path = ""
for _name in {}:
    _path += "/" + _name
    try:
        os.stat(_path)
    except OSError:
        os.mkdir(_path)
"""


# littlefs replaces a file at once; FAT does not rename over a file. The names are relative, because MicroPython's unix
# build confuses two absolute ones.
_REPLACE = """
import os
os.chdir("/")
try:
    os.rename({0!r}, {1!r})
except OSError:
    os.remove({1!r})
    os.rename({0!r}, {1!r})
"""
# The file is still open on the board.
_DROP = """
import os
try:
    f.close()
except Exception:
    pass
try:
    os.remove({!r})
except OSError:
    pass
"""


def _text(data: bytes) -> str:
    return data.decode(errors="replace").replace("\r\n", "\n")


class _ResetSigns:
    """Finds the lines that a board prints when it starts, in the output of a program.

    The port of a USB bridge stays open while the board resets, and the end of the program never comes.
    """

    def __init__(self, consume: Callable[[bytes], object]) -> None:
        """Pass the output to `consume`."""
        self._consume = consume
        self._line = b""

    def __call__(self, data: bytes) -> None:
        """Pass on output. Raises BoardResetError."""
        if data == b"\x04":
            return
        self._consume(data)
        self._line = (self._line + data)[-_LONGEST_SIGN:]
        if data == b"\n":
            line, self._line = self._line, b""
            if _STARTED.match(line):
                raise BoardResetError(_text(line).strip())


class _Transport(SerialTransport):  # type: ignore[misc]  # mpremote has no types
    """mpremote's transport with a limit for a board that never stops printing."""

    def read_until(
        self,
        min_num_bytes: int,
        ending: bytes,
        timeout: float | None = 10,
        data_consumer: Callable[[bytes], object] | None = None,
        timeout_overall: float | None = None,
    ) -> bytes:
        """Read up to `ending`. Unlike mpremote, `timeout_overall` counts while bytes arrive, too."""
        if timeout_overall is None:
            return bytes(super().read_until(min_num_bytes, ending, timeout, data_consumer))
        data = bytearray()
        deadline = time.monotonic() + timeout_overall
        while not data.endswith(ending) and time.monotonic() < deadline:
            if self.serial.in_waiting:
                data += self.serial.read(1)
            else:
                time.sleep(0.01)
        return bytes(data)


class Board:
    """The board at `port`. A context manager closes the port.

    `patience` is the time in seconds for which a port that cannot be opened is tried again. Methods raise
    TransportError and OSError of the line; `errors.explained` turns them into BoardError.
    """

    def __init__(self, port: str, patience: float = 0.0) -> None:
        """Create the board; the first call opens the port."""
        self.port = port
        self._patience = patience
        self._transport: Any = None
        #: True after the first change of a file.
        self.changed = False

    def __enter__(self: _Self) -> _Self:
        """Return the board; the first call connects."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the port."""
        self.close()

    @property
    def at_prompt(self) -> bool:
        """True if the board's program is stopped and the port is open."""
        return self._transport is not None

    # ---- code --------------------------------------------------------------------------------------------------------

    def exec(self, code: str, timeout: float = 60.0) -> str:
        """Run code at the raw prompt and return its output. `timeout` limits the seconds without output.

        Names stay defined until a reset. An exception on the board raises DeviceError. Silence raises
        TransportError with the output and the position that ctrl-C interrupted.
        """
        printed: list[bytes] = []
        self._begin(code)
        try:
            error = self._follow(timeout, printed.append)
        except TransportError as silent:
            raise TransportError(f"{silent}: {self._interrupt(printed)}") from silent
        output = _text(b"".join(printed))
        if error:
            raise DeviceError(error, output)
        return output

    def stream(self, code: str, consume: Callable[[bytes], object]) -> str:
        """Run code at the raw prompt until it ends; pass its output to `consume`. Return the traceback, or "".

        KeyboardInterrupt and exceptions of `consume` interrupt the code on the board, too. Raises BoardResetError if
        the board starts again meanwhile.
        """
        self._begin(code)
        try:
            return self._follow(None, _ResetSigns(consume))
        except BoardResetError:
            self.close(leave=False)
            raise
        except BaseException as error:
            # `consume` fails if its reader has closed the pipe.
            rest = consume if isinstance(error, KeyboardInterrupt) else lambda data: None
            with contextlib.suppress(TransportError, OSError):
                self._transport.serial.write(b"\x03")
                self._follow(_INTERRUPT_S, rest)
            raise

    def run_file(self, path: Path, timeout: float = 60.0) -> str:
        """Run a file of this machine on the board and return its output."""
        return self.exec(path.read_text(), timeout)

    def start(self, code: str) -> None:
        """Start code without waiting for its end. The next call interrupts it."""
        self._begin(code)
        self.close(leave=False)

    # ---- files -------------------------------------------------------------------------------------------------------

    def put(self, name: str, data: bytes, progress: Callable[[int, int], object] | None = None) -> None:
        """Write a file to the board and create its directories. `progress`: bytes written, and all.

        If the file system fills up, or ctrl-C ends it, no part of the file stays there.
        """
        self.changed = True
        folders = name.strip("/").split("/")[:-1]
        if folders:
            self.exec(_MAKE_FOLDERS.format(folders))
        transport = self._raw_prompt()
        try:
            transport.fs_writefile(name, data, chunk_size=_CHUNK, progress_callback=progress)
        except (OSError, TransportExecError) as error:
            if is_full(error):
                # The board's program needs the rest of the file system.
                self.exec(_DROP.format(name))
            raise
        except KeyboardInterrupt:
            self.interrupt()
            self.exec(_DROP.format(name))
            raise

    def replace(self, name: str, data: bytes, progress: Callable[[int, int], object] | None = None) -> None:
        """Write a file like `put`, so that an interruption or a power cut leaves the old or the new one."""
        self.put(f"{name}.new", data, progress)
        relative = name.strip("/")
        self.exec(_REPLACE.format(f"{relative}.new", relative))

    def get(self, name: str) -> bytes:
        """Read a file of the board. Raises FileNotFoundError if it does not exist."""
        return bytes(self._raw_prompt().fs_readfile(name, chunk_size=_CHUNK))

    def remove(self, name: str) -> None:
        """Remove a file of the board. Raises FileNotFoundError if it does not exist."""
        self.changed = True
        self._raw_prompt().fs_rmfile(name)

    def listdir(self, name: str = "/") -> list[str]:
        """List the names in a directory of the board."""
        return [entry.name for entry in self._raw_prompt().fs_listdir(name)]

    # ---- reset -------------------------------------------------------------------------------------------------------

    def feed_watchdog(self) -> None:
        """Keep the watchdog of the program that was stopped from resetting the board, if it is one of headwater."""
        self.exec(_FEED)

    def interrupt(self) -> None:
        """Stop what an interrupted call left unfinished, and return to the raw prompt."""
        self._connect(soft_reset=False)

    def soft_reset(self) -> None:
        """Reset the interpreter without running `main.py`."""
        self._connect(soft_reset=True)

    def reset(self) -> None:
        """Reset the hardware. `main.py` runs until the next call interrupts it."""
        self.start(_RESET)
        time.sleep(0.5)  # by then a port of native USB has disappeared
        self.wait_for_port()

    def reset_and_release(self) -> Any:
        """Reset the hardware and return the open serial port, which has all that the board prints from then on."""
        self._begin(_RESET)
        line, self._transport = self._transport.serial, None
        return line

    def wait_for_port(self) -> None:
        """Wait until the board's port is there. Raises TimeoutError."""
        deadline = time.monotonic() + BACK_S
        while not Path(self.port).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the board at {self.port} did not come back")
            time.sleep(0.05)

    def close(self, *, leave: bool = True) -> None:
        """Close the port. With `leave`, the board returns to its friendly prompt first."""
        transport, self._transport = self._transport, None
        if transport is not None:
            with contextlib.suppress(OSError, TransportError):
                if leave:
                    transport.exit_raw_repl()
            with contextlib.suppress(OSError):
                transport.close()

    # ------------------------------------------------------------------------------------------------------------------

    def _begin(self, code: str) -> None:
        """Start code at the raw prompt."""
        transport = self._raw_prompt()
        with contextlib.redirect_stdout(io.StringIO()):  # mpremote prints what it does not expect
            transport.exec_raw_no_follow(code)

    def _follow(self, timeout: float | None, consume: Callable[[bytes], object]) -> str:
        """Wait for the end of the code and return its traceback."""
        # A timeout of None is none: the program may be silent for as long as it wants.
        _, error = self._transport.follow(timeout, lambda data: data != b"\x04" and consume(data))
        return _text(error)

    def _interrupt(self, printed: list[bytes]) -> str:
        """Stop the running code and return its output and traceback."""
        try:
            self._transport.serial.write(b"\x03")
            error = self._follow(_INTERRUPT_S, printed.append)
        except (TransportError, OSError):
            self.close(leave=False)
            return f"{_text(b''.join(printed))!r} printed; ctrl-C does not stop it"
        return f"{_text(b''.join(printed))!r} printed, then it was here:\n{error}"

    def _raw_prompt(self) -> Any:
        if self._transport is None:
            self._connect(soft_reset=False)
        return self._transport

    def _connect(self, *, soft_reset: bool) -> None:
        if self._transport is None:
            self._transport = self._open()
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    self._transport.enter_raw_repl(soft_reset=soft_reset, timeout_overall=_PROMPT_S)
                return
            except TransportError:
                # A board that is starting drops input, and mpremote sends its request once.
                if not attempts_left:
                    self.close(leave=False)
                    raise
            except BaseException:
                self.close(leave=False)
                raise

    def _open(self) -> Any:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                transport = _Transport(self.port)
            except (TransportError, OSError) as error:
                if time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                raise unopened(self.port) or error from error
            # A board that loses its power must not block its user.
            transport.serial.timeout = transport.serial.write_timeout = _STEP_S
            return transport
