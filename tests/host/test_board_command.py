"""``headwater board`` on virtual boards: each command, and each error that its user can meet."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from mpremote.transport import TransportError
from mpremote.transport_serial import SerialTransport
from serial.tools import list_ports
from serial.tools.list_ports_common import ListPortInfo

from headwater_host.board import install, ports, repl
from headwater_host.board.errors import BoardError
from headwater_host.board.install import LIB, OURS, RECORD, hashes
from headwater_host.board.repl import Board
from headwater_host.board.settings import patched
from tests import built
from tests.host.command import HEADWATER, PATIENCE_S, ended, environment, headwater, headwater_here
from tests.rows import each_row
from tools.deploy import package_files
from tools.virtual_board import VirtualBoard

pytestmark = pytest.mark.needs_micropython

#: Prints that it runs, and goes on.
PROGRAM = "import time\nprint('program runs')\nwhile True:\n    time.sleep_ms(50)\n"
#: As PROGRAM, deaf to ctrl-C.
DEAF = "import micropython\nmicropython.kbd_intr(-1)\n" + PROGRAM
#: boot.py of a board with other firmware.
FIRMWARE = """
import sys
class Names: pass
other, implementation = Names(), Names()
for name in dir(sys):
    setattr(other, name, getattr(sys, name))
