"""Control a real or virtual board over its serial port: run code, copy files, reset it.

It uses mpremote's transport, so tests and mpremote's users see the same behavior.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from mpremote.transport import TransportError, TransportExecError
from mpremote.transport_serial import SerialTransport
from serial import SerialException

from tools.virtual_board import VirtualBoard

#: Environment variable with a command that switches a board's supply, ``{state}`` being ``on`` or ``off``. Example:
#: ``HEADWATER_BOARD_POWER="uhubctl -l 1-1 -p 2 -a {state}"``.
POWER_COMMAND = "HEADWATER_BOARD_POWER"
_OPEN_S = 15.0
#: Seconds that a board may take to stop its program.
_INTERRUPT_S = 5.0
#: Number of requests for the raw prompt.
_ATTEMPTS = 3
_CHUNK = 1024
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


class DeviceError(Exception):
    """Code on the board raised an exception. The text is its traceback, `stdout` what it printed."""

    def __init__(self, traceback: str, stdout: str) -> None:
        """Store the traceback and the output."""
        super().__init__(traceback)
        self.stdout = stdout


class NotSupported(Exception):  # noqa: N818 - a fact about the board, not an error
    """This board cannot do what was requested; the text has the reason."""


def _text(data: bytes) -> str:
    return data.decode(errors="replace").replace("\r\n", "\n")


class Board:
    """The board at `port`. `virtual` gives access to its power and reset. A context manager closes the port."""

    def __init__(self, port: str, virtual: VirtualBoard | None = None) -> None:
        """Create the board; the first call opens the port."""
        self.port = port
        self.virtual = virtual
        self._transport: Any = None

    def __enter__(self) -> Board:
        """Return the board; the first call connects."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the port."""
        self.close()

    # ---- code --------------------------------------------------------------------------------------------------------

    def exec(self, code: str, timeout: float = 60.0) -> str:
        """Run code at the raw prompt and return its output. `timeout` limits the seconds without output.

        Names stay defined until a reset. An exception on the board raises DeviceError. Silence raises
        TransportError with the output and the position that ctrl-C interrupted.
        """
        transport = self._raw_prompt()
        printed: list[bytes] = []
        try:
            _, error = transport.exec_raw(code, timeout=timeout, data_consumer=printed.append)
        except TransportError as silent:
            raise TransportError(f"{silent}: {self._interrupt(printed)}") from silent
        output = _text(b"".join(printed)[:-1])
        if error:
            raise DeviceError(_text(error), output)
        return output

    def run_file(self, path: Path, timeout: float = 60.0) -> str:
        """Run a file of this machine on the board and return its output."""
        return self.exec(path.read_text(), timeout)

    def start(self, code: str) -> None:
        """Start code without waiting for its end. The next call interrupts it."""
        self._raw_prompt().exec_raw_no_follow(code)
        self.close(leave=False)

    # ---- files -------------------------------------------------------------------------------------------------------

    def put(self, name: str, data: bytes) -> None:
        """Write a file to the board and create its directories."""
        folders = name.strip("/").split("/")[:-1]
        if folders:
            self.exec(_MAKE_FOLDERS.format(folders))
        self._raw_prompt().fs_writefile(name, data, chunk_size=_CHUNK)

    def get(self, name: str) -> bytes:
        """Read a file of the board. Raises FileNotFoundError if it does not exist."""
        return bytes(self._raw_prompt().fs_readfile(name, chunk_size=_CHUNK))

    def remove(self, name: str) -> None:
        """Remove a file of the board. Raises FileNotFoundError if it does not exist."""
        self._raw_prompt().fs_rmfile(name)

    def listdir(self, name: str = "/") -> list[str]:
        """List the names in a directory of the board."""
        return [entry.name for entry in self._raw_prompt().fs_listdir(name)]

    # ---- reset and power ---------------------------------------------------------------------------------------------

    def soft_reset(self) -> None:
        """Reset the interpreter without running `main.py`."""
        self._connect(soft_reset=True)

    def reset(self) -> None:
        """Reset the hardware. `main.py` runs until the next call interrupts it."""
        if self.virtual is not None:
            self.close(leave=False)
            self.virtual.reset()
            return
        self._raw_prompt().exec_raw_no_follow("import time, machine; time.sleep_ms(200); machine.reset()")
        self.close(leave=False)
        time.sleep(0.5)  # the board waits, so that its port has disappeared before this machine looks for it
        self._wait(lambda: Path(self.port).exists(), "did not come back")

    @property
    def switchable(self) -> bool:
        """Whether `power_cut` is possible."""
        return self.virtual is not None or POWER_COMMAND in os.environ

    def power_cut(self) -> None:
        """Cut the power. Raises NotSupported for a real board without a switchable supply."""
        self.close(leave=False)
        if self.virtual is not None:
            self.virtual.power_cut()
        else:
            self._switch("off")

    def power_on(self) -> None:
        """Restore the power. `main.py` runs until the next call interrupts it."""
        if self.virtual is not None:
            self.virtual.power_on()
        else:
            self._switch("on")
            self._wait(lambda: Path(self.port).exists(), "did not come back")

    def close(self, *, leave: bool = True) -> None:
        """Close the port. With `leave`, the board returns to its friendly prompt first."""
        transport, self._transport = self._transport, None
        if transport is not None:
            with contextlib.suppress(OSError, SerialException, TransportError):
                if leave:
                    transport.exit_raw_repl()
            with contextlib.suppress(OSError, SerialException):
                transport.close()

    # ------------------------------------------------------------------------------------------------------------------

    def _interrupt(self, printed: list[bytes]) -> str:
        """Stop the running code and return its output and traceback."""
        transport = self._transport
        try:
            transport.serial.write(b"\x03")
            _, error = transport.follow(_INTERRUPT_S, printed.append)
        except (TransportError, OSError, SerialException):
            self.close(leave=False)
            return f"{_text(b''.join(printed))!r} printed; ctrl-C does not stop it"
        return f"{_text(b''.join(printed)[:-1])!r} printed, then it was here:\n{_text(error)}"

    def _raw_prompt(self) -> Any:
        if self._transport is None:
            self._connect(soft_reset=False)
        return self._transport

    def _connect(self, *, soft_reset: bool) -> None:
        if self._transport is None:
            opened: list[Any] = []

            def attempt() -> bool:
                with contextlib.suppress(TransportError, OSError, SerialException):
                    opened.append(SerialTransport(self.port))
                return bool(opened)

            self._wait(attempt, "cannot be opened; another program may use it")
            self._transport = opened[0]
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                self._transport.enter_raw_repl(soft_reset=soft_reset)
                return
            except TransportError:
                # A board that is starting drops input, and mpremote sends its request once.
                if not attempts_left:
                    self.close(leave=False)
                    raise
            except BaseException:
                self.close(leave=False)
                raise

    def _switch(self, state: str) -> None:
        command = os.environ.get(POWER_COMMAND)
        if command is None:
            raise NotSupported(f"the supply of {self.port} cannot be switched: set {POWER_COMMAND}")
        subprocess.run(shlex.split(command.replace("{state}", state)), check=True, timeout=60)

    def _wait(self, true: Callable[[], bool], failure: str) -> None:
        deadline = time.monotonic() + _OPEN_S
        while not true():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the board at {self.port} {failure}")
            time.sleep(0.05)


__all__ = ["POWER_COMMAND", "Board", "DeviceError", "NotSupported", "TransportError", "TransportExecError"]
