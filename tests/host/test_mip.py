"""``mpremote mip install package.json`` puts headwater on a board."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools import mip
from tools.components.build import build, write
from tools.toolchain import ROOT
from tools.virtual_board import VirtualBoard


def test_package_json_names_every_module() -> None:
    assert mip.PACKAGE.read_text(encoding="utf-8") == mip.text(), "run: python -m tools.mip"


@pytest.mark.needs_micropython
@pytest.mark.timeout(400)
@pytest.mark.parametrize("form", ["modules", "bundle"])
def test_mip_installs_what_a_board_imports(form: str, tmp_path: Path) -> None:
    def mpremote(*words: str) -> str:
        command = [sys.executable, "-m", "mpremote", "connect", board.port, *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    package = mip.PACKAGE
    if form == "bundle":
        write(build(["headwater.mqtt.client", "headwater_board.tcp"]), tmp_path / "bundle")
        package = tmp_path / "bundle" / "package.json"
    with VirtualBoard() as board:
        mpremote("mip", "install", str(package))
        code = "from headwater.mqtt.client import Client; from headwater_board.tcp import Tcp; print(Client.__name__)"
        assert mpremote("exec", code).split() == ["Client"]
