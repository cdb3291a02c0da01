"""The size report measures what it says it measures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools import mpy, sizes
from tools.runtimes import run_unix
from tools.toolchain import ROOT

SAMPLE = """
TYPE_CHECKING = False
if TYPE_CHECKING:
    from sample.types import Nothing
try:
    from sample.one import value
except ImportError:
    import sample.two

def small(a):
    return a

def late():
    import sample.late
"""


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    package = tmp_path / "sample"
    package.mkdir()
    for name, text in {
        "__init__": "",
        "one": "value = 1",
        "two": "",
        "types": "",
        "late": "",
        "main": SAMPLE,
    }.items():
        (package / f"{name}.py").write_text(text)
    return tmp_path


def test_imports_are_those_that_run_when_a_module_is_imported(sample: Path) -> None:
    graph = sizes.imports(sample)
    assert graph["sample.main"] == {"sample", "sample.one", "sample.two"}
    assert sizes.in_import_order(graph, ["sample.main"]) == [
        "sample",
        "sample.one",
        "sample.two",
        "sample.main",
    ]


@pytest.mark.needs_micropython
def test_frames_are_those_that_come_from_the_heap(tmp_path: Path) -> None:
    functions = []
    for count in range(1, 16):
        names = " = ".join(f"v{n}" for n in range(count))
        functions.append(f"def locals_{count}(a):\n    {names} = a\n    return v0\n")
        functions.append(
            f"def guarded_{count}(a):\n    {names} = a\n    try:\n        v0 = a\n"
            "    except ValueError:\n        pass\n    return v0\n"
        )
    (tmp_path / "frames.py").write_text("\n".join(functions))
    measure = tmp_path / "measure" / "measure.py"
    measure.parent.mkdir()
    measure.write_text(
        "import micropython, frames\n"
        "def taken(fn):\n    fn(0)\n    before = micropython.mem_total()\n    fn(0)\n"
        "    return micropython.mem_total() - before\n"
        "for name in dir(frames):\n"
        "    if name[0] != '_' and taken(getattr(frames, name)):\n        print(name)\n"
    )
    done = run_unix(measure, path=[tmp_path])
    measured = set(done.stdout.split())
    assert {"locals_15", "guarded_15"} <= measured, done.stdout
    assert not {"locals_1", "guarded_1"} & measured
    assert {frame.function for frame in sizes.frames(tmp_path) if frame.module == "frames"} == measured


def test_a_file_that_does_not_compile_says_which(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def f(:\n")
    with pytest.raises(mpy.CompileError, match=r"broken\.py(?s:.*)SyntaxError"):
        mpy.compile_tree(tmp_path, tmp_path / "out")


def test_compiled_trees_follow_their_sources(tmp_path: Path) -> None:
    root, out = tmp_path / "root", tmp_path / "out"
    (root / "package").mkdir(parents=True)
    (root / "package" / "__init__.py").write_text("")
    (root / "package" / "gone.py").write_text("x = 1")
    assert mpy.compile_tree(root, out) == [Path("package/__init__.mpy"), Path("package/gone.mpy")]
    kept = (out / "package/__init__.mpy").stat().st_mtime_ns
    (root / "package" / "gone.py").unlink()
    assert mpy.compile_tree(root, out) == [Path("package/__init__.mpy")]
    assert (out / "package/__init__.mpy").stat().st_mtime_ns == kept
    assert [path.name for path in (out / "package").iterdir()] == ["__init__.mpy"]


@pytest.mark.needs_micropython
@pytest.mark.needs_wasm
def test_report_has_every_module_on_both_runtimes() -> None:
    command = [sys.executable, "-m", "tools.sizes", "--json"]
    report = json.loads(
        subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=100).stdout
    )
    assert [row["name"] for row in report["modules"]] == sorted(sizes.imports(mpy.SDK))
    for row in report["modules"]:
        assert 0 < row["mpy"] < 100_000, row
        assert 0 < row["heap32"] < 200_000, row
        assert 0 < row["heap64"] < 200_000, row
