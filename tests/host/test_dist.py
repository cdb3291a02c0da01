"""``./run dist`` makes a release: all that it should have, and the same bytes each time."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from headwater import __version__
from tools.components.table import COMPONENTS
from tools.toolchain import ROOT


def dist(folder: Path, seed: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.dist", "--output", str(folder)]
    # Sets of texts have another order with each seed.
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "TZ": f"UTC+{seed}"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False
    )


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "dist"
    done = dist(folder, 1)
    assert done.returncode == 0, done.stderr
    assert f"headwater-components-{__version__}.zip\n" in done.stdout
    return folder


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_two_runs_give_the_same_bytes(release: Path) -> None:
    first = bytes_of(release)
    # Over the first one, which it replaces.
    (release / "stale").write_text("of an earlier release")
    assert dist(release, 2).returncode == 0
    second = bytes_of(release)
    assert {name for name in first | second if first.get(name) != second.get(name)} == set()


def test_the_sums_are_those_of_all_files(release: Path) -> None:
    lines = (release / "SHA256SUMS").read_text().splitlines()
    sums = {name: total for total, _, name in (line.partition("  ") for line in lines)}
    files = bytes_of(release)
    del files["SHA256SUMS"]
    assert sums == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def test_it_has_wheels_and_components(release: Path) -> None:
    files = bytes_of(release)
    assert f"headwater-{__version__}-py3-none-any.whl" in files
    assert f"headwater_mq-{__version__}-py3-none-any.whl" in files
    for component in COMPONENTS:
        for suffix in ("json", "manifest.py", "romfs"):
            assert f"components/{component}.{suffix}" in files
    assert {"components/names.json", "components/boards/RPI_PICO_W/manifest.py"} <= set(files)
    archive = f"headwater-components-{__version__}"
    with zipfile.ZipFile(release / f"{archive}.zip") as packed:
        found = {name: packed.read(name) for name in packed.namelist()}
    parts = {name.removeprefix("components/"): data for name, data in files.items() if "components/" in name}
    assert found == {f"{archive}/{name}": data for name, data in parts.items()}


@pytest.mark.parametrize("kind, folder", [("6", "lib"), ("py", "source")])
def test_the_index_has_each_file_of_each_component(release: Path, kind: str, folder: str) -> None:
    for component in COMPONENTS:
        package = release / "mip" / "package" / kind / component
        latest = json.loads((package / "latest.json").read_text())
        assert latest == json.loads((package / f"{__version__}.json").read_text())
        wanted = json.loads((release / "components" / f"{component}.json").read_text())["urls"]
        suffix = ".py" if kind == "py" else ".mpy"
        assert [name for name, _ in latest["hashes"]] == [name[:-4] + suffix for name, _ in wanted]
        for name, short in latest["hashes"]:
            data = (release / "mip" / "file" / short[:2] / short).read_bytes()
            assert data == (release / "components" / folder / name).read_bytes()
            assert hashlib.sha256(data).hexdigest().startswith(short)


def test_a_folder_with_anything_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done = dist(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"dist: {tmp_path} is not empty and has no SHA256SUMS in it: name another folder\n"
    assert bytes_of(tmp_path) == {"mine.txt": b"mine"}
