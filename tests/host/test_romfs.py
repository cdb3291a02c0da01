"""Bundles as ROMFS images: MicroPython runs them as they lie there."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import bundles
from tools import budgets
from tools.components.build import Options, build, write
from tools.components.romfs import image
from tools.runtimes import run_unix
from tools.toolchain import ROOT

MOUNT = """
import os, sys, vfs
with open({rom!r}, "rb") as f:
    rom = f.read()
vfs.mount(vfs.VfsRom(rom), "/rom")
sys.path[:] = ["/rom/lib", {beside!r}]
"""


@pytest.fixture(scope="module")
def rom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image of all of the core."""
    folder = tmp_path_factory.mktemp("rom")
    options = Options(keep=bundles.private_names())
    path = folder / "all.romfs"
    path.write_bytes(
        image(write(build(bundles.BUNDLES["bundle of all"], options), folder / "bundle", options))
    )
    return path


def run(script: Path, rom: Path, program: str) -> str:
    script.write_text(MOUNT.format(rom=str(rom), beside=str(bundles.PORTABLE)) + program)
    done = run_unix(script)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.needs_micropython
@pytest.mark.parametrize(
    "names", [["test_client", "test_mqtt_session"], ["test_fmq_client", "test_fmq_frames"]]
)
def test_the_core_works_from_an_image(names: list[str], rom: Path, tmp_path: Path) -> None:
    said = run(tmp_path / "main.py", rom, f"import run\nassert run.main({names!r}) == 0\n")
    assert said.endswith(" passed, 0 failed\n")
    assert int(said.split()[-4]) > 20


@pytest.mark.needs_micropython
def test_code_stays_in_the_image() -> None:
    """What is loaded from a file takes as much more heap as there is code in it, or nearly so."""
    file, rom = (budgets.measure([f"{form}: client"])[f"{form}: client"] for form in ("bundle", "ROMFS"))
    assert file["mpy"] == rom["mpy"]
    for figure in ("import 64", "connect 64"):
        assert rom[figure] < file[figure] - 0.8 * file["mpy"], (file, rom)


@pytest.mark.needs_micropython
def test_the_command_writes_an_image_with_all_files(tmp_path: Path) -> None:
    call = [
        sys.executable,
        "-m",
        "tools.components",
        "--romfs",
        "-o",
        str(tmp_path / "out"),
        "examples/device/uptime.py",
    ]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    rom = tmp_path / "out" / "bundle.romfs"
    assert f"{rom.stat().st_size:>8,}  bundle.romfs\n" in done.stdout
    listing = "print(sorted(os.listdir('/rom/lib')), os.listdir('/rom/lib/headwater_board'))\n"
    loaded = "from headwater.mqtt.client import Client\nfrom headwater_board.tcp import Tcp\n"
    said = run(tmp_path / "main.py", rom, f"{listing}{loaded}print(Client(Tcp('x')).connected)\n")
    assert said == "['headwater', 'headwater_board'] ['tcp.mpy']\nFalse\n"
    for name in ("headwater/__init__.mpy", "headwater_board/tcp.mpy"):
        said = run(tmp_path / "main.py", rom, f"print(open('/rom/lib/{name}', 'rb').read().hex())\n")
        assert bytes.fromhex(said) == (tmp_path / "out" / name).read_bytes()


@pytest.mark.needs_micropython
def test_an_image_that_is_damaged_is_no_file_system(rom: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.romfs").write_bytes(b"\0" + rom.read_bytes()[1:])
    script = tmp_path / "main.py"
    script.write_text(MOUNT.format(rom=str(tmp_path / "bad.romfs"), beside=""))
    done = run_unix(script)
    assert done.returncode == 1
    assert "OSError" in done.stdout
