"""The tutorial of the first board runs as it stands, on the virtual RP2 and ESP32: each command, in its order."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from headwater_spark.pipeline import run_on
from headwater_spark.tables import TELEMETRY
from tests import built
from tests.host.command import PATIENCE_S, environment, write_commands
from tests.host.gateway_peers import recorded
from tests.interop.test_readme import blocks
from tests.spark.logs import InProcess, rows
from tests.waiting import wait_until
from tools import toolchain
from tools.broker import free_port
from tools.toolchain import ROOT
from tools.virtual_board import Port, VirtualBoard

PAGE = (ROOT / "docs" / "tutorials" / "first-board.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "device" / "first_board.py"
NETWORK = "workshop"
PASSWORD = "correct horse"
#: Lines that need a chip, the network or root.
SKIPPED = re.compile(r"^(pip install|sudo|esptool) .*\n", re.MULTILINE)

pytestmark = [pytest.mark.needs_micropython, pytest.mark.needs_mosquitto]


def board_of(port: Port) -> VirtualBoard:
    """A new board with MicroPython, in reach of the network."""
    return VirtualBoard(port=port, flash="littlefs", heap="384K", networks={NETWORK: PASSWORD}, pace=0.02)


def faster(program: str) -> str:
    """The program with readings every 200 ms instead of 5 s."""
    assert "wait(5000)" in program
    return program.replace("wait(5000)", "wait(200)")


@pytest.fixture(scope="module")
def components(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("components") / "built"
    built.components(folder)
    return folder


class Reader:
    """A reader of the page, in a folder with what it has unpacked."""

    def __init__(self, folder: Path, components: Path, board: VirtualBoard) -> None:
        self.folder = folder
        self.port = free_port()
        board.air.reach("192.168.1.10:1883", self.port)
        program = folder / "examples" / "device" / "first_board.py"
        program.parent.mkdir(parents=True)
        program.write_text(faster(EXAMPLE.read_text(encoding="utf-8")))
        self.variables = environment(
            PATH=write_commands(folder / "bin", mosquitto=toolchain.find("mosquitto")),
            HEADWATER_BOARD=board.port,
            HEADWATER_COMPONENTS=str(components),
            HEADWATER_WIFI_PASSWORD=PASSWORD,
        )

    def script(self, block: str) -> str:
        """The block with this test's port in the place of 1883."""
        script = SKIPPED.sub("", block).replace("listener 1883", f"listener {self.port}")
        script = script.replace("--broker localhost", f"--broker localhost:{self.port}")
        return re.sub(r"^headwater (pub|sub) ", rf"headwater \1 -p {self.port} ", script, flags=re.MULTILINE)

    def run(self, block: str) -> str:
        """Run a block to its end; return its output."""
        done = subprocess.run(
            ["sh", "-e", "-c", self.script(block)],
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def started(self, block: str, sign: str) -> Iterator[Path]:
        """Start a block whose last command goes on, and wait until ``sign`` is in its output, the file."""
        script = self.script(block).rstrip().removesuffix("&")
        script = re.sub(r"^(mosquitto|headwater) ", r"exec \1 ", script, flags=re.MULTILINE)
        log = self.folder / f"log-{sign.replace('/', '-')}.txt"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["sh", "-e", "-c", script],
                cwd=self.folder,
                env=self.variables,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_until(lambda: sign in log.read_text() or process.poll() is not None, sign)
            assert process.poll() is None, log.read_text()
            yield log
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def numbers(folder: Path) -> list[tuple[int, int]]:
    """Boot and sequence number of each reading that the gateway has recorded."""
    messages = [json.loads(m.payload) for m in recorded(folder / "capture") if m.topic == "board-1"]
    return [(reading["boot"], reading["seq"]) for reading in messages]


def without_wifi(reader: Reader, board: VirtualBoard) -> None:
    """WiFi goes and comes back."""
    board.air.switch_off(NETWORK)
    time.sleep(0.5)
    before = len(numbers(reader.folder))
    board.air.switch_on(NETWORK)
    wait_until(lambda: len(numbers(reader.folder)) > before + 1, "readings after WiFi came back")


def keep_on_flash(reader: Reader, store: str) -> None:
    """Add a store to the settings."""
    boot = max(numbers(reader.folder))[0]
    reader.run(store)
    wait_until(lambda: max(numbers(reader.folder))[0] > boot, "readings of a board with a store")
    assert "outbox.hwj" in reader.run("headwater board files ls")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("port", ["esp32", "rp2"])
def test_each_command_of_the_tutorial(port: str, components: Path, tmp_path: Path) -> None:
    board = board_of(cast("Port", port))
    reader = Reader(tmp_path, components, board)
    (check,) = [block for block in blocks("2. ", "sh", PAGE) if "headwater" in block]
    broker, gateway = blocks("3. ", "sh", PAGE)
    install, doctor = blocks("4. ", "sh", PAGE)
    watch, logs, command, look = blocks("5. ", "sh", PAGE)
    (store,) = blocks("6. ", "sh", PAGE)
    with board:
        shown = reader.run(check)
        assert "micropython" in shown.lower(), shown
        with reader.started(broker, "running"), reader.started(gateway, "subscribed"):
            reader.run(install)
            shown = reader.run(doctor)
            assert "FAIL" not in shown, shown
            assert shown.count("\nok ") > 8, shown
            shown = reader.run(watch)
            pattern = r'board-1 \{.*"seq": \d+.*\}'
            assert all(re.fullmatch(pattern, line) for line in shown.splitlines()), shown
            with reader.started(logs, "online") as printed:
                reader.run(command)
                wait_until(lambda: "board-1/commands b'blink'" in printed.read_text(), "the command")
            assert "board-1/commands" in reader.run(look)
            # Nothing of section 6 depends on the port.
            if port == "rp2":
                without_wifi(reader, board)
                keep_on_flash(reader, store)
    found = numbers(tmp_path)
    for boot in {number for number, _ in found}:
        of_boot = sorted({seq for number, seq in found if number == boot})
        assert of_boot == list(range(1, len(of_boot) + 1))
    # test_readme.py runs the commands of section 7.
    run_on(InProcess(), tmp_path / "capture", tmp_path / "tables")
    table = rows(tmp_path / "tables", TELEMETRY, "board", "boot", "seq", "metric")
    shown_rows = sorted(row[1:3] for row in table if row[0] == "board-1" and row[3] == "uptime_ms")
    assert shown_rows == sorted(set(found))


def test_the_command_of_the_readme(components: Path, tmp_path: Path) -> None:
    board = board_of("rp2")
    reader = Reader(tmp_path, components, board)
    install, subscribe, _ = blocks("Quick start: board", "sh")
    (program,) = blocks("Quick start: board", "python")
    (tmp_path / "program.py").write_text(faster(program))
    (broker, _) = blocks("3. ", "sh", PAGE)
    with board, reader.started(broker, "running"):
        reader.run(install)
        shown = reader.run(subscribe.replace("headwater sub", "headwater sub -C 2"))
    assert len(re.findall(r"^board-1 \{.*\}$", shown, re.MULTILINE)) >= 1, shown


def test_only_flashing_and_installing_packages_is_left_out() -> None:
    lines = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
        for line in SKIPPED.findall(block)
    ]
    assert sorted(lines) == ["esptool", "esptool", "pip install", "pip install", "sudo"]
