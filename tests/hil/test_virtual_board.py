"""The virtual board does what a board does: prompts, resets, power cuts, flash, UARTs; mpremote cannot tell."""

import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import serial

from tests.waiting import wait_until
from tools.board import Board, DeviceError
from tools.runtimes import parse_size
from tools.toolchain import ROOT
from tools.virtual_board import BoardError, Flash, VirtualBoard

pytestmark = pytest.mark.needs_micropython

COUNT = """
import time
n = 1
print("counting")
while True:
    n += 1
    time.sleep_ms(1)
"""


@pytest.fixture(params=["posix", "littlefs"])
def flash(request: pytest.FixtureRequest) -> Flash:
    kinds: dict[str, Flash] = {"posix": "posix", "littlefs": "littlefs"}
    return kinds[request.param]


@pytest.fixture
def counting(flash: Flash) -> Iterator[VirtualBoard]:
    with VirtualBoard(main=COUNT, flash=flash) as board:
        board.wait_for("counting")
        yield board


def mpremote(board: VirtualBoard, *words: str, status: int = 0) -> str:
    command = [sys.executable, "-m", "mpremote", "connect", board.port, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def happened(board: VirtualBoard) -> list[str]:
    return [what for _, what in board.events]


def test_mpremote_breaks_into_the_running_program(counting: VirtualBoard) -> None:
    assert mpremote(counting, "resume", "exec", "print(n > 0)") == "True\n"
    assert happened(counting) == ["power on"]


def test_mpremote_execs_after_a_soft_reset_without_main(counting: VirtualBoard) -> None:
    assert mpremote(counting, "exec", "print('n' in globals())") == "False\n"
    assert happened(counting) == ["power on", "soft reset"]


def test_mpremote_runs_a_long_script(counting: VirtualBoard, tmp_path: Path) -> None:
    script = tmp_path / "long.py"
    script.write_text("total = 0\n" + "total += 1  # a line of a long script\n" * 2000 + "print(total)\n")
    assert mpremote(counting, "run", str(script)) == "2000\n"


def test_mpremote_copies_and_imports(counting: VirtualBoard, tmp_path: Path) -> None:
    module = tmp_path / "fresh.py"
    module.write_text("value = 'fresh'\n" + "# padding to more than one block\n" * 300)
    mpremote(counting, "fs", "mkdir", ":lib", "+", "fs", "cp", str(module), ":lib/fresh.py")
    assert mpremote(counting, "exec", "import fresh; print(fresh.value)") == "fresh\n"
    assert "fresh.py" in mpremote(counting, "fs", "ls", ":lib")
    mpremote(counting, "fs", "cp", ":lib/fresh.py", str(tmp_path / "back.py"))
    assert (tmp_path / "back.py").read_bytes() == module.read_bytes()
    mpremote(counting, "fs", "rm", "-r", ":lib")
    assert "lib" not in mpremote(counting, "fs", "ls")
    mpremote(counting, "exec", "import fresh", status=1)


def test_mpremote_mounts_a_folder_and_every_byte_passes(counting: VirtualBoard, tmp_path: Path) -> None:
    every = bytes(range(256)) * 20
    (tmp_path / "in.bin").write_bytes(every)
    mpremote(
        counting, "mount", str(tmp_path), "exec", "open('out.bin', 'wb').write(open('in.bin', 'rb').read())"
    )
    assert (tmp_path / "out.bin").read_bytes() == every


def test_reset_by_mpremote_runs_main_again(counting: VirtualBoard) -> None:
    mark = counting.mark
    mpremote(counting, "reset")
    counting.wait_for("counting", after=mark)
    assert happened(counting)[-1] == "hard reset"
    assert mpremote(counting, "resume", "exec", "import machine; print(machine.reset_cause())") == "2\n"


def test_ctrl_d_at_the_friendly_prompt_runs_main_again(counting: VirtualBoard) -> None:
    with serial.Serial(counting.port, timeout=5) as line:
        line.write(b"\x03")
        assert line.read_until(b">>> ").endswith(b">>> ")
        mark = counting.mark
        line.write(b"\x04")
        assert b"MPY: soft reboot\r\n" in line.read_until(b"counting")
        counting.wait_for("counting", after=mark)
    assert happened(counting) == ["power on", "soft reset"]


def test_power_cut_and_power_on(counting: VirtualBoard) -> None:
    counting.power_cut()
    assert not counting.running
    with pytest.raises(BoardError, match="already off"):
        counting.power_cut()
    with serial.Serial(counting.port, timeout=0.2) as line:  # the port stays, and nobody answers
        line.write(b"\x03\x03")
        assert line.read(1) == b""
    mark = counting.mark
    counting.power_on()
    counting.wait_for("counting", after=mark)
    assert mpremote(counting, "resume", "exec", "import machine; print(machine.reset_cause())") == "1\n"
    with pytest.raises(BoardError, match="already on"):
        counting.power_on()


def test_reset_button(counting: VirtualBoard) -> None:
    mark = counting.mark
    counting.reset()
    counting.wait_for("counting", after=mark)
    assert happened(counting) == ["power on", "reset button", "hard reset"]


@pytest.mark.parametrize("half_open", [False, True])
def test_what_a_peer_sees_of_a_power_cut(half_open: bool) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        VirtualBoard() as board,
        Board(board.port, board) as remote,
    ):
        server.settimeout(10)
        remote.exec(f"import socket\ns = socket.socket()\ns.connect(socket.getaddrinfo('127.0.0.1', "
                    f"{server.getsockname()[1]})[0][-1])")  # fmt: skip
        connection, _ = server.accept()
        with connection:
            remote.close(leave=False)
            board.power_cut(half_open=half_open)
            board.power_on()
            readable = bool(select.select([connection], [], [], 0.3 if half_open else 10)[0])
            assert readable is not half_open
            assert remote.exec("print('new life')") == "new life\n"


