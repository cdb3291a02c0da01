"""The README's quick starts and the tutorial run as they stand, in a network namespace with the default ports."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest

from headwater_host.capture import CaptureReader
from tests.host.command import PATIENCE_S, Running, environment, write_commands
from tools import toolchain
from tools.toolchain import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
FOLDERS = ("docs", "examples", "ports", "sdk")


def blocks(heading: str, language: str, page: str = README) -> list[str]:
    """The code blocks of a section, without the lines that install packages."""
    section = page.partition(f"\n## {heading}")[2].partition("\n## ")[0]
    found = re.findall(rf"^```{language}\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    return [re.sub(r"^pip install .*\n", "", block, flags=re.MULTILINE) for block in found]


class Place:
    """A folder with the tree's packages, and the commands that users have, in a network of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        unshare = ["unshare", "-rn", "sh", "-c", "ip link set lo up && echo up && exec sleep 100000"]
        self._namespace = subprocess.Popen(unshare, stdout=subprocess.PIPE)
        assert self._namespace.stdout is not None
        if self._namespace.stdout.readline() != b"up\n":
            pytest.skip("this machine allows no network namespaces")
        pid = str(self._namespace.pid)
        self.enter = ["nsenter", "-t", pid, "-U", "-n", "--preserve-credentials"]
        for name in FOLDERS:
            (folder / name).symlink_to(ROOT / name)
        self.variables = {
            "PATH": write_commands(folder / "bin", micropython=toolchain.find("micropython")),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }

    def shell(self, script: str) -> str:
        """Run a block and return its output. What it leaves running is killed if it fails."""
        process = subprocess.Popen(
            [*self.enter, "sh", "-e", "-c", script],
            cwd=self.folder,
            env=environment(**self.variables),
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, output
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        return output

    def start(self, script: str) -> Running:
        """Start a block that runs until it is ended."""
        variables = " ".join(f"{name}='{value}'" for name, value in self.variables.items())
        command = f"export {variables}; cd {self.folder}; {script.strip().replace('headwater', 'exec headwater', 1)}"
        return Running([command], self.folder, [*self.enter, "sh", "-c"])

    def close(self) -> None:
        self._namespace.kill()
        self._namespace.communicate()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    if not (shutil.which("unshare") and shutil.which("nsenter") and shutil.which("ip")):
        pytest.skip("needs unshare and nsenter (util-linux) and ip (iproute2)")
    made = Place(tmp_path)
    yield made
    made.close()


@pytest.mark.needs_micropython
@pytest.mark.needs_mosquitto
@pytest.mark.needs_java
def test_the_quick_starts_end_with_something_to_see(place: Place) -> None:
    # Those for a board run in test_first_board.py.
    _, subscribe, program = blocks("Quick start: board", "sh")
    gateway, look = blocks("Quick start: gateway", "sh")
    (pipeline,) = blocks("Quick start: Spark", "sh")
    (script,) = blocks("Quick start: Spark", "python")
    # The tutorial of the first board ends with the same commands, and a look at the same table.
    first_board = (ROOT / "docs" / "tutorials" / "first-board.md").read_text(encoding="utf-8")
    assert blocks("7. ", "sh", first_board) == [pipeline]
    (first_look,) = blocks("7. ", "python", first_board)
    running: list[Running] = []
    try:
        # The namespace maps one user, root, so mosquitto must not change to another.
        settings = place.folder / "mosquitto.conf"
        settings.write_text("listener 1883\nallow_anonymous true\nuser root\n")
        broker = Running(
            ["-c", str(settings)], place.folder, [*place.enter, str(toolchain.find("mosquitto"))]
        )
        running.append(broker)
        broker.wait_for("running")
        running.append(place.start(gateway))
        running[-1].wait_for("subscribed")
        running.append(place.start(program.replace("MICROPYPATH", "exec env MICROPYPATH")))
        running.append(place.start(subscribe.replace("headwater sub", "headwater sub -C 2")))
        assert running[-1].process.wait(PATIENCE_S) == 0
        lines = running[-1].output.decode().splitlines()
        assert all(re.match(r'board-1/uptime \{.*"uptime_ms": \d+', line) for line in lines), lines
        shown = place.shell(look)
        deadline = time.monotonic() + PATIENCE_S
        while "board-2/uptime" not in shown:
            assert time.monotonic() < deadline
            shown = place.shell(look)
        assert '"type": "PUBLISH"' in shown
        assert len(list(CaptureReader(place.folder / "capture").records())) >= 3
    finally:
        for process in reversed(running):
            process.process.terminate()
            process.process.wait(PATIENCE_S)
    place.shell(pipeline)
    assert (place.folder / "tables" / "report.html").stat().st_size > 1000
    (place.folder / "look.py").write_text(f"{script}print('tutorial')\n{first_look}")
    table, _, of_board_1 = place.shell("python look.py").partition("tutorial\n")
    assert re.search(r"board-1\|\s*\d+\|\s*1\| *uptime_ms\|", table), table
    assert re.search(r"board-2\|\s*1\|\s*0\| *uptime_ms\| *1500\.0\|", table), table
    assert int(table.splitlines()[-1]) >= 3
    assert re.search(r"board-1\|\s*\d+\|\s*1\| *uptime_ms\|", of_board_1), of_board_1
    assert "board-2" not in of_board_1


@pytest.mark.needs_java
def test_the_tutorial_shows_what_it_says(place: Place) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    (first,), (publish,), (kill,) = (blocks(f"{number}. ", "sh", page) for number in (2, 3, 4))
    second, rest = blocks("5. ", "sh", page)
    (pipeline,), (script,) = blocks("6. ", "sh", page), blocks("6. ", "python", page)
    # The tutorial's reader waits for the hub to listen.
    wait = "until grep -q listening log.txt; do sleep 0.1; done\n"
    session = [first.replace(" &\n", " 2>log.txt &\n"), wait, publish, kill]
    session += [second.replace(" &\n", " 2>log.txt &\n"), wait, rest, "wait $gateway\n"]
    shown = place.shell("".join(session))
    assert "5 records (5 fmq); 0 problems" in shown
    assert re.search(r"line-1 +1 +8 +8 +0 +0 ", place.shell(pipeline))
    (place.folder / "look.py").write_text(script)
    table = place.shell("python look.py")
    values = re.findall(r"line-1\| *(\d+)\|celsius\| *([\d.]+)\|", table)
    assert values == [(str(seq), f"2{seq}.5") for seq in range(1, 9)]


def rows() -> list[list[str]]:
    section = README.partition("\n## What is different\n")[2].partition("\n## ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("| ") and not line.startswith("| Property")
    ]


#: A number as the benchmarks print it: 0.93, .71, 69,467, 60.5k.
NUMBER = re.compile(r"(?<![\w.,])(\d[\d,]*(?:\.\d+)?|\.\d+)(k?)(?![\w.]*\d)")


def is_in(figure: str, tables: str) -> bool:
    """Return whether a cell of the tables has this figure, rounded to the figure's digits if these are two or more."""
    found = NUMBER.fullmatch(figure)
    assert found, figure
    wanted = number(found)
    cells = {number(cell) for cell in NUMBER.finditer(tables) if cell[2] == found[2]}
    if len(wanted.as_tuple().digits) > 1:
        cells |= {cell.quantize(wanted, ROUND_HALF_UP) for cell in cells}
    return wanted in cells


def number(found: re.Match[str]) -> Decimal:
    return Decimal(found[1].replace(",", ""))


def test_a_figure_is_a_cell_or_a_rounded_cell() -> None:
    table = "| Spark's copy of 1,376 rows | 0.30 M/s | 2.68 (2.41 to 2.70) | 60.5k | .71 |\n"
    for right in ("2.68", "2.7", "0.3", "60.5k", "61k", ".71", "0.71", "1376", "1,376"):
        assert is_in(right, table), right
    for wrong in ("2.6", "2.69", "2.680001", "3", "0", "0.4", "60k", "60.4k", "60.5", ".72", "137", "68"):
        assert not is_in(wrong, table), wrong


def test_each_claim_names_its_proof_and_has_its_figures() -> None:
    """A figure in bold is in the benchmark's tables that the row names."""
    claims = rows()
    assert len(claims) > 5
    for _, figure, proof in claims:
        benchmark = re.search(r"`\./run bench (\S+)`", proof)
        if benchmark:
            name = benchmark[1]
            tables = BENCHMARKS.partition(f"<!-- bench {name} -->")[2].partition(f"<!-- end {name} -->")[0]
            for bold in re.findall(r"\*\*([^*]+)\*\*", figure):
                assert is_in(bold, tables), (bold, proof)
        for path in re.findall(r"`(tests/[^`]*)`", proof):
            assert (ROOT / path).exists(), path
        assert "`" in proof or "](" in proof
