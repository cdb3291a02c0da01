"""What a journal costs a board's flash is what docs/stores.md says; and between two new files it allocates nothing."""

import re

import pytest

from tools import mpy
from tools.runtimes import run_unix
from tools.toolchain import ROOT

ROW = re.compile(r"^\| (\d+) \| ([12]) \| (\d+) \| (\d+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", re.MULTILINE)


@pytest.mark.needs_micropython
def test_the_wear_is_what_the_documentation_says() -> None:
    done = run_unix(
        ROOT / "tests/host/device/flash_wear.py", path=[mpy.SDK, mpy.BOARD_PORT], heap=8 << 20, timeout=100
    )
    assert done.returncode == 0, done.stdout
    measured = {}
    for line in done.stdout.splitlines():
        words = line.split()
        assert words[8] == "clean", line
        measured[tuple(words[:5])] = int(words[5]) / 1000, int(words[7]) / 1000
    documented = {
        tuple(row[:5]): (float(row[5]), float(row[6]))
        for row in ROW.findall((ROOT / "docs/stores.md").read_text())
    }
    assert documented.keys() == measured.keys()
    for case, (erases, size) in measured.items():
        assert abs(erases - documented[case][0]) <= 0.03, (case, erases, documented[case])
        assert abs(size - documented[case][1]) <= 30, (case, size, documented[case])
