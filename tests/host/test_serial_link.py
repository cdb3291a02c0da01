"""The serial link between CPython and MicroPython over ptys: UART, console and terminal, faults, kills, mpremote."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from line import Rng

from headwater.link.link import WHY_CLOSED, WHY_LINE, WHY_RESET, Link
from headwater.link.pump import Pump, Stream
from headwater_host.gateway.serial_port import SerialPort, new_session, ticks_ms
from tests.host.link_peer import DEADLINE_S, HostEnd
from tools import mpy
from tools.board_process import unix_command, unix_environment
from tools.toolchain import ROOT
from tools.virtual_board import VirtualBoard

DEVICE = Path(__file__).parent / "device"
PORTABLE = ROOT / "tests" / "portable"
GONE = r"unplugged|Input/output error"
BOARD_MAIN = """
import sys
sys.path += ["/sdk", "/board", "/portable", "/device"]
import link_end
link_end.{call}
"""

pytestmark = pytest.mark.needs_micropython


@contextmanager
def virtual_board(call: str, uarts: int = 0) -> Iterator[VirtualBoard]:
    """A board whose ``main.py`` calls a function of ``device/link_end.py``."""
    folders = {"/sdk": mpy.SDK, "/board": mpy.BOARD_PORT, "/portable": PORTABLE, "/device": DEVICE}
    hosts = {mount: str(folder) for mount, folder in folders.items()}
    main = BOARD_MAIN.format(call=call)
    with VirtualBoard(main=main, heap="512K", uarts=uarts, host_dirs=hosts) as board:
        yield board


@contextmanager
def host_on(path: str, size: int) -> Iterator[HostEnd]:
    """The host's end at the port with this path."""
    port = SerialPort(path)
    yield HostEnd(port, size)
    port.close()


@contextmanager
def plugged() -> Iterator[tuple[int, SerialPort]]:
    """The descriptor of a pty, and the port at its other end."""
    master, slave = os.openpty()
    port = SerialPort(os.ttyname(slave))
    os.close(slave)
    yield master, port
    port.close()


