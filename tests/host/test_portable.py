"""The portable tests on MicroPython: 64-bit and 32-bit, from sources, from .mpy files, and from bundles of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import bundles
from tools import mpy
from tools.runtimes import LONGEST_ARGUMENT, RUNTIMES, Result, declared_heap
from tools.toolchain import ROOT

PORTABLE = ROOT / "tests" / "portable"
VECTORS = ROOT / "tests" / "vectors"
#: The longest take ten seconds of a processor, which a busy machine may not give for minutes.
TIMEOUT_S = 300
FILES = sorted(path.name for path in PORTABLE.glob("test_*.py"))
WHERE = [pytest.param(name, marks=getattr(pytest.mark, f"needs_{name}"), id=name) for name in RUNTIMES]


def is_run(form: str, file: str, where: str) -> bool:
    """Whether ``file`` runs in this form there.

    What goes through flows at every byte takes the longest, and the other tests load the same modules in every form:
    once on 32 bits is enough of it, and twice on 64. On 32 bits the rest runs as boards have it."""
    if file.endswith("_cuts.py"):
        return form == "sources" or (form == "bundle of all" and where == "micropython")
    return where == "micropython" or form != "sources"


#: MicroPython's own compiler, and mpy-cross.
PLAIN = [
    pytest.param(form, file, where, marks=getattr(pytest.mark, f"needs_{where}"), id=f"{form}-{file}-{where}")
    for form in ("sources", "mpy")
    for file in FILES
    for where in RUNTIMES
    if is_run(form, file, where)
]


@pytest.fixture(scope="session")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = bundles.over_plain_modules(name, tmp_path_factory.mktemp("bundle"))
        return made[name]

    return folder


def run(where: str, runner: Path, sdk: Path, *names: str, more: int = 0) -> Result:
    heap = (max([declared_heap(PORTABLE / name) for name in names], default=0) or 2 << 20) + more
    return RUNTIMES[where](runner, *names, path=[sdk], see=[VECTORS], heap=heap, timeout=TIMEOUT_S - 10)


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("form, file, where", PLAIN)
def test_portable_tests_pass_on_micropython(form: str, file: str, where: str) -> None:
    done = run(where, PORTABLE / "run.py", mpy.compiled(mpy.SDK) if form == "mpy" else mpy.SDK, file)
    last = done.stdout.rstrip().rpartition("\n")[2]
    assert last.endswith(" passed, 0 failed"), done.stdout
    assert done.returncode == 0, done.stdout


# 32 bits are no business of a bundle: there it is enough to try what boards get.
BUNDLED = [
    pytest.param(where, name, file, marks=getattr(pytest.mark, f"needs_{where}"), id=f"{name}-{file}-{where}")
    for where, names in {"micropython": list(bundles.BUNDLES), "wasm": ["client bundle"]}.items()
    for name in names
    for file in FILES
    if bundles.concerns(PORTABLE / file, bundles.BUNDLES[name]) and is_run(name, file, where)
]


# What programs use: a client, a store, a line.
PROGRAMS = [
    file
    for file in FILES
    if bundles.concerns(
        PORTABLE / file, ["headwater.mqtt.client", "headwater.journal", "headwater.link.link"]
    )
    and is_run("bundle of what it uses", file, "micropython")
]


@pytest.mark.needs_micropython
@pytest.mark.parametrize("file", PROGRAMS)
def test_portable_tests_pass_with_a_bundle_of_what_they_use(file: str, tmp_path: Path) -> None:
    done = run("micropython", PORTABLE / "run.py", bundles.of_what_it_uses(PORTABLE / file, tmp_path), file)
    last = done.stdout.rstrip().rpartition("\n")[2]
    assert last.endswith(" passed, 0 failed"), done.stdout
    assert done.returncode == 0, done.stdout


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("where, name, file", BUNDLED)
def test_portable_tests_pass_with_a_bundle(
    where: str, name: str, file: str, bundled: Callable[[str], Path]
) -> None:
    # A bundle has more in it than the test imports, and the plain modules of the peer are there as well.
    done = run(where, PORTABLE / "run.py", bundled(name), file, more=256 << 10)
    last = done.stdout.rstrip().rpartition("\n")[2]
    assert last.endswith(" passed, 0 failed"), done.stdout
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
    with pytest.raises(ValueError, match="too long"):
        RUNTIMES["micropython"](script, longer)
    with pytest.raises(ValueError, match="too long"):
        RUNTIMES["micropython"](script, path=[tmp_path / longer])
