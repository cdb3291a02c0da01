"""One life of a virtual board, from power on to power off: MicroPython's unix build behind a pty.

What it adds to the process is what the firmware of a real board does and the unix build does not: it holds ctrl-C back
until the process can take it, and it enters the raw prompt by itself after a soft reset from the raw prompt. Used by
``tools.virtual_board``; its methods are called by one thread.
"""

from __future__ import annotations

import os
import signal
import subprocess
import termios
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from tools import toolchain
from tools.lines import MAX_QUEUE, open_pty, read_now

#: Printed by the boot script and never passed on: the board listens from here on; its start-up scripts have ended.
READY, DONE = b"\x1e<ready>\x1e", b"\x1e<done>\x1e"
_RAW_PROMPT = b"raw REPL; CTRL-B to exit\r\n"
_FRIENDLY_BANNER = b'Type "help()" for more information.\r\n'
_CTRL_A, _CTRL_C = b"\x01", 0x03
_BOOT = "__import__('virtual_board_boot').start({config!r}, globals())"
#: How long a program may go on after ctrl-C before what the host sent next is let through (seconds).
_HOLD_S = 0.3

Ending = Literal["soft reset", "hard reset", "power cut", "crash"]


def unix_command(heap: int, *arguments: str) -> list[str]:
    """The command line of MicroPython's unix build with a heap of ``heap`` bytes."""
    program = toolchain.find("micropython")
    if program is None:
        tool = toolchain.TOOLS["micropython"]
        raise FileNotFoundError(f"micropython ({tool.what}) is missing: {tool.get}")
    return [str(program), "-X", f"heapsize={heap}", *arguments]


