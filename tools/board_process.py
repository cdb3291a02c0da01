"""One life of a virtual board, from power on to power off: MicroPython's unix build behind a pty.

It adds what a real board's firmware does: it delays ctrl-C until the process can handle it, and it enters the raw
prompt after a soft reset from the raw prompt. `tools.virtual_board` calls its methods from one thread.
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

#: Marks of the boot script, which the host never sees: the board listens; its start-up scripts have ended.
READY, DONE = b"\x1e<ready>\x1e", b"\x1e<done>\x1e"
_RAW_PROMPT = b"raw REPL; CTRL-B to exit\r\n"
_FRIENDLY_BANNER = b'Type "help()" for more information.\r\n'
_CTRL_A, _CTRL_C = b"\x01", 0x03
_BOOT = "__import__('virtual_board_boot').start({config!r}, globals())"
#: Seconds after a ctrl-C until further input is passed on to a program that continues.
_HOLD_S = 0.3

Ending = Literal["soft reset", "hard reset", "power cut", "crash", "watchdog", "deep sleep"]


def unix_command(heap: int, *arguments: str) -> list[str]:
    """Return the command line of MicroPython's unix build with a heap of `heap` bytes."""
    program = toolchain.find("micropython")
    if program is None:
        tool = toolchain.TOOLS["micropython"]
        raise FileNotFoundError(f"micropython ({tool.what}) is missing: {tool.get}")
    return [str(program), "-X", f"heapsize={heap}", *arguments]


def unix_environment(path: str) -> dict[str, str]:
    """Return the environment of a board's process. `path` comes first on its module path."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "TZ": "UTC", "MICROPYPATH": f"{path}:.frozen"}


def interrupt(pid: int) -> bool:
    """Send the signal of ctrl-C to a child process. Returns False, without sending, if the signal would kill it.

    MicroPython handles the signal only while it runs a program. The process is stopped, examined and continued, so
    that its state cannot change in between.
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
    """Follow the raw-paste protocol between host and board to know when pasted code runs.

    The terminal's state does not show it: while pasted code runs, the unix build leaves the terminal as at the
    prompt, and ctrl-C is not a signal. For other code it switches the terminal.
    """

    _REQUEST, _GRANTED, _END = b"\x05A\x01", b"R\x01", 0x04
    #: The board's end marks: of the code, the output and the error.
    _ENDS = 3

    def __init__(self) -> None:
        """Start at the prompt."""
        self.running = False
        self._stage: Literal["none", "asked", "code"] = "none"
        self._reply = b""
        self._ends = 0

    def from_host(self, data: bytes) -> None:
        """Process bytes from the host."""
        if self._stage == "none" and not self.running and data.endswith(self._REQUEST):
            self._stage, self._reply = "asked", b""
        elif self._stage == "code" and self._END in data:
            self._stage, self.running = "none", True

    def from_board(self, data: bytes) -> None:
        """Process bytes from the board."""
        if self._stage == "asked":
            self._reply += data
            if len(self._reply) >= len(self._GRANTED):
                self._stage = "code" if self._reply.startswith(self._GRANTED) else "none"
                self._ends = 0
        if self.running or self._stage == "code":
            self._ends += data.count(self._END)
            if self._ends >= self._ENDS:
                self.running = False


class Watchdog:
    """The hardware's watchdog: `feeds` is the file whose first four bytes the board changes to feed it."""

    def __init__(self, feeds: Path) -> None:
        """Wait for `start`."""
        self._feeds = feeds
        self._timeout_s = 0.0
        self._seen = b""
        self._fed = 0.0

    @property
    def running(self) -> bool:
        """Whether the board has started it."""
        return self._timeout_s > 0

    def start(self, timeout_ms: int) -> None:
        """Start it, fed now."""
        self._timeout_s = timeout_ms / 1000
        self._fed = time.monotonic()

    def expired(self) -> bool:
        """Whether the board has not fed it in time."""
        if not self.running:
            return False
        with self._feeds.open("rb") as file:
            seen = file.read(4)
        if seen != self._seen:
            self._seen, self._fed = seen, time.monotonic()
        return time.monotonic() - self._fed > self._timeout_s


