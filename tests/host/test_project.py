"""The project's frame: what the distribution holds, what ``./run`` answers, and what a missing tool leads to."""

import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools.groups import requirements
from tools.toolchain import ROOT

PACKAGES = {
    "headwater": "sdk",
    "headwater_host": "ports/cpython",
    "headwater_spark": "ports/spark",
    "pyspark_headwater": "ports/spark",
}

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


def test_the_wheel_holds_each_file_of_the_four_packages_and_nothing_else(tmp_path: Path) -> None:
    built = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {
        path.relative_to(ROOT / root).as_posix()
        for package, root in PACKAGES.items()
        for path in (ROOT / root / package).rglob("*")
        if path.is_file() and path.suffix not in {".pyc", ".mpy"}
    }
    assert names == files
    assert {f"{package}/py.typed" for package in PACKAGES} <= names


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
    assert "there is no command 'tset'" in refused.stderr


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
