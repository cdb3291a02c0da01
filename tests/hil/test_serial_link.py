"""The serial link over the board's console line, and the prompt on the same line behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headwater_host.gateway.serial_port import SerialPort
from tests.host.link_peer import HostEnd
from tools.board import Board
from tools.toolchain import ROOT

SIZE = 10000
FILES = {
    "line.py": ROOT / "tests" / "portable" / "line.py",
    "link_end.py": ROOT / "tests" / "host" / "device" / "link_end.py",
}


@pytest.fixture
def link_board(board: Board) -> Iterator[Board]:
    """A board with the other end's program on it."""
    for name, path in FILES.items():
        board.put(name, path.read_bytes())
    yield board
    for name in FILES:
        board.remove(name)


@contextmanager
def host_end(board: Board, size: int) -> Iterator[HostEnd]:
    """The port is the link's: the board runs its end of it, and is not interrupted."""
    board.close(leave=False)
    port = SerialPort(board.port)
    try:
        yield HostEnd(port, size)
    finally:
        port.close()


def test_both_ways_over_the_console_line_and_then_the_prompt(link_board: Board) -> None:
    for _ in range(2):
        link_board.start(f"import link_end; link_end.run('usb', {SIZE})")
        with host_end(link_board, SIZE) as host:
            host.until(host.whole)
            assert host.channel.streams == 1
        assert link_board.exec("print(6 * 7)").strip().endswith("42")


def test_a_board_that_was_interrupted_and_started_again_begins_a_new_stream(link_board: Board) -> None:
    link_board.start(f"import link_end; link_end.run('usb', {SIZE})")
    with host_end(link_board, SIZE) as host:
        host.until(lambda: host.got > 1000)
    link_board.start(f"import link_end; link_end.run('usb', {SIZE})")
    with host_end(link_board, SIZE) as host:
        host.until(host.whole)


def test_the_board_allocates_nothing(link_board: Board) -> None:
    size = 2000
    link_board.start(f"import link_end; link_end.run_locked('usb', {size})")
    with host_end(link_board, size) as host:
        # With the heap locked, an allocation would have ended the program.
        host.until(host.whole)