def test_boot_runs_before_main_and_their_errors_end_at_the_prompt() -> None:
    with VirtualBoard(
        files={"boot.py": "print('boot')\nfirst = 1\n", "main.py": "print('main', first)\n1 / 0\n"}
    ) as board:
        board.wait_for(">>> ")
        assert re.search(r"boot\s+main 1\s+Traceback(?s:.*)ZeroDivisionError", board.log)
        assert mpremote(board, "resume", "exec", "print(first, __name__)") == "1 __main__\n"
        assert mpremote(board, "exec", "print(first)") == "1\n"  # after a soft reset as well: boot.py has run
        assert board.log.count("boot\n") == 2
        assert board.log.count("main 1") == 1


def test_a_program_that_will_not_be_interrupted_is_left_alone() -> None:
    stubborn = (
        "import time\nwhile True:\n"
        "    try:\n        print('asleep')\n        time.sleep(10)\n"
        "    except KeyboardInterrupt:\n        print('no')\n"
    )
    with VirtualBoard(main=stubborn) as board, serial.Serial(board.port, timeout=5) as line:
        at = board.wait_for("asleep")
        for _ in range(3):
            line.write(b"\x03")
            at = board.wait_for("asleep", after=board.wait_for("no\n", after=at))
        assert happened(board) == ["power on"]


def test_a_program_can_read_ctrl_c_as_data() -> None:
    program = (
        "import micropython, sys\nmicropython.kbd_intr(-1)\nprint('ready')\n"
        "data = sys.stdin.buffer.read(256)\nmicropython.kbd_intr(3)\n"
        "sys.stdout.buffer.write(data)\nprint('end')\nwhile True: pass\n"
    )
    every = bytes(range(256))
    with VirtualBoard(main=program) as board, serial.Serial(board.port, timeout=5) as line:
        board.wait_for("ready")
        line.reset_input_buffer()
        line.write(every)
        assert every in line.read_until(b"end\n")
        line.write(b"\x03")
        assert line.read_until(b">>> ").endswith(b">>> ")


@pytest.mark.parametrize("heap", ["64K", "192K"])
def test_heap_is_as_small_as_asked(heap: str) -> None:
    with VirtualBoard(heap=heap) as board, Board(board.port, board) as remote:
        free = int(remote.exec("import gc\ngc.collect()\nprint(gc.mem_free())"))
        assert parse_size(heap) - 24 * 1024 < free < parse_size(heap)
        with pytest.raises(DeviceError, match="MemoryError"):
            remote.exec(f"bytearray({parse_size(heap)})")
        assert remote.exec("print('goes on')") == "goes on\n"