implementation.name, implementation.version, implementation._mpy = {!r}, {!r}, {!r}
other.implementation = implementation
sys.modules["sys"] = other
"""


@pytest.fixture(scope="module")
def components(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the components, which the commands of this file use."""
    folder = tmp_path_factory.mktemp("components") / "built"
    built.components(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADWATER_COMPONENTS", str(folder))
        yield folder


@pytest.fixture
def board(components: Path) -> Iterator[VirtualBoard]:
    with VirtualBoard(flash="littlefs", main=PROGRAM) as made:
        made.wait_for("program runs")
        yield made


def run(board: VirtualBoard, *words: object, data: bytes = b"", **more: str) -> str:
    """Run ``headwater board`` with success; return its output."""
    done = headwater_here("board", *words, "--port", board.port, data=data, **more)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def look(board: VirtualBoard, *words: object) -> str:
    """As ``run``, for several looks at a board in a row: without a reset after each."""
    return run(board, *words, "--no-reset")


def listed(board: VirtualBoard, name: str = "/") -> list[str]:
    """Return the names in a directory of a board, which stays at its prompt."""
    with Board(board.port) as remote:
        return sorted(remote.listdir(name))


def read(board: VirtualBoard, name: str) -> str:
    """Return the text of a file of a board, which stays at its prompt."""
    with Board(board.port) as remote:
        return remote.get(name).decode()


def fails(board: VirtualBoard, code: int, *words: object, data: bytes = b"") -> str:
    """Run ``headwater board`` to an error with this exit code; return its text."""
    done = headwater_here("board", *words, "--port", board.port, data=data)
    text = done.stderr.decode()
    assert done.returncode == code, text
    assert "Traceback" not in text
    return text


# ---- which board -----------------------------------------------------------------------------------------------------


def port_info(device: str, vid: int | None = None, pid: int = 0, serial: str = "") -> ListPortInfo:
    found = ListPortInfo(device, skip_link_detection=True)
    found.vid, found.pid, found.serial_number = vid, pid, serial
    return found


PICO = port_info("/dev/ttyACM0", 0x2E8A, 0x0005, "E661")
BRIDGE = port_info("/dev/ttyUSB0", 0x10C4, 0xEA60, "0001")
PIMORONI = port_info("/dev/ttyACM1", 0x2E8A, 0x105B)
PROBE = port_info("/dev/ttyACM9", 0x2E8A, 0x000C)
MODEM = port_info("/dev/ttyS0")


def test_boards_are_found_by_their_usb_identifiers() -> None:
    found = ports.boards([MODEM, PICO, PROBE, BRIDGE, PIMORONI])
    assert [(one.port, one.what, one.serial) for one in found] == [
        ("/dev/ttyACM0", "RP2 with MicroPython", "E661"),
        ("/dev/ttyUSB0", "ESP32 behind a CP210x bridge", "0001"),
        ("/dev/ttyACM1", "RP2 with MicroPython", ""),
    ]


def test_the_only_board_is_chosen_and_others_by_path_or_serial_number() -> None:
    both = ports.boards([PICO, BRIDGE])
    assert ports.choose(None, both[:1]) == "/dev/ttyACM0"
    assert ports.choose("0001", both) == "/dev/ttyUSB0"
    assert ports.choose("/dev/ttyS0", both) == "/dev/ttyS0"


def test_bridges_with_the_same_serial_number_are_selected_by_their_ports() -> None:
    same = ports.boards([BRIDGE, port_info("/dev/ttyUSB1", 0x10C4, 0xEA60, "0001")])
    with pytest.raises(
        BoardError, match="there are 2 boards with the serial number 0001; name one with --port /dev"
    ):
        ports.choose("0001", same)
    assert ports.choose("/dev/ttyUSB1", same) == "/dev/ttyUSB1"


def test_several_boards_and_none_are_errors(
    components: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HEADWATER_BOARD", raising=False)
    monkeypatch.setattr(list_ports, "comports", lambda: [PICO, BRIDGE])
    assert ended("board", "list") == 0
    assert capsys.readouterr().out == (
        "/dev/ttyACM0\tRP2 with MicroPython\tE661\n/dev/ttyUSB0\tESP32 behind a CP210x bridge\t0001\n"
    )
    assert ended("board", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["serial"] == "E661"
    assert ended("board", "info") == 2
    assert ended("board", "list") == 0
    assert "Select one with --port PORT, or with HEADWATER_BOARD=PORT" in capsys.readouterr().err
    for words in (("info",), ("install", "--wifi", "home")):
        assert ended("board", *words) == 2
        assert (
            "there are 2 boards; name one with --port /dev/ttyACM0 (RP2 with MicroPython, E661) or --port /dev/ttyUSB0"
        ) in capsys.readouterr().err
    monkeypatch.setattr(list_ports, "comports", lambda: [MODEM])
    for words in (("list",), ("info",)):
        assert ended("board", *words) == 3
        assert "no board found: connect one" in capsys.readouterr().err


def test_a_pico_without_firmware_is_mentioned(tmp_path: Path) -> None:
    for name, product in (("1-1", "0003"), ("1-2", "0005")):
        device = tmp_path / product / name
        device.mkdir(parents=True)
        (device / "idVendor").write_text("2e8a\n")
        (device / "idProduct").write_text(f"{product}\n")
    (tmp_path / "0003" / "usb1").mkdir()
    assert "copy MicroPython's .uf2 file" in ports._bootsel(tmp_path / "0003")
    assert ports._bootsel(tmp_path / "0005") == ""


# ---- what goes well --------------------------------------------------------------------------------------------------


def test_info_describes_a_board_and_its_program_runs_again(board: VirtualBoard) -> None:
    mark = board.mark
    shown = run(board, "info")
    assert f"port       {board.port}\n" in shown
    assert "firmware   micropython 1." in shown
    assert "headwater  not installed\n" in shown
    mark = board.wait_for("program runs", after=mark)
    found = json.loads(look(board, "info", "--json"))
    assert (found["implementation"], found["components"], found["complete"]) == ("micropython", [], True)
    assert 0 < found["flash_free"] < found["flash"] == 1 << 20
    assert 0 < found["memory_free"] < found["memory"] <= 192 * 1024
    assert "program runs" not in board.log[mark:]


def test_install_puts_exactly_the_chosen_components_on_the_board(board: VirtualBoard) -> None:
    said = run(board, "install", "mqtt", "headwater-store")
    assert "wrote   /lib/headwater/mqtt/__init__.mpy\n" in said
    found = json.loads(look(board, "info", "--json"))
    assert (found["components"], found["complete"]) == (["headwater-mqtt", "headwater-store"], True)
    assert run(board, "install", "mqtt", "store") == "nothing has changed\n"
    said = run(board, "install", "fmq")
    assert "removed /lib/headwater/mqtt/__init__.mpy\n" in said
    assert listed(board, "/lib/headwater/fmq")[0] == "__init__.mpy"
    assert "mqtt" not in listed(board, "/lib/headwater")


def test_install_writes_settings_and_the_program(board: VirtualBoard, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("-----BEGIN CERTIFICATE-----\n")
    main = tmp_path / "blink.py"
    main.write_text("print('blinks')\n")
    words = [
        "--wifi",
        "home",
        "--wifi",
        "--country",
        "CH",
        "--client-id",
        "b1",
        "--ca",
        ca,
        "--main",
        main,
        "--yes",
    ]
    run(
        board,
        *("install", *words, "--broker", "mqtts://joe@broker.local/boards/b1"),
        data=b"pass word\nwork shop\nother pass\n",
        HEADWATER_PASSWORD="secret",
    )
    board.wait_for("blinks")
    settings = json.loads(read(board, "/headwater.json"))
    assert settings == {
        "wifi": [{"ssid": "home", "password": "pass word"}, {"ssid": "work shop", "password": "other pass"}],
        "country": "CH",
        "topic": "boards/b1",
        "broker": {
            "protocol": "mqtt",
            "host": "broker.local",
            "user": "joe",
            "password": "secret",
            "client_id": "b1",
            "tls": {"ca": "/ca.pem"},
        },
    }
    assert read(board, "/ca.pem") == ca.read_text()
    # What is not named stays; TLS goes with the URL.
    run(board, "install", "--broker", "mqtt://10.0.0.1:1884")
    settings = json.loads(read(board, "/headwater.json"))
    assert settings["broker"] == {"protocol": "mqtt", "host": "10.0.0.1", "port": 1884, "client_id": "b1"}
    assert settings["country"] == "CH"


def test_the_components_fit_the_settings(board: VirtualBoard, tmp_path: Path) -> None:
    settings = tmp_path / "headwater.json"
    for text, component in (
        ({"broker": {"host": "h", "protocol": "fmq"}}, "headwater-fmq"),
        ({"broker": {"host": "h"}, "wifi": [{"ssid": "s"}]}, "headwater-wifi"),
    ):
        settings.write_text(json.dumps(text))
        run(board, "install", "--settings", settings)
        assert component in json.loads(look(board, "info", "--json"))["components"]


def test_a_merge_patch_changes_settings() -> None:
    old = {"a": 1, "b": {"c": 2, "d": 3}}
    assert patched(old, {"a": None, "b": {"c": None, "e": {"f": 4}}, "g": [5]}) == {
        "b": {"d": 3, "e": {"f": 4}},
        "g": [5],
    }
    assert old == {"a": 1, "b": {"c": 2, "d": 3}}


@contextlib.contextmanager
def on_a_terminal(*words: object) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """``headwater board`` with a controlling terminal: the process, and the descriptor of the terminal's other end."""
    near, far = os.openpty()
    try:
        name = os.ttyname(far)
        command = ["sh", "-c", 'exec "$@" <"$0" >"$0" 2>&1', name, *HEADWATER, "board", *map(str, words)]
        with subprocess.Popen(command, env=environment(), start_new_session=True) as process:
            yield process, near
    finally:
        os.close(near)
        os.close(far)


def read_until(terminal: int, text: str) -> str:
    """Read from a terminal until it shows a text."""
    seen = ""
    while text not in seen:
        seen += os.read(terminal, 4096).decode()
    return seen


def test_a_password_is_asked_for_without_echo_and_progress_is_shown(board: VirtualBoard) -> None:
    with on_a_terminal("install", "mqtt", "--wifi", "--port", board.port) as (process, terminal):
        read_until(terminal, "WiFi network: ")
        os.write(terminal, b"home\n")
        seen = read_until(terminal, "Password of home (empty: open network): ")
        while termios.tcgetattr(terminal)[3] & termios.ECHO:
            time.sleep(0.01)
        os.write(terminal, b"hush hush\n")
        seen += read_until(terminal, "wrote   /headwater.json")
        assert process.wait(PATIENCE_S) == 0
    assert "hush" not in seen
    assert "/lib/headwater/mqtt/__init__.mpy: 1,024 of " in seen
    assert json.loads(read(board, "/headwater.json"))["wifi"] == [{"ssid": "home", "password": "hush hush"}]


def test_run_streams_output_and_an_exception_is_an_error(board: VirtualBoard, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('caf\N{LATIN SMALL LETTER E WITH ACUTE}')\nraise ValueError('wrong')\n")
    done = headwater("board", "run", program, "--port", board.port)
    assert (done.returncode, done.stdout.decode()) == (1, "caf\N{LATIN SMALL LETTER E WITH ACUTE}\n")
    assert done.stderr.decode().endswith("ValueError: wrong\n")


def test_ctrl_c_stops_a_running_program_on_the_board(board: VirtualBoard) -> None:
    mark = board.mark
    code = (
        b"import time\nprint('on')\ntry:\n    time.sleep(100)\nexcept KeyboardInterrupt:\n    print('off')\n"
    )
    command = [*HEADWATER, "board", "run", "-", "--port", board.port]
    with subprocess.Popen(
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(code)
        process.stdin.close()
        assert process.stdout.readline() == b"on\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == b"off\n"
        assert process.stderr is not None
        assert process.stderr.read() == b"headwater: interrupted; no file of the board was changed\n"
        assert process.wait(PATIENCE_S) == 130
    board.wait_for("program runs", after=mark)


def test_ctrl_c_at_the_question_for_a_password_leaves_the_board_running(board: VirtualBoard) -> None:
    with on_a_terminal("install", "--wifi", "home", "--port", board.port) as (process, terminal):
        read_until(terminal, "Password of home (empty: open network): ")
        while termios.tcgetattr(terminal)[3] & termios.ECHO:
            time.sleep(0.01)
        os.write(terminal, b"\x03")
        assert "\nheadwater: interrupted; the board was not changed\r\n" in read_until(
            terminal, "changed\r\n"
        )
        assert process.wait(PATIENCE_S) == 130
        assert termios.tcgetattr(terminal)[3] & termios.ECHO
    assert "raw REPL" not in board.log


def test_ctrl_c_while_a_library_is_copied_says_so_and_the_command_can_be_repeated(
    board: VirtualBoard,
) -> None:
    mark = board.mark
    with on_a_terminal("install", "device", "--port", board.port) as (process, terminal):
        read_until(terminal, "/lib/headwater/journal.mpy: ")
        os.write(terminal, b"\x03")
        said = "headwater: interrupted; files on the board have changed: repeat the command\r\n"
        assert said in read_until(terminal, "repeat the command\r\n")
        assert process.wait(PATIENCE_S) == 130
    board.wait_for("program runs", after=mark)
    assert "the installation was interrupted: repeat `headwater board install`" in look(board, "info")
    run(board, "install", "device")
    assert "interrupted" not in look(board, "info")


def test_ctrl_c_while_a_program_is_copied_leaves_the_one_before(board: VirtualBoard, tmp_path: Path) -> None:
    run(board, "install", "link")
    mark = board.mark
    (tmp_path / "main.py").write_text(f"text = {'x' * 200_000!r}\n")
    words = ("install", "link", "--main", tmp_path / "main.py", "--yes", "--port", board.port)
    with on_a_terminal(*words) as (process, terminal):
        read_until(terminal, "/main.py: ")
        os.write(terminal, b"\x03")
        read_until(
            terminal, "headwater: interrupted; files on the board have changed: repeat the command\r\n"
        )
        assert process.wait(PATIENCE_S) == 130
    board.wait_for("program runs", after=mark)
    assert read(board, "/main.py") == PROGRAM
    assert "main.py.new" not in listed(board)


def test_ctrl_c_within_a_step_lets_the_program_run_again(board: VirtualBoard, tmp_path: Path) -> None:
    mark = board.mark
    data = tmp_path / "data.bin"
    data.write_bytes(bytes(500000))
    with subprocess.Popen(
        [*HEADWATER, "board", "files", "put", str(data), "--port", board.port], env=environment()
    ) as process:
        # Within a piece of the file: the board asks for its next bytes.
        board.wait_for("\x01" * 20, after=mark)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    board.wait_for("program runs", after=mark)


@each_row(
    "boot, main, sign",
    [
        # The ROM of an ESP32 prints this before MicroPython starts.
        (
            "print('rst:0xc (SW_CPU_RESET),boot:0x13 (SPI_FAST_FLASH_BOOT)')",
            PROGRAM,
            "rst:0xc (SW_CPU_RESET),boot:0x13 (SPI_FAST_FLASH_BOOT)",
        ),
        ("", "", 'Type "help() for more information.'.replace("()", '()"')),
    ],
)
def test_a_board_behind_a_bridge_that_resets_itself_ends_run(
    components: Path, boot: str, main: str, sign: str
) -> None:
    with VirtualBoard(port="esp32", files={"boot.py": boot}, main=main) as board:
        board.wait_for("rst:0xc" if boot else "help")
        code = b"import machine\nprint('on')\nmachine.reset()\n"
        text = fails(board, 3, "run", "-", data=code)
        assert f"the board reset itself while the program ran ({sign!r})" in text


def test_tracebacks_of_components_are_translated(board: VirtualBoard) -> None:
    run(board, "install", "mqtt")
    program = b"""
import sys
from headwater.mqtt.client import Client
try:
    Client(None)
except AttributeError as e:
    sys.print_exception(e)
print("going on")
Client(None)
"""
    done = headwater_here("board", "run", "-", "--port", board.port, data=program)
    for text in (done.stdout.decode(), done.stderr.decode()):
        assert re.search(r'  File "headwater/connection\.py", line \d+, in \w+\.__init__\nAttr', text), text
    assert done.stdout.decode().endswith("going on\n")
    main = program.decode() + "import time\nwhile True: time.sleep_ms(50)"
    with Board(board.port) as remote:
        remote.put("/main.py", main.encode())
    shown = run(board, "logs", "--reset", "-W", 3)
    assert re.search(r'  File "headwater/connection\.py", line \d+, in \w+\.__init__\nAttr', shown), shown
    # A file that is not the one of these components is not translated with their lines.
    with Board(board.port) as remote:
        record = json.loads(remote.get(RECORD))
        record["files"] = dict.fromkeys(record["files"], "0")
        remote.put(RECORD, json.dumps(record).encode())
    done = headwater_here("board", "run", "-", "--port", board.port, data=program)
    text = done.stderr.decode()
    assert re.search(
        r"\.py\", line \d+, in __init__\nAttributeError: 'NoneType' object has no attribute 'ticks_ms'\n",
        text,
    )


def test_a_closed_pipe_stops_a_running_program_on_the_board(board: VirtualBoard) -> None:
    mark = board.mark
    command = [*HEADWATER, "board", "run", "-", "--port", board.port]
    with subprocess.Popen(
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"while True:\n    print('x' * 100)\n")
        process.stdin.close()
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 0
    board.wait_for("program runs", after=mark)


def test_logs_shows_what_a_board_prints_over_its_resets(components: Path) -> None:
    program = "import time\nfor n in range(1000):\n    print('tick', n)\n    time.sleep_ms(50)\n"
    with VirtualBoard(main=program) as board:
        board.wait_for("tick 3")
        shown = run(board, "logs", "-W", 1)
        assert "tick" in shown
        assert "tick 0\n" not in shown
        assert "KeyboardInterrupt" not in board.log
        assert "tick 0\n" in run(board, "logs", "--reset", "-W", 2)
        with subprocess.Popen(
            [*HEADWATER, "board", "logs", "--port", board.port], env=environment(), stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            board.reset()
            while process.stdout.readline() != b"tick 0\n":
                pass
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0


def test_logs_shows_the_log_ring_of_a_program(board: VirtualBoard) -> None:
    assert "no log ring" in fails(board, 1, "logs", "--ring")
    main = """
import time
from headwater_board.logs import INFO, WARNING, LogRing
log = LogRing()
log.write(INFO, "measured")
log.write(WARNING, "no answer")
print("logged")
while True:
    time.sleep_ms(50)
"""
    with VirtualBoard(files=package_files("mpy"), main=main) as logging:
        logging.wait_for("logged")
        lines = run(logging, "logs", "--ring").splitlines()
    assert [(line[0], line.split(" ", 2)[2]) for line in lines] == [("I", "measured"), ("W", "no answer")]


def test_files_are_copied_listed_and_removed(board: VirtualBoard, tmp_path: Path) -> None:
    data = os.urandom(5000)
    (tmp_path / "data.bin").write_bytes(data)
    run(board, "files", "put", tmp_path / "data.bin")
    run(board, "files", "put", "-", "/deep/er/text.txt", data=b"text")
    assert look(board, "files", "ls").split() == ["data.bin", "deep", "main.py"]
    assert look(board, "files", "ls", "/deep/er").split() == ["text.txt"]
    look(board, "files", "get", "/data.bin", tmp_path / "copy.bin")
    assert (tmp_path / "copy.bin").read_bytes() == data
    run(board, "files", "rm", "/data.bin")
    assert look(board, "files", "ls").split() == ["deep", "main.py"]
    for words in (("get", "/data.bin"), ("rm", "/data.bin"), ("ls", "/data.bin")):
        assert "there is no /data.bin on the board" in fails(board, 1, "files", *words)
    assert "the directory is not empty" in fails(board, 1, "files", "rm", "/deep")
    assert "needs a NAME" in fails(board, 2, "files", "put", "-")


def test_names_and_programs_that_are_not_utf8(board: VirtualBoard, tmp_path: Path) -> None:
    name = tmp_path / os.fsdecode(b"a\xff.txt")
    name.write_bytes(b"x")
    look(board, "files", "put", name)
    assert look(board, "files", "ls").split() == ["a\\udcff.txt", "main.py"]
    (tmp_path / "program.py").write_bytes(b"\xff")
    assert "is not a program" in fails(board, 2, "run", tmp_path / "program.py")


def test_reset_starts_the_program(board: VirtualBoard) -> None:
    mark = board.mark
    run(board, "reset")
    board.wait_for("program runs", after=mark)


def test_wipe_ours_removes_only_what_was_installed(board: VirtualBoard) -> None:
    run(board, "install", "mqtt", "--broker", "mqtt://broker.local")
    with Board(board.port) as remote:
        remote.put("/lib/mine.py", b"mine = 1\n")
        remote.put("/lib/headwater/mine.py", b"mine = 2\n")
        remote.put("/lib/headwater/reasons.mpy", b"changed")
    assert "pass --yes" in fails(board, 2, "wipe-ours")
    said = run(board, "wipe-ours", "--yes")
    assert "keep   /lib/headwater/reasons.mpy (changed)\n" in said
    assert listed(board, "/lib") == ["headwater", "headwater-installed.json", "mine.py"]
    assert listed(board, "/lib/headwater") == ["mine.py", "reasons.mpy"]
    assert listed(board) == ["headwater.json", "lib", "main.py"]
    run(board, "wipe-ours", "--yes", "--changed", "--state")
    assert listed(board) == ["lib", "main.py"]
    with Board(board.port) as remote:
        remote.remove("/lib/headwater/mine.py")
    assert run(board, "wipe-ours", "--yes") == "headwater is not installed\n"


def test_a_program_for_updates_is_started_by_the_loader_and_its_slots_are_state(
    board: VirtualBoard, tmp_path: Path
) -> None:
    (tmp_path / "main.py").write_text("print('app runs')\n")
    settings = {"broker": {"host": "h"}, "update": {"topic": "t", "key_file": "/key"}, "outbox": {}}
    (tmp_path / "headwater.json").write_text(json.dumps(settings))
    words = ("--settings", tmp_path / "headwater.json", "--main", tmp_path / "main.py", "--yes")
    with VirtualBoard(port="rp2", flash="littlefs") as updated:
        run(updated, "install", *words)
        updated.wait_for("app runs")
        assert read(updated, "/app.py") == "print('app runs')\n"
        with Board(updated.port) as remote:
            remote.put("/a/app.py", b"")
            remote.put("/headwater.slot", b"a")
        run(updated, "wipe-ours", "--yes", "--state")
        assert listed(updated) == ["app.py", "lib", "main.py"]


def test_wipe_ours_asks_on_a_terminal(board: VirtualBoard) -> None:
    run(board, "install", "link")
    for answer, left in ((b"n\n", True), (b"y\n", False)):
        with on_a_terminal("wipe-ours", "--port", board.port) as (process, terminal):
            read_until(terminal, "files? [y/N] ")
            os.write(terminal, answer)
            assert process.wait(PATIENCE_S) == 0
        assert ("headwater" in listed(board, "/lib")) is left


def test_a_stopped_program_s_watchdog_is_fed(components: Path) -> None:
    main = """
from headwater_board.watchdog import Watchdog
import time
watchdog = Watchdog(2000)
print("guarded")
while True:
    watchdog.fed(0)
    time.sleep_ms(50)
"""
    with VirtualBoard(port="rp2", files=package_files("mpy"), main=main) as board:
        board.wait_for("guarded")
        slow = b"import time\ntime.sleep(5)\nprint('still here')\n"
        assert run(board, "run", "-", data=slow) == "still here\n"
        assert "watchdog" not in [what for _, what in board.events]


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_full_file_system_is_noticed_before_a_change(components: Path) -> None:
    with VirtualBoard(flash="littlefs", flash_size=24 * 4096) as board:
        run(board, "install", "link")
        before = look(board, "info", "--json")
        text = fails(board, 1, "install", "headwater")
        assert "the board's file system is full (needs " in text
        assert " are free): remove files" in text
        assert look(board, "info", "--json") == before


def test_a_file_system_that_fills_up_while_it_is_written_is_an_error(
    components: Path, tmp_path: Path
) -> None:
    (tmp_path / "large.bin").write_bytes(os.urandom(100_000))
    with VirtualBoard(flash="littlefs", flash_size=24 * 4096) as board:
        assert "file system is full" in fails(board, 1, "files", "put", tmp_path / "large.bin")
        assert listed(board) == []


def test_a_missing_port_is_an_error() -> None:
    done = headwater("board", "info", "--port", "/dev/ttyACM77")
    assert done.returncode == 3
    assert "there is no port /dev/ttyACM77; `headwater board list`" in done.stderr.decode()


def test_a_busy_port_names_the_program_that_uses_it(board: VirtualBoard) -> None:
    hold = "import serial, sys\nport = serial.Serial(sys.argv[1], exclusive=True)\nprint(flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, board.port], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        for words in (("info",), ("logs",)):
            text = fails(board, 3, *words)
            assert f"{board.port} is busy: " in text
            assert f"(process {holder.pid}) uses it; close that program first" in text
        holder.communicate()
    look(board, "info")


def test_a_port_without_permission_names_the_group(board: VirtualBoard) -> None:
    port = Path(board.port).resolve()
    port.chmod(0)
    # root needs this capability for a file that its mode forbids.
    capability = "-dac_override,-dac_read_search"
    weaker = (
        ["setpriv", f"--inh-caps={capability}", f"--bounding-set={capability}"] if os.geteuid() == 0 else []
    )
    done = subprocess.run(
        [*weaker, *HEADWATER, "board", "info", "--port", str(port)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 3, done.stderr
    assert f"no permission to open {port}; add yourself to its group" in done.stderr
    group = "dialout" if port.group() == "root" else port.group()
    assert f"sudo usermod -aG {group} $USER" in done.stderr


@each_row(
    "firmware, error",
    [
        (
            ("micropython", (1, 23, 0, ""), 6),
            "the firmware is too old: MicroPython 1.23.0; headwater needs 1.24 or newer",
        ),
        (("circuitpython", (9, 2, 0, ""), 6), "the board runs circuitpython; headwater needs MicroPython"),
        (
            ("micropython", (2, 0, 0, ""), 7),
            "the firmware loads .mpy version 7, the components are version 6",
        ),
    ],
)
def test_firmware_that_does_not_fit_is_refused_before_a_change(
    components: Path, firmware: tuple[object, ...], error: str
) -> None:
    with VirtualBoard(files={"boot.py": FIRMWARE.format(*firmware)}) as board:
        assert error in fails(board, 1, "install", "mqtt")
        assert not board.fs_path("/lib").exists()


def test_headwater_in_another_place_is_reported(components: Path) -> None:
    boot = "import sys\nsys.path.insert(1, '/rom/lib')\n"
    module = "__version__ = '9.9'\n"
    with VirtualBoard(files={"boot.py": boot, "rom/lib/headwater/__init__.py": module}) as board:
        text = fails(board, 1, "install", "mqtt")
        assert "the board takes headwater 9.9 from /rom/lib/headwater/__init__.py" in text
        assert not board.fs_path("/lib").exists()
        assert "headwater  9.9 from /rom/lib/headwater/__init__.py\n" in look(board, "info")


def test_a_board_that_does_not_answer_ctrl_c_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repl, "_PROMPT_S", 0.5)
    with VirtualBoard(main=DEAF) as board:
        board.wait_for("program runs")
        text = fails(board, 4, "info")
        assert f"the board at {board.port} does not answer ctrl-C with MicroPython's prompt" in text


def test_a_board_that_never_stops_printing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repl, "_PROMPT_S", 0.2)
    with (
        VirtualBoard(main=DEAF.replace("time.sleep_ms(50)", "print('x' * 100)")) as board,
        pytest.raises(TransportError, match="raw repl"),
        Board(board.port) as remote,
    ):
        remote.exec("")


def test_a_port_that_vanishes_while_a_file_is_copied_is_an_error(components: Path, tmp_path: Path) -> None:
    (tmp_path / "large.bin").write_bytes(bytes(1 << 20))
    board = VirtualBoard().start()
    copied = board.fs_path("/large.bin.new")

    def pull() -> None:
        while not copied.exists():
            time.sleep(0.01)
        board.close()

    puller = threading.Thread(target=pull)
    puller.start()
    text = fails(board, 3, "files", "put", tmp_path / "large.bin")
    puller.join()
    assert f"{board.port} vanished: the cable was pulled" in text


@each_row("operation", [5, 50])
def test_a_power_cut_during_an_installation_is_noticed_and_repaired(
    components: Path, monkeypatch: pytest.MonkeyPatch, operation: int
) -> None:
    # Seconds without an answer that show mpremote that the board is off: 10 otherwise.
    monkeypatch.setattr(SerialTransport.exec_raw, "__defaults__", (3, None))
    with VirtualBoard(flash="littlefs") as board:
        run(board, "install", "mqtt")
        board.power_cut()
        board.power_on(cut_at_flash_operation=operation)
        text = fails(board, 4, "install", "fmq")
        assert "does not answer" in text
        board.wait_off()
        board.power_on()
        found = json.loads(look(board, "info", "--json"))
        assert (found["components"], found["complete"]) in (
            (["headwater-mqtt"], True),
            (["headwater-fmq"], False),
        )
        if not found["complete"]:
            assert "the installation was interrupted: repeat `headwater board install`" in look(board, "info")
        run(board, "install", "fmq")
        code = b"import headwater.fmq.client\nprint('imported')\n"
        assert run(board, "run", "-", data=code) == "imported\n"
        run(board, "wipe-ours", "--yes")
        assert listed(board, "/lib") == []


def test_wrong_settings_are_refused(board: VirtualBoard, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "torn.json").write_text("{")
    assert "torn.json is not JSON" in fails(board, 2, "install", "--settings", tmp_path / "torn.json")
    assert "a JSON object is needed" in fails(board, 2, "install", "--settings", tmp_path / "list.json")
    assert "--ca FILE" in fails(board, 2, "install", "--broker", "mqtts://h")
    (tmp_path / "ca").write_bytes(b"")
    assert "no certificate" in fails(board, 2, "install", "--broker", "mqtts://h", "--ca", tmp_path / "ca")
    assert "--client-id: the value is empty" in fails(board, 2, "install", "--client-id", "")
    assert "no WebSocket" in fails(board, 2, "install", "--broker", "ws://h")
    assert "there is no component 'mqt'" in fails(board, 2, "install", "mqt")
    assert "standard input ended" in fails(board, 2, "install", "--wifi", "home")
    assert listed(board) == ["main.py"]


def test_settings_that_the_board_refuses_are_not_written(board: VirtualBoard) -> None:
    run(board, "install", "--wifi", "home", "--broker", "mqtt://broker.local", data=b"long enough\n")
    before = read(board, "/headwater.json")
    text = fails(board, 2, "install", "--wifi", "home", data=b"short\n")
    assert (
        "the settings are wrong, and nothing was written:\n/headwater.json: wifi[0].password is 7 hidden"
        in text
    )
    assert read(board, "/headwater.json") == before
    assert "headwater.json.new" not in listed(board)


@each_row(
    "settings, mistake",
    [
        ({"broker": {}}, "broker.host is missing"),
        ({"broker": "h"}, 'broker is "h"; allowed: a table'),
        ({"broker": {"host": "h"}, "topic": "t" * 4096}, "topic is "),
        ({"broker": {"host": "h"}, "wifi": [{"ssid": "\ud800"}]}, "is not JSON"),
    ],
)
def test_wrong_settings_are_refused_before_the_library_is_copied(
    components: Path, tmp_path: Path, settings: object, mistake: str
) -> None:
    (tmp_path / "headwater.json").write_text(json.dumps(settings))
    with VirtualBoard() as board:
        text = fails(board, 2, "install", "--settings", tmp_path / "headwater.json")
        assert mistake in text
        assert not board.fs_path("/lib").exists()
        assert "broker.host is missing" in fails(board, 2, "install", "--country", "CH")
        assert not board.fs_path("/lib").exists()


def test_settings_are_checked_for_the_components_that_read_them(components: Path, tmp_path: Path) -> None:
    with VirtualBoard() as board:
        run(board, "install", "link", "--country", "CH")
        assert "broker.host" in fails(board, 2, "install", "device")
        board.fs_path("/headwater.json").write_text("{")
        assert "is not JSON" in fails(board, 2, "install", "device")
        (tmp_path / "s.json").write_text('{"broker": {"host": "h"}, "wifi": [{"ssid": "caf\\ud83d\\ude00"}]}')
        run(board, "install", "--settings", tmp_path / "s.json")
        code = b"import json\nprint(json.load(open('/headwater.json'))['wifi'][0]['ssid'].encode())\n"
        assert run(board, "run", "-", data=code) == "b'caf\\xf0\\x9f\\x98\\x80'\n"


def test_a_program_that_does_not_fit_is_refused_before_the_library_is_copied(
    components: Path, tmp_path: Path
) -> None:
    (tmp_path / "main.py").write_bytes(os.urandom(60_000))
    with VirtualBoard(flash="littlefs", flash_size=24 * 4096) as board:
        text = fails(board, 1, "install", "link", "--main", tmp_path / "main.py")
        assert "the board's file system is full (needs " in text
        assert listed(board) == []


def test_programs_are_hashed_once(components: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []

    def counted(board: Board, roots: Sequence[str]) -> dict[str, tuple[str, int]]:
        hashed.extend(roots)
        return hashes(board, roots)

    monkeypatch.setattr(install, "hashes", counted)
    (tmp_path / "main.py").write_text("print('new')\n")
    with VirtualBoard(main=PROGRAM) as board:
        run(board, "install", "link", "--main", tmp_path / "main.py", "--yes")
    assert hashed.count("/main.py") == 1


def test_another_main_is_not_replaced_unasked(board: VirtualBoard, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("print('new')\n")
    assert "/main.py on the board is another program" in fails(
        board, 2, "install", "link", "--main", tmp_path / "main.py"
    )
    assert read(board, "/main.py") == PROGRAM


def test_a_checkout_without_components_says_how_to_build_them(board: VirtualBoard, tmp_path: Path) -> None:
    text = fails(board, 2, "install", "--components", tmp_path)
    assert "in a checkout run `./run build`, and pass --components out/components" in text


def test_a_damaged_record_is_an_interrupted_installation(board: VirtualBoard) -> None:
    run(board, "install", "link")
    with Board(board.port) as remote:
        remote.put(RECORD, b"{")
    assert "interrupted" in look(board, "info")
    assert "headwater-installed.json on the board is damaged" in fails(board, 1, "wipe-ours", "--yes")
    run(board, "install", "link")
    assert "headwater-link\n" in look(board, "info")
    assert {f"{LIB}/headwater", f"{LIB}/headwater_board"} == set(OURS)


def test_the_errors_of_boards_are_errors_of_commands() -> None:
    with pytest.raises(BoardError, match="no board found"):
        ports.choose(None, [])
