"""Components as ROMFS images: MicroPython runs them in place."""

from pathlib import Path

import pytest

from tests import built
from tools import budgets
from tools.runtimes import run_unix

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
    built.components(folder / "built", tested=True)
    return folder / "built" / "headwater.romfs"


def run(script: Path, rom: Path, program: str) -> str:
    script.write_text(MOUNT.format(rom=str(rom), beside=str(built.PORTABLE)) + program)
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
    name = "headwater-mqtt"
    file, rom = budgets.measure([name, f"ROMFS: {name}"]).values()
    assert file["mpy"] == rom["mpy"]
    for figure in ("import 64", "connect 64"):
        assert rom[figure] < file[figure] - 0.8 * file["mpy"], (file, rom)


@pytest.mark.needs_micropython
def test_an_image_has_all_files_of_its_component(tmp_path: Path) -> None:
    made = built.components(tmp_path / "out")["headwater-mqtt"]
    rom = tmp_path / "out" / "headwater-mqtt.romfs"
    loaded = "from headwater.mqtt.client import Client\nfrom headwater_board.tcp import Tcp\n"
    said = run(tmp_path / "main.py", rom, f"{loaded}print(Client(Tcp('x')).connected)\n")
    assert said == "False\n"
    contents = f"for name in {list(made)}:\n    print(open('/rom/lib/' + name, 'rb').read().hex())\n"
    said = run(tmp_path / "main.py", rom, contents)
    assert [bytes.fromhex(line) for line in said.splitlines()] == [
        path.read_bytes() for path in made.values()
    ]


@pytest.mark.needs_micropython
def test_an_image_that_is_damaged_is_no_file_system(rom: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.romfs").write_bytes(b"\0" + rom.read_bytes()[1:])
    script = tmp_path / "main.py"
    script.write_text(MOUNT.format(rom=str(tmp_path / "bad.romfs"), beside=""))
    done = run_unix(script)
    assert done.returncode == 1
    assert "OSError" in done.stdout
