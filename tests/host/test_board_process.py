"""The process of a virtual board: ctrl-C reaches a program, and nothing kills a board that is well."""

import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tools.board_process import BoardProcess, interrupt
from tools.toolchain import ROOT
from tools.virtual_board import VirtualBoard

PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.{handler})
try:
    print("ready", flush=True)
    sys.stdin.read()
except KeyboardInterrupt:
    print("interrupted")
"""


@contextmanager
def program(handler: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that waits for the end of its input, with what it does when it is interrupted."""
    command = [sys.executable, "-c", PROGRAM.format(handler=handler)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


def test_a_process_that_handles_it_is_interrupted() -> None:
    with program("default_int_handler") as process:
        assert interrupt(process.pid)
        assert process.communicate(timeout=200)[0] == "interrupted\n"


def test_a_process_that_would_die_of_it_is_left_alone() -> None:
    with program("SIG_DFL") as process:
        assert not interrupt(process.pid)
        assert process.communicate(timeout=200)[0] == ""
        assert process.returncode == 0


def test_a_process_that_has_ended_is_no_error() -> None:
    with program("SIG_DFL") as process:
        process.kill()
        assert not interrupt(process.pid)


@pytest.mark.needs_micropython
def test_a_board_that_is_at_its_prompt_before_it_was_heard_is_not_taken_for_one_that_failed(
    tmp_path: Path,
) -> None:
    config = {"root": str(tmp_path), "host_dirs": [], "uarts": [], "cause": 1, "id": b"b"}
    process = BoardProcess(192 * 1024, str(ROOT / "tools" / "device"), config, [], raw=False)
    try:
        while termios.tcgetattr(process._slave)[3] & termios.ISIG:
            assert process._child.poll() is None
        process.step(read=False)
        while b">>> " not in process.step():
            assert process.ending() is None
        assert process.listening
        assert process.ending() is None
    finally:
        process.close()


@pytest.mark.needs_micropython
def test_the_power_is_cut_while_a_ctrl_c_waits() -> None:
    with VirtualBoard(main="print('up')\nwhile True: pass") as board:
        board.wait_for("up")
        process = board._process
        assert process is not None

        def feed_and_cut() -> None:
            process.feed(b"\x03")
            board._cut("power cut")

        board._call(feed_and_cut)
        board.power_on()
