"""``mpremote mip install`` puts modules, or components, on a board."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import built
from tools import mip
from tools.toolchain import ROOT
from tools.virtual_board import VirtualBoard


def test_package_json_names_every_module() -> None:
    assert mip.PACKAGE.read_text(encoding="utf-8") == mip.text(), "run: python -m tools.mip"


@pytest.mark.needs_micropython
@pytest.mark.timeout(400)
@pytest.mark.parametrize("form", ["modules", "components"])
def test_mip_installs_what_a_board_imports(form: str, tmp_path: Path) -> None:
    def mpremote(*words: str) -> str:
        command = [sys.executable, "-m", "mpremote", "connect", board.port, *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    packages = [mip.PACKAGE]
    made: dict[str, dict[str, Path]] = {}
    if form == "components":
        made = built.components(tmp_path / "built")
        packages = [tmp_path / "built" / f"headwater-{name}.json" for name in ("mqtt", "fmq")]
    # The board compiles modules itself: that takes more memory than to load a compiled component.
    with VirtualBoard(heap="384K" if form == "modules" else "192K") as board:
        said = "".join(mpremote("mip", "install", str(package)) for package in packages)
        if form == "components":
            # What the two share is one file.
            files = {*made["headwater-mqtt"], *made["headwater-fmq"]}
            shared = len(made["headwater-mqtt"]) + len(made["headwater-fmq"]) - len(files)
            assert shared >= 3
            found = set(re.findall(r"/lib/(\S+\.mpy)", said))
            assert found == files
            mpremote("exec", "from headwater.fmq.client import Client; print(Client)")
        code = "from headwater.mqtt.client import Client; from headwater_board.tcp import Tcp; print(Client.__name__)"
        assert mpremote("exec", code).split() == ["Client"]