def unix_environment(path: str) -> dict[str, str]:
    """The environment of a board's process: ``path`` is where it looks for modules first."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "MICROPYPATH": f"{path}:.frozen"}


def interrupt(pid: int) -> bool:
    """Send a child process the signal of ctrl-C; False, and nothing sent, when it would die of it: try again soon.

    MicroPython handles the signal only while it runs a program, not on the way from there to the prompt. So it is
    stopped, looked at and let go: nothing can change in between.
    """
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    handled = int(status.partition("SigCgt:")[2].split(maxsplit=1)[0], 16) >> (signal.SIGINT - 1) & 1
    if handled:
        os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGCONT)
    return bool(handled)


class RawPaste:
    """Follows the raw-paste protocol between host and board, to know when code that came by it runs.

    The terminal does not tell: the unix build leaves it as it is at the prompt, and ctrl-C is no signal, while it runs
    such code. (For code that came otherwise it switches the terminal over.)
    """

    _REQUEST, _GRANTED, _END = b"\x05A\x01", b"R\x01", 0x04
    #: The board's end marks: of the code it was sent, of the output, of the error.
    _ENDS = 3

    def __init__(self) -> None:
        """At the prompt."""
        self.running = False
        self._stage: Literal["none", "asked", "code"] = "none"
        self._reply = b""
        self._ends = 0

    def from_host(self, data: bytes) -> None:
        """The host has sent ``data``."""
        if self._stage == "none" and not self.running and data.endswith(self._REQUEST):
            self._stage, self._reply = "asked", b""
        elif self._stage == "code" and self._END in data:
            self._stage, self.running = "none", True

    def from_board(self, data: bytes) -> None:
        """The board has sent ``data``."""
        if self._stage == "asked":
            self._reply += data
            if len(self._reply) >= len(self._GRANTED):
                self._stage = "code" if self._reply.startswith(self._GRANTED) else "none"
                self._ends = 0
        if self.running or self._stage == "code":
            self._ends += data.count(self._END)
            if self._ends >= self._ENDS:
                self.running = False


class BoardProcess:
    """A board that is powered. ``fds`` are to be watched for reading; ``step`` is due when one is ready, or soon."""

    def __init__(
        self, heap: int, path: str, config: Mapping[str, object], keep: Sequence[int], *, raw: bool
    ) -> None:
        """Start the process; ``path`` holds the boot script, ``config`` is for it, ``keep`` are descriptors it names.

        With ``raw`` it comes up at the raw prompt, without running ``main.py``.
        """
        self.raw = raw
        self.listening = False
        self._entering_raw = False
        self._inner, self._slave = open_pty(interrupts=True)
        self._control, control = os.pipe()
        os.set_blocking(self._control, False)
        text = _BOOT.format(
            config={
                **config,
                "control": control,
                "run_main": not raw,
                "ready": READY.decode(),
                "done": DONE.decode(),
            }
        )
        # The shell leads a session and opens the pty, which so becomes the one whose ctrl-C reaches the process.
        self._child = subprocess.Popen(
            [
                "sh",
                "-c",
                'exec "$@" <"$0" >"$0" 2>&1',
                os.ttyname(self._slave),
                *unix_command(heap, "-i", "-c", text),
            ],
            pass_fds=[control, *keep],
            env=unix_environment(path),
            cwd="/",
            start_new_session=True,
        )
        os.close(control)
        self._exit = os.pidfd_open(self._child.pid)
        self.hidden = b""
        self._output = b""
        # What comes up to each mark, and whether the host sees it.
        self._stages = deque([(False, READY), (True, DONE)])
        if raw:
            self._stages.append((False, _RAW_PROMPT))
        self._tail = b""
        self._input = bytearray()
        self._paste = RawPaste()
        self._hold_until = 0.0
        self._asked = b""

    @property
    def fds(self) -> tuple[int, int, int]:
        """The board's output, its requests, its end."""
        return self._inner, self._control, self._exit

    @property
    def hurried(self) -> bool:
        """Whether ``step`` is due soon, whatever the descriptors say."""
        return bool(self._input) or self._entering_raw

    def feed(self, data: bytes) -> None:
        """Take what the host has sent; what overruns a busy board is lost, as on a serial line."""
        self._input += data[: MAX_QUEUE - len(self._input)]

    def step(self, *, read: bool = True) -> bytes:
        """Move bytes both ways: what the board says to the host. ``read=False`` leaves its output where it is."""
        # Before its output is read: what it has said on the way to the prompt has come then.
        flags = termios.tcgetattr(self._slave)[3]
        at_prompt = not flags & termios.ISIG
        heard = b""
        while read and (data := read_now(self._inner)):
            heard += data
        said = self._filter(heard) if heard else b""
        if self.listening:
            self._note_prompt(said)
            self._paste.from_board(heard)
        self._asked += read_now(self._control)
        if read and at_prompt and self._stages and self._stages[0][1] == READY:
            self.kill()  # the boot script has failed, and the prompt came instead
        elif self._entering_raw and at_prompt:
            self._entering_raw = False
            os.write(self._inner, _CTRL_A)
        if self._input and self.listening and self._child.returncode is None:
            # The boot script's kbd_intr sets the other flag, which does nothing else here.
            running = self._paste.running or not at_prompt
            self._forward(running and not flags & termios.ECHONL)
        return said

    def ending(self) -> Ending | None:
        """How the board's life has ended, None while it goes on."""
        if self._asked:  # and it does nothing more
            return "hard reset" if self._asked.startswith(b"R") else "power cut"
        code = self._child.poll()
        if code is None:
            return None
        return "soft reset" if code >= 0 and self.listening else "crash"

    def freeze(self) -> None:
        """Stop the process where it is; its sockets stay open, and nobody answers on them."""
        os.kill(self._child.pid, signal.SIGSTOP)
        self._input.clear()  # a ctrl-C that waits in there would let it go on

    def kill(self) -> None:
        """End the process where it is."""
        self._child.kill()
        self._child.wait()

    def close(self) -> None:
        """End the process, if it runs, and close what belongs to it."""
        self.kill()
        for fd in (*self.fds, self._slave):
            os.close(fd)

    def _filter(self, heard: bytes) -> bytes:
        """Take the marks, and what is between those that the host does not see, out of the output."""
        self._output += heard
        said = b""
        while self._stages:
            shown, mark = self._stages[0]
            before, found, behind = self._output.partition(mark)
            if not found:
                keep = next((n for n in range(len(mark) - 1, 0, -1) if before.endswith(mark[:n])), 0)
                before, behind = before[: len(before) - keep], before[len(before) - keep :]
            if shown:
                said += before
            else:
                self.hidden += before
            self._output = behind
            if not found:
                return said
            self._stages.popleft()
            if mark == READY:
                self.listening = not self.raw
            elif mark == DONE:
                self._entering_raw = self.raw
            else:
                self.listening = True
                said += mark
        said, self._output = said + self._output, b""
        return said

    def _note_prompt(self, said: bytes) -> None:
        """Remember which prompt the board is at: the last one that it has announced."""
        self._tail = (self._tail + said)[-256:]
        raw, friendly = self._tail.rfind(_RAW_PROMPT), self._tail.rfind(_FRIENDLY_BANNER)
        if raw != friendly:
            self.raw = raw > friendly

    def _forward(self, interruptible: bool) -> None:
        """Pass the host's bytes on. Behind a ctrl-C, wait: the process discards its input on the way to the prompt."""
        now = time.monotonic()
        if interruptible and now < self._hold_until:
            return
        end = self._input.find(_CTRL_C) if interruptible else -1
        if end == 0:
            if interrupt(self._child.pid):
                del self._input[0]
                self._hold_until = now + _HOLD_S
            return
        try:
            taken = os.write(self._inner, self._input[: end if end > 0 else 4096])
        except BlockingIOError:
            return
        self._paste.from_host(bytes(self._input[:taken]))
        del self._input[:taken]
