"""``mpremote mip install`` puts components on a board."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import built
from tools.toolchain import ROOT
from tools.virtual_board import VirtualBoard


@pytest.mark.needs_micropython
@pytest.mark.timeout(400)
def test_mip_installs_what_a_board_imports(tmp_path: Path) -> None:
    def mpremote(*words: str) -> str:
        command = [sys.executable, "-m", "mpremote", "connect", board.port, *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    made = built.components(tmp_path / "built")
    packages = [tmp_path / "built" / f"headwater-{name}.json" for name in ("mqtt", "fmq")]
    with VirtualBoard(heap="192K") as board:
        said = "".join(mpremote("mip", "install", str(package)) for package in packages)
        # What the two share is one file.
        files = {*made["headwater-mqtt"], *made["headwater-fmq"]}
        shared = len(made["headwater-mqtt"]) + len(made["headwater-fmq"]) - len(files)
        assert shared >= 3
        found = set(re.findall(r"/lib/(\S+\.mpy)", said))
        assert found == files
        for module, dialer in (("fmq", "headwater_board.tls"), ("mqtt", "headwater_board.tcp")):
            code = f"import {dialer}; from headwater.{module}.client import Client; print(Client.__name__)"
            assert mpremote("exec", code).split() == ["Client"]
