"""Power cuts at every flash operation of what a board keeps on littlefs: the outbox, and the boot number."""

from pathlib import Path

import pytest

from tools import mpy
from tools.runtimes import run_unix
from tools.toolchain import ROOT

DEVICE = Path(__file__).parent / "device"
PORT = ROOT / "ports" / "micropython"


@pytest.mark.needs_micropython
@pytest.mark.parametrize("script", ["littlefs_cuts", "boots_cuts"])
def test_power_cuts_at_every_flash_operation(script: str) -> None:
    path = [mpy.SDK, PORT, ROOT / "tests" / "portable", DEVICE]
    done = run_unix(DEVICE / f"{script}.py", path=path, heap=16 << 20)
    assert done.stdout.endswith("done\n"), done.stdout
    print(done.stdout)
