"""What every board must do, real or virtual: run code, keep files, survive resets, run headwater and its tests."""

import random
import socket
import threading
from pathlib import Path

import pytest

from tests import built
from tools import mpy
from tools.board import Board, DeviceError, TransportError
from tools.deploy import deploy, package_files, synchronise, tree_files
from tools.runtimes import declared_heap
from tools.toolchain import ROOT
from tools.virtual_board import VirtualBoard

PORTABLE = ROOT / "tests" / "portable"
VECTORS = ROOT / "tests" / "vectors"


def test_code_runs_and_prints(board: Board, tmp_path: Path) -> None:
    assert board.exec("print(6 * 7)\nprint('two')") == "42\ntwo\n"
    board.exec("kept = 5")
    assert board.exec("print(kept)") == "5\n"
    script = tmp_path / "script.py"
    script.write_text("for n in range(3):\n    print(n)\n")
    assert board.run_file(script) == "0\n1\n2\n"


def test_an_exception_on_the_board_is_one_here(board: Board) -> None:
    with pytest.raises(DeviceError, match="ZeroDivisionError") as failure:
        board.exec("print('before')\n1 / 0")
    assert failure.value.stdout == "before\n"
    assert board.exec("print('goes on')") == "goes on\n"


def test_soft_reset_empties_the_interpreter(board: Board) -> None:
    board.exec("left = 1")
    board.soft_reset()
    with pytest.raises(DeviceError, match="NameError"):
        board.exec("print(left)")


def test_a_board_that_is_silent_for_too_long_says_where_it_was(board: Board) -> None:
    code = "import time\nprint('before')\ndef stuck():\n    while True:\n        time.sleep_ms(20)\nstuck()\n"
    with pytest.raises(
        TransportError, match=r"(?s)'before\\n' printed.*line 5, in stuck\n.*KeyboardInterrupt"
    ):
        board.exec(code, 0.5)
    assert board.exec("print(1)") == "1\n"


def test_a_running_program_is_interrupted(board: Board) -> None:
    board.start("import time\nwhile True:\n    time.sleep(1)")
    assert board.exec("print('here')") == "here\n"


@pytest.mark.parametrize("size", [0, 1, 255, 256, 4095, 4096, 4097, 20000])
def test_files_come_back_as_they_were(board: Board, size: int) -> None:
    data = random.Random(size).randbytes(size)
    board.put("/hil/deep/file.bin", data)
    assert board.get("/hil/deep/file.bin") == data
    board.remove("/hil/deep/file.bin")
    assert board.listdir("/hil/deep") == []
    with pytest.raises(FileNotFoundError):
        board.get("/hil/deep/file.bin")


def test_files_survive_a_reset(board: Board) -> None:
    board.put("/hil/kept.txt", b"kept")
    board.reset()
    assert board.get("/hil/kept.txt") == b"kept"


def test_headwater_is_deployed_and_only_changes_are_copied_again(board: Board) -> None:
    deploy(board)
    assert deploy(board) == ([], [])
    assert board.exec("import headwater.wire as m\nprint(m.__file__)") == "/lib/headwater/wire.mpy\n"
    board.put("/lib/headwater/wire.py", b"raise ImportError('stale')")
    board.put("/lib/headwater/errors.mpy", b"torn")
    changed, stale = deploy(board)
    assert (changed, stale) == (["/lib/headwater/errors.mpy"], ["/lib/headwater/wire.py"])
    board.soft_reset()
    board.exec("import headwater.wire, headwater.connection")


def test_a_component_takes_the_place_of_the_modules(board: Board, tmp_path: Path) -> None:
    deploy(board)
    changed, stale = deploy(board, files=built.on_board("headwater-mqtt", tmp_path / "built"))
    assert {"/lib/headwater/__init__.mpy", "/lib/headwater/mqtt/__init__.mpy"} <= set(changed)
    assert "/lib/headwater/mqtt/session.mpy" in stale
    board.soft_reset()
    code = "from headwater.mqtt.client import Client\nfrom headwater.errors import E_TOPIC\n"
    assert board.exec(f"{code}from headwater_board.tcp import Tcp\nprint(E_TOPIC)") == "-1\n"
    deploy(board)


@pytest.fixture(scope="session")
def portable_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Compiled, because a board may lack the memory to compile them, and not optimised, because asserts must stay."""
    compiled = tmp_path_factory.mktemp("portable")
    for source in PORTABLE.glob("*.py"):
        if source.name != "conftest.py":
            mpy.compile_file(source, compiled / f"{source.stem}.mpy", source.name, optimise="-O0")
    return {
        **tree_files(compiled, "/hil/portable", (".mpy",)),
        **tree_files(VECTORS, "/hil/vectors", (".json",)),
    }


@pytest.fixture(scope="session")
def portable_on_board(deployed_board: Board, portable_files: dict[str, Path]) -> Board:
    if deployed_board.virtual is not None:
        deployed_board.power_cut()
        deployed_board.virtual.put(portable_files)
        deployed_board.power_on()
    synchronise(deployed_board, portable_files, ["/hil/portable", "/hil/vectors"])
    return deployed_board


@pytest.mark.parametrize("name", sorted(path.stem for path in PORTABLE.glob("test_*.py")))
def test_portable_tests_pass_on_the_board(
    portable_on_board: Board, board: Board, portable_files: dict[str, Path], name: str
) -> None:
    code = f"import sys\nsys.path.insert(0, '/hil/portable')\nimport run\nrun.main([{name!r}])"
    heap = declared_heap(PORTABLE / f"{name}.py")
    if heap > int(board.exec("import gc\ngc.collect()\nprint(gc.mem_free())")):
        if board.virtual is None:
            pytest.skip(f"{name} needs a heap of {heap} bytes, more than this board has")
        files = {**package_files("mpy"), **portable_files}
        with VirtualBoard(heap=str(heap), files=files) as large, Board(large.port, large) as remote:
            output = remote.exec(code, 300)
    else:
        output = board.exec(code, 300)
    assert output.rstrip().rpartition("\n")[2].endswith(" passed, 0 failed"), output


def test_the_board_reaches_this_machine_over_tcp(board: Board) -> None:
    if board.virtual is None:
        pytest.skip("a real board needs its network set up, which is its user's")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(connection.recv(100).upper())

        thread = threading.Thread(target=serve)
        thread.start()
        port = server.getsockname()[1]
        said = board.exec(
            "import socket\n"
            "s = socket.socket()\n"
            f"s.connect(socket.getaddrinfo('127.0.0.1', {port})[0][-1])\n"
            "s.send(b'hello')\n"
            "print(s.recv(100))\n"
        )
        thread.join(10)
    assert said == "b'HELLO'\n"


def test_closed_files_survive_a_power_cut(switchable_board: Board) -> None:
    board = switchable_board
    board.put("/hil/closed.txt", b"closed")
    board.start("f = open('/hil/open.txt', 'w')\nf.write('open')\nprint('written')\nwhile True: pass")
    board.power_cut()
    board.power_on()
    assert board.get("/hil/closed.txt") == b"closed"
