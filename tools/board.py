"""Control a real or virtual board over its serial port, including its reset button and its supply."""

from __future__ import annotations

import os
import shlex
import subprocess

from mpremote.transport import TransportError

from headwater_host.board import repl
from headwater_host.board.errors import DeviceError
from tools.virtual_board import VirtualBoard

#: Environment variable with a command that switches a board's supply, ``{state}`` being ``on`` or ``off``. Example:
#: ``HEADWATER_BOARD_POWER="uhubctl -l 1-1 -p 2 -a {state}"``.
POWER_COMMAND = "HEADWATER_BOARD_POWER"


class NotSupported(Exception):  # noqa: N818 - a fact about the board, not an error
    """This board cannot do what was requested; the text has the reason."""


class Board(repl.Board):
    """The board at `port`. `virtual` gives access to its power and reset. A context manager closes the port."""

    def __init__(self, port: str, virtual: VirtualBoard | None = None) -> None:
        """Create the board; the first call opens the port."""
        super().__init__(port, repl.BACK_S)
        self.virtual = virtual

    def reset(self) -> None:
        """Reset the hardware. `main.py` runs until the next call interrupts it."""
        if self.virtual is None:
            super().reset()
            return
        self.close(leave=False)
        self.virtual.reset()

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
            self.wait_for_port()

    def _switch(self, state: str) -> None:
        command = os.environ.get(POWER_COMMAND)
        if command is None:
            raise NotSupported(f"the supply of {self.port} cannot be switched: set {POWER_COMMAND}")
        subprocess.run(shlex.split(command.replace("{state}", state)), check=True, timeout=60)


__all__ = ["POWER_COMMAND", "Board", "DeviceError", "NotSupported", "TransportError"]