class BoardProcess:
    """A powered board. Watch `fds` for reading; call `step` when one is ready, or if `hurried`."""

    def __init__(
        self,
        heap: int,
        path: str,
        config: Mapping[str, object],
        keep: Sequence[int],
        *,
        raw: bool,
        watchdog: Watchdog | None = None,
    ) -> None:
        """Start the process. `path` has the boot script, `config` its configuration, `keep` inherited descriptors.

        With `raw` it starts at the raw prompt without running `main.py`.
        """
        self.sleep_ms = 0
        self._watchdog = watchdog
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
        # The shell is a session leader and opens the pty, which becomes its controlling terminal.
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
        # The text up to each mark, and whether the host sees it.
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
        """Return the descriptors of the board's output, its requests and its end."""
        return self._inner, self._control, self._exit

    @property
    def hurried(self) -> bool:
        """Whether `step` is due soon, whatever the descriptors report."""
        return bool(self._input) or self._entering_raw

    @property
    def watched(self) -> bool:
        """Whether the board has started its watchdog, so that `ending` is to be called now and then."""
        return self._watchdog is not None and self._watchdog.running

    def feed(self, data: bytes) -> None:
        """Accept bytes from the host. Bytes that overrun a busy board are lost, as on a serial line."""
        self._input += data[: MAX_QUEUE - len(self._input)]

    def step(self, *, read: bool = True) -> bytes:
        """Move bytes in both directions and return the board's output. `read=False` leaves the output."""
        # Check before reading, so that all output up to the prompt has arrived.
        flags = termios.tcgetattr(self._slave)[3]
        at_prompt = not flags & termios.ISIG
        heard = b""
        while read and len(heard) < MAX_QUEUE and (data := read_now(self._inner)):
            heard += data
        said = self._filter(heard) if heard else b""
        if self.listening:
            self._note_prompt(said)
            self._paste.from_board(heard)
        self._asked += read_now(self._control)
        if read and at_prompt and self._stages and self._stages[0][1] == READY:
            self.kill()  # the boot script failed, and the prompt appeared
        elif self._entering_raw and at_prompt:
            self._entering_raw = False
            os.write(self._inner, _CTRL_A)
        if self._input and self.listening and self._child.returncode is None:
            # The boot script's kbd_intr sets the other flag, which has no other effect here.
            running = self._paste.running or not at_prompt
            self._forward(running and not flags & termios.ECHONL)
        return said

    def ending(self) -> Ending | None:
        """Return how the board's life ended, or None while it runs."""
        while self._asked:
            what = self._asked[:1]
            number, _, more = self._asked[1:].partition(b";")
            if what in (b"R", b"C"):  # it does nothing else
                return "hard reset" if what == b"R" else "power cut"
            if what == b"D":
                self.sleep_ms = int(number)
                return "deep sleep"
            if self._watchdog is not None:
                self._watchdog.start(int(number))
            self._asked = more
        if self._watchdog is not None and self._watchdog.expired():
            return "watchdog"
        code = self._child.poll()
        if code is None:
            return None
        return "soft reset" if code >= 0 and self.listening else "crash"

    def freeze(self) -> None:
        """Stop the process; its sockets stay open and do not respond."""
        os.kill(self._child.pid, signal.SIGSTOP)
        self._input.clear()  # a waiting ctrl-C would continue it

    def kill(self) -> None:
        """Kill the process."""
        self._child.kill()
        self._child.wait()

    def close(self) -> None:
        """Kill the process if it runs, and close its descriptors."""
        self.kill()
        for fd in (*self.fds, self._slave):
            os.close(fd)

    def _filter(self, heard: bytes) -> bytes:
        """Remove the marks, and the text between marks that the host must not see, from the output."""
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
        """Remember the prompt that the board announced last."""
        self._tail = (self._tail + said)[-256:]
        raw, friendly = self._tail.rfind(_RAW_PROMPT), self._tail.rfind(_FRIENDLY_BANNER)
        if raw != friendly:
            self.raw = raw > friendly

    def _forward(self, interruptible: bool) -> None:
        """Pass the host's bytes on. Pause after a ctrl-C: the process discards input on its way to the prompt."""
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
