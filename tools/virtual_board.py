"""A virtual board: MicroPython's unix build on a pty, with a file system, heap limit and power switch.

mpremote, a gateway or a test uses it like a board on a serial port::

    with VirtualBoard(main="print('up')") as board:
        board.wait_for("up")
        subprocess.run(["mpremote", "connect", board.port, "fs", "ls"], check=True)
        board.power_cut()
        board.power_on()

`python -m tools.virtual_board --heap 128K --root DIR` prints the port and serves until ctrl-C.
docs/testing-on-boards.md lists the limits of virtual boards.

One thread per board owns the process and the lines. It copies bytes between the process's pty and the pty that the
host opens, so the host's port stays open over resets and power cuts.
"""

from __future__ import annotations

import argparse
import math
import os
import selectors
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

from tools.board_air import PASSWORD, SSID, Air
from tools.board_files import BOOT_DIR, BoardError, BoardFiles, Content, Flash
from tools.board_process import BoardProcess, Watchdog
from tools.lines import Outlet, open_pty, read_now
from tools.runtimes import parse_size

__all__ = ["BoardError", "Content", "Flash", "VirtualBoard"]

T = TypeVar("T")
Cause = Literal["power on", "hard reset", "soft reset", "reset button", "watchdog", "deep sleep"]
Port = Literal["", "esp32", "rp2"]
#: ``machine.reset_cause()`` by port and cause. RP2 has no cause for a soft reset: it keeps the one before.
_CAUSES: dict[Port, dict[Cause, int]] = {
    "": {"power on": 1, "hard reset": 2, "reset button": 2, "soft reset": 5},
    "esp32": {
        "power on": 1,
        "reset button": 1,
        "hard reset": 2,
        "watchdog": 3,
        "deep sleep": 4,
        "soft reset": 5,
    },
    "rp2": {"power on": 1, "reset button": 1, "hard reset": 3, "watchdog": 3, "deep sleep": 3},
}
#: What keeps the real-time clock and its memory: on RP2 the RTC is reset with the chip.
_KEEPS_RTC: dict[Port, set[Cause]] = {
    "": set(),
    "esp32": {"hard reset", "soft reset", "watchdog", "deep sleep"},
    "rp2": {"soft reset"},
}
#: Heap of the stand-ins, added to the board's.
_STANDIN_HEAP = 56 << 10
_START_S = 20.0
_WATCHDOG_S = 0.02
#: Processes of earlier deep sleeps that are kept, with sockets that do not respond.
_KEPT_SLEEPERS = 2


