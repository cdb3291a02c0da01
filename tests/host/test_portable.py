"""The portable tests on MicroPython: 64-bit and 32-bit, from sources, .mpy files and components."""

from pathlib import Path

import pytest

from tests import built
from tools import mpy
from tools.runtimes import LONGEST_ARGUMENT, RUNTIMES, Result, declared_heap
from tools.toolchain import ROOT

PORTABLE = ROOT / "tests" / "portable"
VECTORS = ROOT / "tests" / "vectors"
#: The longest take twenty seconds of a processor, which a busy machine may not give for minutes.
TIMEOUT_S = 500
FILES = sorted(path.name for path in PORTABLE.glob("test_*.py"))
WHERE = [pytest.param(name, marks=getattr(pytest.mark, f"needs_{name}"), id=name) for name in RUNTIMES]


#: The long files, seconds each: every cut of every flow.
CUTS = [file for file in FILES if file.endswith("_cuts.py")]
SHORT = [file for file in FILES if file not in CUTS]
#: The components run everything, with 64 and 32 bits; the sources the short files, with 64. Modules as .mpy files run
#: everything on the virtual board (``tests/hil/test_board.py``), and the allocation proofs (``tests/alloc``).
PLAIN = [("sources", file, "micropython") for file in SHORT] + [
    ("mpy", "test_core_imports.py", where) for where in RUNTIMES
]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The component of everything, which has each file of the others."""
    return built.everything(tmp_path_factory.mktemp("components"))


def run(where: str, runner: Path, path: list[Path], *names: str, more: int = 0) -> Result:
    heap = (max([declared_heap(PORTABLE / name) for name in names], default=0) or 2 << 20) + more
    return RUNTIMES[where](runner, *names, path=path, see=[VECTORS], heap=heap, timeout=TIMEOUT_S - 10)


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(
    "form, file, where",
    [pytest.param(*row, marks=getattr(pytest.mark, f"needs_{row[2]}"), id="-".join(row)) for row in PLAIN],
)
def test_portable_tests_pass_on_micropython(form: str, file: str, where: str) -> None:
    roots = [mpy.SDK, mpy.BOARD_PORT]
    path = [mpy.compiled(root) for root in roots] if form == "mpy" else roots
    done = run(where, PORTABLE / "run.py", path, file)
    last = done.stdout.rstrip().rpartition("\n")[2]
    assert last.endswith(" passed, 0 failed"), done.stdout
    assert done.returncode == 0, done.stdout


#: A process of its own for each file; on WebAssembly, whose start takes longer than most files, one for several.
_BATCHES = [SHORT[at::6] for at in range(6)]
BUILT = [
    *(pytest.param("micropython", [file], marks=pytest.mark.needs_micropython, id=file) for file in FILES),
    *(
        pytest.param("wasm", files, marks=pytest.mark.needs_wasm, id=f"wasm-{files[0]}")
        for files in [*_BATCHES, *([file] for file in CUTS)]
    ),
]


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("where, files", BUILT)
def test_portable_tests_pass_with_the_components(where: str, files: list[str], library: Path) -> None:
    # The units hold more than the test imports.
    done = run(where, PORTABLE / "run.py", [library], *files, more=512 << 10)
    last = done.stdout.rstrip().rpartition("\n")[2]
    assert last.endswith(" passed, 0 failed"), done.stdout
    assert all(f"ok {file[:-3]}." in done.stdout for file in files), done.stdout
    assert done.returncode == 0, done.stdout


RUNNER_CASES = {
    "a failing assert": ("def test_a(): assert 1 == 2\ndef test_b(): pass\n", "1 passed, 1 failed"),
    "an error": ("def test_a(): int('x')\n", "0 passed, 1 failed"),
    "an import error": ("import no_such_module\ndef test_a(): pass\n", "0 passed, 1 failed"),
    "a syntax error": ("def test_a(:\n", "0 passed, 1 failed"),
    "no test": ("def helper(): pass\n", "0 passed, 1 failed"),
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("case", RUNNER_CASES)
def test_runner_reports_failures(where: str, case: str, tmp_path: Path) -> None:
    text, summary = RUNNER_CASES[case]
    runner = tmp_path / "run.py"
    runner.write_text((PORTABLE / "run.py").read_text())
    (tmp_path / "test_case.py").write_text(text)
    done = RUNTIMES[where](runner)
    assert "FAIL test_case" in done.stdout
    assert done.stdout.rstrip().endswith(summary), done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize("where", WHERE)
def test_runner_refuses_to_find_nothing(where: str, tmp_path: Path) -> None:
    runner = tmp_path / "run.py"
    runner.write_text((PORTABLE / "run.py").read_text())
    done = RUNTIMES[where](runner)
    assert done.returncode == 1
    assert done.stdout.rstrip().endswith("0 passed, 1 failed"), done.stdout


@pytest.mark.needs_wasm
@pytest.mark.parametrize("code", [0, 3])
def test_wasm_runner_passes_the_exit_status_on(code: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nprint('caf\\u00e9', end='')\nsys.exit({code})\n")
    done = RUNTIMES["wasm"](script)
    assert (done.stdout, done.returncode) == ("café", code)


@pytest.mark.needs_micropython
def test_what_is_too_long_for_micropython_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(len(sys.argv[1]))\n")
    assert RUNTIMES["micropython"](script, "x" * LONGEST_ARGUMENT).stdout == f"{LONGEST_ARGUMENT}\n"
    longer = "é" * (LONGEST_ARGUMENT // 2 + 1)
    with pytest.raises(ValueError, match="at most 255 bytes"):
        RUNTIMES["micropython"](script, longer)
    with pytest.raises(ValueError, match="at most 255 bytes"):
        RUNTIMES["micropython"](script, path=[tmp_path / longer])
