"""The update receiver and the loader on MicroPython: every kind of wrong image, pieces in any order, and the heap."""

import re
from pathlib import Path

import pytest

from tools import mpy
from tools.runtimes import run_unix
from tools.toolchain import ROOT

DEVICE = Path(__file__).parent / "device" / "ota_cases.py"
CASES = re.findall(
    r"^def ([a-z]\w*)\(\) -> None:", DEVICE.read_text().partition("# -- the cases")[2], re.MULTILINE
)

PATH = (ROOT / "tests" / "portable", ROOT / "tools" / "device")

pytestmark = pytest.mark.needs_micropython


@pytest.mark.parametrize("case", CASES)
def test_case(case: str) -> None:
    done = run_unix(DEVICE, case, path=[mpy.SDK, mpy.BOARD_PORT, *PATH], heap=4 << 20)
    assert done.returncode == 0, done.stdout
    assert f"passed {case}\n" in done.stdout
