"""The project's frame: what the distribution holds, what ``./run`` answers, and what a missing tool leads to."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import mpremote
import pytest
from packaging.requirements import Requirement

from tools.groups import requirements
from tools.toolchain import ROOT
from tools.virtual_board import VirtualBoard

#: Package -> its folder's parent: of the distribution headwater.
PACKAGES = {
    "headwater": "sdk",
    "headwater_host": "ports/cpython",
    "headwater_spark": "ports/spark",
    "pyspark_headwater": "ports/spark",
    "pyspark_headwater_hub": "ports/spark",
    "pyspark_headwater_mqtt": "ports/spark",
    "pyspark_headwater_table": "ports/spark",
}

#: What the build adds: the compiled components.
COMPONENTS = "headwater_host/board/components/"

MQ = ROOT / "ports" / "cpython" / "headwater_mq"

NEEDS_JAVA = """
import pytest

@pytest.mark.needs_java
def test_of_spark() -> None:
    pass

def test_of_nothing() -> None:
    pass
"""


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | environment
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=100
    )


def build(folder: Path, kind: str, to: Path) -> Path:
    """A wheel or sdist of the project in ``folder``."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(to)]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100)
    assert built.returncode == 0, built.stderr
    (made,) = to.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


def contents(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def files_of(packages: dict[str, str]) -> set[str]:
    return {
        path.relative_to(ROOT / root).as_posix()
        for package, root in packages.items()
        for path in (ROOT / root / package).rglob("*")
        if path.is_file() and path.suffix not in {".pyc", ".mpy"} and path.name != "pyproject.toml"
    }


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheels of headwater and headwater-mq, the latter made from its sdist."""
    to = tmp_path_factory.mktemp("wheels")
    folders = [to / name for name in ("headwater", "sdist", "source", "mq")]
    with tarfile.open(build(MQ, "sdist", folders[1])) as sdist:
        for member in sdist.getmembers():
            sdist.extract(member, folders[2])
    (source,) = folders[2].iterdir()
    return build(ROOT, "wheel", folders[0]), build(source, "wheel", folders[3])


def test_a_wheel_holds_each_file_of_its_packages_and_nothing_else(wheels: tuple[Path, Path]) -> None:
    for wheel, packages in zip(wheels, (PACKAGES, {"headwater_mq": "ports/cpython"}), strict=True):
        made = {name for name in contents(wheel) if name.startswith(COMPONENTS)}
        assert contents(wheel) - made == files_of(packages)
        # `install` checks settings with the one, `run` and `logs` translate tracebacks with the other.
        needed = {f"{COMPONENTS}{name}" for name in ("source/headwater_board/settings.py", "names.json")}
        assert (needed <= made) == any(made) == ("headwater_host" in packages)
        assert any(name.endswith("/licenses/LICENSE") for name in zipfile.ZipFile(wheel).namelist())
        assert {f"{package}/py.typed" for package in packages} <= contents(wheel)


def test_the_two_distributions_have_one_version() -> None:
    ours = metadata.version("headwater")
    own = (MQ / "pyproject.toml").read_text()
    assert f'version = "{ours}"' in own
    assert f'dependencies = ["headwater=={ours}"]' in own


def test_the_wheels_are_installed_and_work(wheels: tuple[Path, Path], tmp_path: Path) -> None:
    place = tmp_path / "site"

    def install(wheel: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
        done = run(*pip, "--disable-pip-version-check", "--target", place, wheel)
        assert done.returncode == 0, done.stderr

    def headwater(*words: str | Path) -> subprocess.CompletedProcess[str]:
        # Without the packages of this environment.
        command = [sys.executable, "-S", "-m", "headwater_host", *map(str, words)]
        env = os.environ | {"PYTHONPATH": str(place)}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)

    install(wheels[0])
    gateway = tmp_path / "gateway.toml"
    gateway.write_text(
        'capture = "log"\n[[broker]]\nhost = "127.0.0.1"\ntopics = ["#"]\n[mq]\nfile = "q.db"\ntopics = ["#"]\n'
    )
    for words, package in (
        (("mq", "put", "--help"), "headwater-mq"),
        (("gateway", "--config", gateway), "headwater-mq"),
        (("board", "list"), "'headwater[board]'"),
    ):
        missing = headwater(*words)
        assert missing.returncode == 2, missing
        assert missing.stderr.count("\n") == 1
        assert f"pip install {package}" in missing.stderr
    shown = headwater("--help")
    assert (shown.returncode, shown.stderr) == (0, "")

    components = place / COMPONENTS
    assert {"headwater.json", "headwater-mqtt.json"} <= {path.name for path in components.iterdir()}
    package = json.loads((components / "headwater-mqtt.json").read_text())
    for _, source in package["urls"]:
        # The mark and the version of bytecode that MicroPython 1.24 and newer load.
        assert (components / source).read_bytes()[:2] == b"M\x06"

    install(wheels[1])
    put = headwater("mq", "put", "--store", "queues.db", "--queue", "Q", "-m", "21.5")
    assert (put.returncode, put.stderr) == (0, "")
    got = headwater("mq", "get", "--store", "queues.db", "--queue", "Q")
    assert (got.returncode, got.stdout, got.stderr) == (0, "21.5\n", "")


@pytest.mark.needs_micropython
def test_the_installed_wheel_installs_headwater_on_a_board(wheels: tuple[Path, Path], tmp_path: Path) -> None:
    place = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    done = run(*pip, "--disable-pip-version-check", "--target", place, wheels[0])
    assert done.returncode == 0, done.stderr
    # mpremote and pyserial are from this environment, headwater is not.
    packages = Path(mpremote.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (place, packages)))}
    environment.pop("HEADWATER_COMPONENTS", None)
    program = "import headwater.mqtt.client\nprint(headwater.mqtt.client.Client.__name__)\n"
    (tmp_path / "program.py").write_text(program)
    with VirtualBoard(flash="littlefs") as board:

        def command(*words: str) -> str:
            done = subprocess.run(
                [sys.executable, "-S", "-m", "headwater_host", "board", *words, "--port", board.port],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=100,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        assert "wrote   /lib/headwater/mqtt/__init__.mpy\n" in command("install", "mqtt")
        assert command("run", "program.py") == "Client\n"


def test_the_core_needs_nothing() -> None:
    needed = map(Requirement, metadata.requires("headwater") or [])
    assert [str(one) for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})] == []


def test_a_group_is_printed_without_markers() -> None:
    pins = requirements("bench")
    assert any(pin.startswith("aiomqttc") for pin in pins)
    assert not any(";" in pin for pin in pins)


def test_run_lists_its_commands() -> None:
    helped = run(ROOT / "run", "help")
    assert helped.returncode == 0
    assert all(f"  {command} " in helped.stdout for command in ("setup", "demo", "test", "check", "bench"))


def test_run_refuses_a_command_it_does_not_know() -> None:
    refused = run(ROOT / "run", "tset")
    assert refused.returncode == 1
    assert "unknown command 'tset'" in refused.stderr


@pytest.mark.parametrize(
    "ci, counts, status", [("", "1 passed, 1 skipped", 0), ("true", "1 passed, 1 error", 1)]
)
def test_a_missing_tool_skips_with_its_remedy_and_fails_in_ci(
    tmp_path: Path, ci: str, counts: str, status: int
) -> None:
    tests = tmp_path / "test_needs_java.py"
    tests.write_text(NEEDS_JAVA)
    options = ["-c", "pyproject.toml", "-p", "tests.conftest"]
    finished = run(
        sys.executable, "-m", "pytest", *options, tests, CI=ci, PATH="", JAVA_HOME="", PYTHONPATH=str(ROOT)
    )
    assert finished.returncode == status, finished.stdout
    assert counts in finished.stdout
    assert "java (runs Spark), wanted by 1 tests: apt-get install" in finished.stdout