class VirtualBoard:
    """A MicroPython board that is a process.

    `root` is the directory with the board's state, created if missing (default: a temporary one). With
    `flash="posix"` it contains the board's files; with `flash="littlefs"` it contains `flash.img` of `flash_size`
    bytes with the file system of ESP32 and RP2 boards, which loses unflushed data at a power cut. `heap` is the
    size of the heap, such as `"192K"`; most objects are twice as large as on 32 bits. `main` is the text of
    `main.py`; `files` maps names on the board to text, bytes or the path of a file. `host_dirs` maps mount points
    to read-only directories of this machine: `{"/proc": "/proc"}`. `uarts` is the number of UARTs,
    `machine.UART(0)` and so on on the board and `uart_ports` here. `crlf` makes the board print CR LF for a
    terminal; without it the line is transparent.

    `port` ("esp32" or "rp2") adds stand-ins for that port's modules: `network`, `machine.WDT`, `machine.deepsleep`,
    `machine.RTC`, `esp32` or `rp2`. `networks` maps SSIDs to passwords, `air` steers the radio, `pace` multiplies the
    radio's durations, and `ota` gives an ESP32 two application partitions. docs/testing-on-boards.md explains them.
    """

    def __init__(
        self,
        root: Path | str | None = None,
        *,
        heap: str = "192K",
        main: str | None = None,
        files: Mapping[str, Content] | None = None,
        flash: Flash = "posix",
        flash_size: int = 1 << 20,
        uarts: int = 0,
        host_dirs: Mapping[str, str] | None = None,
        name: str = "VB0",
        crlf: bool = False,
        port: Port = "",
        networks: Mapping[str, str] | None = None,
        pace: float = 0.1,
        ota: bool = False,
    ) -> None:
        """Prepare the board. `start` (or `with`) opens its port and switches it on."""
        if not name.isalnum():
            raise ValueError(f"name={name!r}: letters and digits; the port's name contains it")
        self.name = name
        #: Events with their time (``time.monotonic``): "power on", "soft reset", "power cut", ...
        self.events: list[tuple[float, str]] = []
        #: Lets a test damage bytes of a UART: called with its number, whether they go to the board, and the bytes.
        self.uart_filter: Callable[[int, bool, bytes], bytes] = lambda number, to_board, data: data
        self.heap = parse_size(heap) + (_STANDIN_HEAP if port else 0)
        self._flash = flash
        self._port = port
        self._ota = ota
        self._cause = 0
        #: Milliseconds of each deep sleep that the board has asked for.
        self.sleeps: list[int] = []
        self._wake_at: float | None = None
        self._crlf = crlf
        self._work = Path(tempfile.mkdtemp(prefix="headwater-board-"))
        self.root = Path(root).absolute() if root is not None else self._work / "root"
        self.log_path = self._work / "board.log"
        self._process: BoardProcess | None = None
        self._frozen: list[BoardProcess] = []
        self._starting = False
        self._half_open = False
        self._closing = False
        self._thread: threading.Thread | None = None
        self._jobs: list[tuple[Callable[[], Any], Future[Any]]] = []
        self._changed = threading.Condition()
        self._selector = selectors.DefaultSelector()
        self._fds: list[int] = []
        self._outlets: list[Outlet] = []
        self._board_uarts: list[socket.socket] = []
        try:
            self._files = BoardFiles(self.root, flash, flash_size, host_dirs or {})
            self.root.mkdir(parents=True, exist_ok=True)
            self._air = self._make_port_files(networks or {SSID: PASSWORD}, pace) if port else None
            self._log = self.log_path.open("ab", buffering=0)
            self._open_lines(uarts)
            self._files.prepare()
            self.put({**(files or {}), **({} if main is None else {"main.py": main})})
        except BaseException:
            self.close()
            raise

    # ---- for its user ------------------------------------------------------------------------------------------------

    @property
    def port(self) -> str:
        """Return the serial port, whose name stays the same while the board exists."""
        return str(self._work / f"tty{self.name}")

    @property
    def uart_ports(self) -> list[str]:
        """Return the host's ends of the board's UARTs."""
        return [f"{self.port}-uart{number}" for number in range(len(self._board_uarts))]

    @property
    def log(self) -> str:
        """Return everything the board has printed."""
        return self.log_path.read_bytes().decode(errors="replace")

    @property
    def mark(self) -> int:
        """Return the current end of the log, for `wait_for`."""
        return self.log_path.stat().st_size

    @property
    def air(self) -> Air:
        """Return the air around the board's radio. Raises BoardError without a `port`."""
        if self._air is None:
            raise BoardError("a board has a radio if it has a port: VirtualBoard(port='esp32')")
        return self._air

    @property
    def running(self) -> bool:
        """Whether the power is on. A board in deep sleep has power."""
        return self._process is not None or self.asleep

    @property
    def asleep(self) -> bool:
        """Whether the board is in deep sleep."""
        return self._wake_at is not None

    def start(self) -> VirtualBoard:
        """Open the port and switch the power on. A board that does not start is closed."""
        self._thread = threading.Thread(target=self._serve, name=f"virtual board {self.name}", daemon=True)
        self._thread.start()
        try:
            self.power_on()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Switch the power off and remove the port and temporary files. May be called twice."""
        if self._thread is not None:
            if not self._closing:
                self._call(self._shut)
            self._thread.join()
            self._thread = None
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        for line in self._board_uarts:
            line.close()
        self._selector.close()
        if hasattr(self, "_log"):
            self._log.close()
        shutil.rmtree(self._work, ignore_errors=True)

    def __enter__(self) -> VirtualBoard:
        """Start the board."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the board."""
        self.close()

    def power_on(self, *, cut_at_flash_operation: int = 0, half_open: bool = False) -> None:
        """Switch the power on and wait until the board listens; `main.py` may still run.

        With littlefs, `cut_at_flash_operation=n` cuts the power within the n-th program or erase operation,
        `half_open` as for `power_cut`.
        """
        if cut_at_flash_operation and self._flash != "littlefs":
            raise ValueError("a cut at a flash operation needs flash='littlefs'")
        if half_open and not cut_at_flash_operation:
            raise ValueError("half_open needs cut_at_flash_operation")
        if self.running:
            raise BoardError("the power is already on")
        self._call(lambda: self._spawn("power on", cut_at=cut_at_flash_operation, half_open=half_open))
        self._until(lambda: not self._starting, _START_S, "the board does not start")
        if self.events[-1][1] == "crash":
            raise BoardError(f"the board does not start; its log: {self.log[-2000:]!r}")

    def power_cut(self, *, half_open: bool = False) -> None:
        """Cut the power at any point of the board's program.

        The kernel closes the board's TCP connections, which the peer notices. With `half_open` the peer notices
        nothing, as with a real board: the old process is stopped and kept until the board is closed.
        """
        self._call(lambda: self._cut("power cut", half_open=half_open))

    def reset(self) -> None:
        """Press the reset button; `boot.py` and `main.py` run again."""

        def press() -> None:
            self._cut("reset button")
            self._spawn("reset button" if self._port else "hard reset")

        self._call(press)
        self._until(lambda: not self._starting, _START_S, "the board does not start")

    def wake(self) -> None:
        """End the deep sleep now, as if its time had passed."""

        def shorten() -> None:
            if self._wake_at is None:
                raise BoardError("the board is not in deep sleep")
            self._wake_at = 0.0

        self._call(shorten)
        self._until(lambda: not self.asleep and not self._starting, _START_S, "the board does not start")

    def wait_asleep(self, timeout: float = 200.0) -> int:
        """Wait until the board is in deep sleep. Returns the milliseconds that it has asked for."""
        self._until(lambda: self.asleep, timeout, "the board is not in deep sleep")
        return self.sleeps[-1]

    def wait_for(self, text: str, timeout: float = 200.0, *, after: int = 0) -> int:
        """Wait until the log has `text` behind the position `after`. Returns the position behind the text."""
        wanted = text.encode()
        seen = b""
        with self.log_path.open("rb") as log:
            log.seek(after)

            def look() -> bool:
                nonlocal seen
                seen = seen[-len(wanted) :] + log.read()
                return wanted in seen

            self._until(look, timeout, f"the board did not print {text!r}")
            return log.tell() - len(seen) + seen.index(wanted) + len(wanted)

    def wait_off(self, timeout: float = 200.0) -> None:
        """Wait until the power is off (see `power_on`)."""
        self._until(lambda: not self.running, timeout, "the board is still on")

    def fs_path(self, name: str) -> Path:
        """Return the path of a board's file on this machine (`flash="posix"` only)."""
        return self._files.path(name)

    def put(self, files: Mapping[str, Content]) -> None:
        """Write files to the board's file system. With littlefs the power must be off."""
        self._check_flash_is_free()
        self._files.put(files)

    def get(self, name: str) -> bytes:
        """Read a file of the board's file system. With littlefs the power must be off. Raises FileNotFoundError."""
        self._check_flash_is_free()
        return self._files.get(name)

    def _check_flash_is_free(self) -> None:
        if self._flash == "littlefs" and self.running:
            raise BoardError("the power is on: use mpremote")

    # ---- start and stop (in the board's thread) ----------------------------------------------------------------------

    def _spawn(self, cause: Cause, *, cut_at: int = 0, half_open: bool = False, raw: bool = False) -> None:
        uarts = [line.fileno() for line in self._board_uarts]
        for fd in uarts:
            while read_now(fd):  # a reset loses received bytes of a UART
                pass
        self._cause = _CAUSES[self._port].get(cause, self._cause)
        config = {
            **self._files.config(cut_at),
            "uarts": uarts,
            "cause": self._cause,
            "id": self.name.encode()[: 6 if self._port == "esp32" else 8],
            "port": self._port,
        }
        watchdog = None
        if self._port:
            files = self._port_files
            config.update(
                port_files=str(files), ota=self._ota, hard=cause != "soft reset", woke=cause == "deep sleep"
            )
            if cause != "soft reset":
                (files / "radio").write_bytes(b"")
            if cause not in _KEEPS_RTC[self._port]:
                (files / "rtc").write_bytes(b"")
            watchdog = Watchdog(files / "feeds")
        self._wake_at = None
        self._starting = True
        self._half_open = half_open
        self._process = BoardProcess(self.heap, str(BOOT_DIR), config, uarts, raw=raw, watchdog=watchdog)
        for fd in self._process.fds:
            self._selector.register(fd, selectors.EVENT_READ, lambda: None)
        self._event(cause)

    def _cut(self, event: str, *, half_open: bool = False) -> None:
        self._end(half_open=half_open)
        self._event(event)

    def _end(self, *, half_open: bool = False) -> None:
        process = self._process
        if process is None:
            if self._wake_at is None:
                raise BoardError("the power is already off")
            self._wake_at = None
            return
        for fd in process.fds:
            self._selector.unregister(fd)
        if half_open:
            process.freeze()
            self._frozen.append(process)
        else:
            process.kill()
        self._say(process.step())
        if not half_open:
            process.close()
        # Last, so that the log is complete when the power is off.
        self._process = None
        self._starting = False

    def _shut(self) -> None:
        if self.running:
            self._cut("power cut")
        for process in self._frozen:
            process.close()
        self._closing = True

    # ---- the thread --------------------------------------------------------------------------------------------------

    @property
    def _port_files(self) -> Path:
        return self._work / "port"

    def _make_port_files(self, networks: Mapping[str, str], pace: float) -> Air:
        """Create the files of the stand-ins: the air, the radio's state, the clock, the watchdog and the partitions."""
        files = self._port_files
        files.mkdir()
        for name in ("radio", "rtc", "otadata"):
            (files / name).write_bytes(b"")
        (files / "feeds").write_bytes(bytes(4))
        if self._port == "esp32":
            with (files / "partitions").open("wb") as file:
                file.truncate(4 << 20)
        return Air(files / "air", networks, pace)

    def _open_lines(self, uarts: int) -> None:
        wake, self._waker = os.pipe()
        os.set_blocking(wake, False)
        host, slave = open_pty(interrupts=False)
        self._fds += [wake, self._waker, host, slave]
        Path(self.port).symlink_to(os.ttyname(slave))
        self._to_host = Outlet(host)
        self._outlets.append(self._to_host)
        self._watch(wake, lambda data: None)
        self._watch(host, lambda data: self._process.feed(data) if self._process else None)
        for number in range(uarts):
            board, near = socket.socketpair()
            board.setblocking(False)
            near.setblocking(False)
            far, slave = open_pty(interrupts=False)
            self._board_uarts.append(board)
            self._fds += [near.detach(), far, slave]
            Path(self.uart_ports[number]).symlink_to(os.ttyname(slave))
            self._wire(number, self._fds[-3], far)

    def _wire(self, number: int, board: int, host: int) -> None:
        to_board, to_host = Outlet(board), Outlet(host)
        self._outlets += [to_board, to_host]
        self._watch(board, lambda data: to_host.put(self.uart_filter(number, False, data)))

        def towards_board(data: bytes) -> None:
            data = self.uart_filter(number, True, data)
            if self._process is not None:
                to_board.put(data)

        self._watch(host, towards_board)

    def _watch(self, fd: int, take: Callable[[bytes], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, lambda: take(read_now(fd)))

    def _serve(self) -> None:
        try:
            self._loop()
        finally:
            self._closing = True
            if self._process is not None:  # the loop failed; leave no process behind
                self._process.close()
                self._process = None

    def _loop(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select(self._patience()):
                key.data()
            for outlet in self._outlets:
                outlet.push()
            with self._changed:
                jobs, self._jobs = self._jobs, []
            for job, future in jobs:
                try:
                    future.set_result(job())
                except BaseException as error:
                    future.set_exception(error)
            if self._process is not None:
                self._step(self._process)
            elif self._wake_at is not None and time.monotonic() >= self._wake_at:
                self._spawn("deep sleep")

    def _patience(self) -> float | None:
        """Return how long the loop may wait for a descriptor."""
        process = self._process
        if any(outlet.waiting for outlet in self._outlets) or (process is not None and process.hurried):
            return 0.005
        if process is not None and process.watched:
            return _WATCHDOG_S
        if self._wake_at is None or self._wake_at == math.inf:
            return None
        return max(0.0, self._wake_at - time.monotonic())

    def _step(self, process: BoardProcess) -> None:
        self._say(process.step(read=not self._to_host.full))
        if self._starting and process.listening:
            self._starting = False
            self._tell()
        ending = process.ending()
        if ending is None:
            return
        if ending == "crash":
            self._say(process.hidden)
        if ending in ("crash", "power cut"):  # the board stays off
            self._event(ending)
        # A board that sleeps says nothing to its peers.
        self._end(half_open=ending == "deep sleep" or (self._half_open and ending == "power cut"))
        if ending == "soft reset":
            self._say(b"MPY: soft reboot\r\n")
            self._spawn(ending, raw=process.raw)
        elif ending in ("hard reset", "watchdog"):
            self._spawn(ending)
        elif ending == "deep sleep":
            self._fall_asleep(process.sleep_ms)
        self._tell()

    def _fall_asleep(self, ms: int) -> None:
        while len(self._frozen) > _KEPT_SLEEPERS:
            self._frozen.pop(0).close()
        self.sleeps.append(ms)
        self._wake_at = time.monotonic() + ms / 1000 if ms else math.inf
        self._event("asleep")

    def _say(self, text: bytes) -> None:
        if text:
            self._log.write(text)
            if self._crlf:
                text = text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
            self._to_host.put(text)
            self._tell()

    def _event(self, what: str) -> None:
        self.events.append((time.monotonic(), what))
        self._tell()

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _call(self, job: Callable[[], T]) -> T:
        """Run a function in the board's thread and return its result."""
        if self._thread is None or self._closing:
            raise BoardError("the board is not started, or closed")
        future: Future[T] = Future()
        with self._changed:
            self._jobs.append((job, future))
        os.write(self._waker, b"!")
        return future.result(_START_S)

    def _until(self, true: Callable[[], bool], timeout: float, failure: str) -> None:
        with self._changed:
            if not self._changed.wait_for(true, timeout):
                raise BoardError(f"{failure} within {timeout} s; its log ends: {self.log[-2000:]!r}")


def main() -> None:
    """Serve one board until ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.virtual_board", description="A virtual MicroPython board."
    )
    parser.add_argument("--root", type=Path, help="directory of the board's files (default: temporary)")
    parser.add_argument("--heap", default="192K", help="MicroPython's heap (default: %(default)s)")
    parser.add_argument(
        "--littlefs", action="store_true", help="keep files in a littlefs image, as boards do"
    )
    parser.add_argument("--uarts", type=int, default=0, help="number of UARTs")
    parser.add_argument(
        "--port", choices=("esp32", "rp2"), default="", help="stand-ins for that port's modules"
    )
    parser.add_argument(
        "--network", metavar="SSID=PASSWORD", action="append", default=[], help="WiFi network in range"
    )
    parser.add_argument("--raw", action="store_true", help="do not convert newlines, for binary protocols")
    chosen = parser.parse_args()
    try:
        board = VirtualBoard(
            chosen.root,
            heap=chosen.heap,
            flash="littlefs" if chosen.littlefs else "posix",
            uarts=chosen.uarts,
            crlf=not chosen.raw,
            port=chosen.port,
            networks=dict(entry.split("=", 1) for entry in chosen.network if "=" in entry),
        )
    except (ValueError, OSError) as error:
        parser.error(str(error))
    # SIGINT as well: a shell's background processes ignore it by default.
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, signal.default_int_handler)
    with board:
        print(f"port {board.port}")
        for number, port in enumerate(board.uart_ports):
            print(f"uart {number} {port}")
        print(f"files {board.root}", flush=True)
        try:
            while True:  # a signal just before an unlimited wait would be handled only after it
                time.sleep(0.5)
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    main()