class FdLine:
    """A raw line on a descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        os.set_blocking(fd, False)

    def readinto(self, buf: bytearray | memoryview, n: int) -> int | None:
        try:
            data = os.read(self.fd, n)
        except BlockingIOError:
            return None
        buf[: len(data)] = data
        return len(data)

    def write(self, buf: bytes | bytearray | memoryview, off: int, n: int) -> int | None:
        try:
            return os.write(self.fd, memoryview(buf)[off : off + n])
        except BlockingIOError:
            return None

    def close(self) -> None:
        os.close(self.fd)


def test_both_ways_over_a_uart() -> None:
    size = 65536
    with (
        virtual_board(f"run(0, {size}, rounds=1)", uarts=1) as board,
        host_on(board.uart_ports[0], size) as host,
    ):
        host.until(host.whole)
        host.until(lambda: f"all {size}" in board.log)
        # It closes: the end is seen once, behind the last byte.
        host.until(lambda: host.over)
        assert host.ended == [(WHY_CLOSED, size)]
        assert host.link.damaged == 0
        assert "WRONG" not in board.log


def test_a_bad_uart() -> None:
    size = 20000
    rng = Rng(1)

    def damage(number: int, to_board: bool, data: bytes) -> bytes:
        """One piece in twenty loses a byte, or has one bit wrong."""
        if rng.of(50):
            at = rng.below(len(data))
            one = bytes([data[at] ^ 1 << rng.below(8)]) if rng.below(2) else b""
            return data[:at] + one + data[at + 1 :]
        return data

    with virtual_board(f"run(0, {size})", uarts=1) as board:
        board.uart_filter = damage
        with host_on(board.uart_ports[0], size) as host:
            host.until(host.whole)
            host.until(lambda: f"all {size}" in board.log)
            assert host.link.damaged > 0
            assert host.channel.streams == 1


def test_the_board_is_killed_in_the_middle() -> None:
    size = 65536
    with virtual_board(f"run(0, {size})", uarts=1) as board, host_on(board.uart_ports[0], size) as host:
        for life in range(3):
            host.until(lambda: host.got > 4000)
            board.power_cut()
            board.power_on()
            host.until(lambda: host.over)
            assert len(host.ended) == life + 1
            why, got = host.ended[-1]
            assert why == WHY_RESET
            assert 4000 < got < size
            host.open()
        host.until(host.whole)
        host.until(lambda: f"all {size}" in board.log)
        assert len(host.ended) == 3
        assert "WRONG" not in board.log


def test_the_gateway_is_restarted_in_the_middle() -> None:
    size = 20000
    with virtual_board(f"run(0, {size})", uarts=1) as board:
        for _ in range(2):
            # Afterwards the process is gone: nothing more is said.
            with host_on(board.uart_ports[0], size) as host:
                host.until(lambda host=host: host.got > 4000)  # type: ignore[misc]
        with host_on(board.uart_ports[0], size) as host:
            host.until(host.whole)
            host.until(lambda: f"all {size}" in board.log)
        assert board.log.count(f"end {WHY_RESET}") == 2
        assert "WRONG" not in board.log


def test_the_console_line_and_mpremote_beside_it() -> None:
    """The link runs on the line with the prompt: what is printed passes between the frames, and mpremote breaks in."""
    size = 8000
    with virtual_board(f"run('usb', {size})") as board:

        def is_done(host: HostEnd, life: int) -> bool:
            return host.whole() and board.log.count(f"all {size}") == life

        for life in (1, 2):
            with host_on(board.port, size) as host:
                # The board prints on the same line, and it costs nothing but a damaged frame.
                host.until(partial(is_done, host, life))
            mpremote = [sys.executable, "-m", "mpremote", "connect", board.port, "exec", "print(6 * 7)"]
            done = subprocess.run(mpremote, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            assert done.stdout.strip().endswith("42")
            board.reset()


@pytest.mark.parametrize("line", ["0", "'usb'"])
def test_the_board_allocates_nothing(line: str) -> None:
    size = 6000
    with virtual_board(f"run_locked({line}, {size})", uarts=1) as board:
        with host_on(board.uart_ports[0] if line == "0" else board.port, size) as host:
            host.until(host.whole)
            host.until(lambda: "\n" in board.log.partition("locked")[2])
        assert f"locked {size}" in board.log, board.log


class Terminal:
    """MicroPython under unix on one end of a pty; ``line`` is the other end."""

    def __init__(self, output: Path) -> None:
        master, self._slave = os.openpty()
        self.line = FdLine(master)
        self.path = os.ttyname(self._slave)
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, call: str) -> None:
        folders = ":".join(str(folder) for folder in (mpy.SDK, mpy.BOARD_PORT, PORTABLE, DEVICE))
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                unix_command(1 << 20, "-c", f"import link_end; link_end.{call}"),
                env=unix_environment(folders),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def said(self, text: str) -> bool:
        return text in self._output.read_text()

    def close(self) -> None:
        self.kill()
        self.line.close()
        os.close(self._slave)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path / "output")
    yield terminal
    terminal.close()


def test_a_process_on_a_terminal_is_killed_and_started_again(terminal: Terminal) -> None:
    size = 65536
    terminal.start(f"run({terminal.path!r}, {size})")
    host = HostEnd(terminal.line, size)
    host.until(lambda: host.got > 10000)
    terminal.kill()
    terminal.start(f"run({terminal.path!r}, {size})")
    host.until(lambda: host.over)
    assert host.ended[0][0] == WHY_RESET
    host.open()
    host.until(lambda: host.whole() and terminal.said(f"all {size}"))
    assert len(host.ended) == 1


def test_a_process_on_a_terminal_allocates_nothing(terminal: Terminal) -> None:
    size = 20000
    terminal.start(f"run_locked({terminal.path!r}, {size})")
    host = HostEnd(terminal.line, size)
    host.until(lambda: host.whole() and terminal.said("\n"))
    assert terminal.said(f"locked {size}\n")


def test_a_port_that_is_unplugged() -> None:
    with plugged() as (master, port):
        pump = Pump(port, Link(new_session()), ticks_ms)
        stream = Stream(pump, pump.link.channels[0])
        stream.channel.open()
        assert stream.readinto(bytearray(10), 10) is None
        assert pump.error is None
        os.close(master)
        for _ in range(2):
            with pytest.raises(OSError, match=GONE):
                stream.readinto(bytearray(10), 10)
        assert pump.error is not None
        with pytest.raises(OSError, match=GONE):
            port.readinto(bytearray(10), 10)


def test_what_had_come_before_the_line_broke_can_be_read() -> None:
    with plugged() as (master, port):
        host = HostEnd(port, 0)
        far = HostEnd(FdLine(master), 500)
        for _ in range(100):
            far.turn()
            host.pump.pump()
        assert far.sent == 500
        os.close(master)
        host.turn()
        assert host.pump.error is not None
        assert host.channel.why == WHY_LINE
        assert host.got == 500
        with pytest.raises(OSError, match=GONE):
            host.turn()
    # Plugged in again.
    with plugged() as (master, port):
        host.pump.attach(port)
        host.open()
        far = HostEnd(FdLine(master), 500)
        for _ in range(100):
            far.turn()
            host.turn()
        assert host.got == 500
        os.close(master)


def test_a_port_does_not_block_and_takes_what_it_can() -> None:
    buf = bytearray(10)
    with plugged() as (master, port):
        assert port.readinto(buf, 10) is None
        os.write(master, b"\x00\x03\x11\x13\x04\r\n1234567")
        assert port.readinto(buf, 4) == 4
        assert buf == b"\x00\x03\x11\x13" + bytes(6)
        assert port.readinto(buf, 100) == 10
        assert bytes(buf) == b"\x04\r\n1234567"
        assert port.readinto(memoryview(buf)[:3], 3) is None
        taken = 0
        while n := port.write(b"-" + b"\x03\n\r\x11\x00" * 1000, 1, 5000):
            taken += n
            assert taken < 1 << 20
        assert n is None
        got = b""
        while len(got) < taken:
            got += os.read(master, 65536)
        assert got.startswith(b"\x03\n\r\x11\x00" * 10)
        port.close()
    assert port.fileno() == -1
    with pytest.raises(OSError, match="closed") as caught:
        port.readinto(buf, 1)
    assert caught.value.errno == errno.EBADF
    with pytest.raises(OSError, match="closed"):
        port.write(buf, 0, 1)
    os.close(master)


def test_a_port_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        SerialPort(str(tmp_path / "missing"))
    file = tmp_path / "file"
    file.write_text("no port")
    with pytest.raises(OSError, match="file"):
        SerialPort(str(file))
    master, slave = os.openpty()
    path = os.ttyname(slave)
    with pytest.raises(OSError, match="-7"):
        SerialPort(path, -7)
    port = SerialPort(path)
    with pytest.raises(OSError, match="lock"):
        SerialPort(path)
    port.close()
    os.close(master)
    os.close(slave)


def test_session_numbers_are_random() -> None:
    sessions = {new_session() for _ in range(50)}
    assert len(sessions) > 40
    assert all(0 < session <= 0xFFFF for session in sessions)