def test_a_heap_that_is_too_small_says_so() -> None:
    board = VirtualBoard(heap="2K")
    with pytest.raises(BoardError, match="does not start"):
        board.start()
    assert not board.log_path.parent.exists()


def test_files_of_the_host_are_out_of_reach(flash: Flash) -> None:
    with VirtualBoard(flash=flash, host_dirs={"/proc": "/proc"}) as board, Board(board.port, board) as remote:
        assert remote.exec("import os\nprint(os.listdir('/'))") == "['proc']\n"
        assert float(remote.exec("print(open('/proc/loadavg').read().split()[0])")) >= 0
        with pytest.raises(DeviceError, match="ENOENT"):
            remote.exec("open('/etc/passwd')")
        with pytest.raises(DeviceError, match="OSError"):
            remote.exec("open('/proc/new', 'w')")


def test_factory_puts_and_gets_files(flash: Flash) -> None:
    data = os.urandom(10000)
    with VirtualBoard(
        flash=flash, files={"lib/deep/data.bin": data, "text.txt": "text", "self.py": Path(__file__)}
    ) as board:
        assert mpremote(
            board, "exec", "print(open('/text.txt').read(), len(open('/lib/deep/data.bin','rb').read()))"
        ) == ("text 10000\n")
        mpremote(board, "exec", "f = open('/made.txt', 'w'); f.write('made'); f.close()")
        board.power_cut()
        assert board.get("/lib/deep/data.bin") == data
        assert board.get("made.txt") == b"made"
        with pytest.raises(FileNotFoundError):
            board.get("none.txt")
        board.put({"text.txt": "changed"})
        board.power_on()
        assert mpremote(board, "exec", "print(open('text.txt').read())") == "changed\n"
    with pytest.raises(ValueError, match="outside"):
        VirtualBoard(flash=flash, files={"../escape": "x"})


def test_a_board_keeps_its_flash_in_a_folder(flash: Flash, tmp_path: Path) -> None:
    with VirtualBoard(tmp_path, flash=flash, files={"kept.txt": "kept"}):
        pass
    with VirtualBoard(tmp_path, flash=flash) as board:
        assert mpremote(board, "exec", "print(open('kept.txt').read())") == "kept\n"


APPEND = """
n = 0
while n < 100:
    with open("records", "a") as f:
        f.write("%04d\\n" % n)
    print("saved", n)
    n += 1
print("all saved")
"""


@pytest.mark.parametrize("operation", [1, 2, 3, 5, 8, 13, 21, 34, 55, 89])
def test_what_littlefs_has_closed_survives_a_cut_at_any_operation(operation: int) -> None:
    with VirtualBoard(flash="littlefs", flash_size=64 * 1024) as board:
        board.power_cut()
        board.put({"main.py": APPEND})
        board.power_on(cut_at_flash_operation=operation)
        board.wait_off()
        assert happened(board)[-1] == "power cut"
        said = [int(n) for n in re.findall(r"saved (\d+)", board.log)]
        try:
            records = board.get("records").decode().splitlines()
        except FileNotFoundError:
            records = []
        assert [int(line) for line in records[: len(said)]] == said
        assert len(records) - len(said) in (0, 1)
        board.power_on()  # the file system goes on from there
        board.wait_for("all saved")


WRITE = """
import socket
s = socket.socket()
s.connect(socket.getaddrinfo("127.0.0.1", PORT)[0][-1])
print("connected")
with open("record", "w") as f:
    f.write("1")
"""


@pytest.mark.parametrize("half_open", [False, True])
def test_what_a_peer_sees_of_a_cut_at_an_operation(half_open: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, VirtualBoard(flash="littlefs") as board:
        server.settimeout(10)
        board.power_cut()
        board.put({"main.py": WRITE.replace("PORT", str(server.getsockname()[1]))})
        begin = board.mark
        board.power_on(cut_at_flash_operation=1, half_open=half_open)
        connection, _ = server.accept()
        with connection:
            board.wait_off()
            assert board.log[begin:] == "connected\n"
            # A connection that is to close has done so when the power is off.
            assert bool(select.select([connection], [], [], 0)[0]) is not half_open
            assert board.get("main.py")


def test_a_cut_at_an_operation_needs_littlefs() -> None:
    with VirtualBoard() as board:
        board.power_cut()
        with pytest.raises(ValueError, match="littlefs"):
            board.power_on(cut_at_flash_operation=1)
        with pytest.raises(ValueError, match="operation"):
            board.power_on(half_open=True)


ECHO = """
import machine, select
uart = machine.UART(0, baudrate=115200)
assert uart.readinto(bytearray(4)) is None, "nothing has come yet"
buf = bytearray(64)
poll = select.poll()
poll.register(uart, select.POLLIN)
print("listening")
while True:
    for stream, ready in poll.poll(1000):
        n = stream.readinto(buf, 64)
        at = 0
        while at < n:
            at += uart.write(buf, at, n - at) or 0
"""


def test_uart_carries_every_byte_and_can_be_damaged() -> None:
    every = bytes(range(256)) * 8
    with VirtualBoard(main=ECHO, uarts=1) as board, serial.Serial(board.uart_ports[0], timeout=5) as line:
        board.wait_for("listening")
        line.write(every)
        assert line.read(len(every)) == every
        board.uart_filter = lambda number, to_board, data: (
            data.replace(b"a", b"") if to_board else data.upper()
        )
        line.write(b"banana\n")
        assert line.read_until(b"\n") == b"BNN\n"
        board.power_cut()
        passed = bytearray()

        def count(number: int, to_board: bool, data: bytes) -> bytes:
            passed.extend(data)
            return data

        board.uart_filter = count
        line.write(b"lost")
        wait_until(lambda: passed == b"lost")
        mark = board.mark
        board.power_on()
        board.wait_for("listening", after=mark)  # the program has seen there that nothing has come yet
        board.uart_filter = lambda number, to_board, data: data
        line.reset_input_buffer()
        line.write(b"again\n")
        assert line.read_until(b"\n").endswith(b"again\n")


def test_output_that_nobody_reads_does_not_stop_the_board() -> None:
    with VirtualBoard(main="for n in range(20000): print('line', n)\nprint('through')") as board:
        board.wait_for("through", 200)
        assert mpremote(board, "exec", "print('still here')") == "still here\n"


def test_slow_reader_gets_everything() -> None:
    with VirtualBoard() as board, serial.Serial(board.port, timeout=5) as line:
        line.write(b"\x03\x01")
        line.read_until(b"exit\r\n>")
        line.write(b"for n in range(5000): print(n)\n\x04")
        received = b""
        while not received.endswith(b"\x04\x04>"):
            data = line.read(min(100, line.in_waiting) or 1)
            assert data, received[-100:]
            received += data
        assert received == b"OK" + b"".join(b"%d\n" % n for n in range(5000)) + b"\x04\x04>"


@pytest.mark.parametrize("text", ["", "K", "-1", "0", "12Q", "1.5M", "٣K"])
def test_sizes_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


def test_serves_from_the_shell(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tools.virtual_board",
        "--heap",
        "128K",
        "--root",
        str(tmp_path),
        "--uarts",
        "1",
    ]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = process.stdout.readline().split()[1]
        assert process.stdout.readline().startswith("uart 0 ")
        assert process.stdout.readline() == f"files {tmp_path}\n"
        with Board(port) as remote:
            assert remote.exec("print('served')") == "served\n"
            remote.reset()
            assert remote.exec("print('again')") == "again\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(200) == 0
        assert not Path(port).exists()
    finally:
        process.kill()
        process.wait()


def test_no_process_is_left_behind(tmp_path: Path) -> None:
    with VirtualBoard(tmp_path, main=COUNT) as board:
        board.power_cut(half_open=True)
        board.power_on()
    wait_until(
        lambda: not any(str(tmp_path).encode() in _command(entry) for entry in Path("/proc").glob("[0-9]*"))
    )


def _command(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""
