"""The hot paths allocate nothing, on 64-bit and on 32-bit MicroPython, from sources, .mpy files and components.

Each ``*_paths.py`` script proves its paths with ``prove.py`` and names them in its first line, ``# paths: a, b``, so
that one that is no longer measured is missed. Functions with large frames take them from the heap for the time of the
call (see ``prove.py``); the paths where that is known stand in a line ``# frames: a``, and no other may.
"""

from pathlib import Path

import pytest

from tests import built
from tools import mpy
from tools.runtimes import RUNTIMES

ALLOC = Path(__file__).parent
SCRIPTS = sorted(path.name for path in ALLOC.glob("*_paths.py"))
WHERE = [pytest.param(name, marks=getattr(pytest.mark, f"needs_{name}"), id=name) for name in RUNTIMES]
#: Not sources with 32 bits: they compile to the code of the .mpy files.
RUNS = [
    pytest.param(form, where, marks=getattr(pytest.mark, f"needs_{where}"), id=f"{form}-{where}")
    for form in ("sources", "mpy", "components")
    for where in RUNTIMES
    if (form, where) != ("sources", "wasm")
]
CLEAN = {"nothing", "index_and_pack", "assign_slice", "call_bound_once", "large_frame"}
ALLOCATES = {
    "make_tuple",
    "slice_view",
    "slice_bytes",
    "bind_method",
    "make_closure",
    "make_generator",
    "big_integer",
    "use_float",
    "raise_with_text",
    "unpack",
    "hide_memory_error",
}


def declared(script: Path, what: str) -> list[str]:
    """The names in the comments ``# what: a, b`` at the head of a script."""
    found: list[str] = []
    for line in script.read_text().splitlines():
        if not line.startswith("#"):
            break
        key, _, names = line[1:].partition(":")
        if key.strip() == what:
            found += [name.strip() for name in names.split(",") if name.strip()]
    return found


@pytest.fixture(scope="session")
def components(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built.everything(tmp_path_factory.mktemp("components"))


@pytest.mark.parametrize("form, where", RUNS)
@pytest.mark.parametrize("script", SCRIPTS)
def test_hot_paths_allocate_nothing(
    script: str, form: str, where: str, request: pytest.FixtureRequest
) -> None:
    paths, frames = declared(ALLOC / script, "paths"), set(declared(ALLOC / script, "frames"))
    assert paths, f"{script} does not say which paths it proves"
    if form == "components":
        path: list[Path] = [request.getfixturevalue("components")]
    else:
        roots = [mpy.SDK, mpy.BOARD_PORT]
        path = [mpy.compiled(root) for root in roots] if form == "mpy" else roots
    done = RUNTIMES[where](ALLOC / script, path=path)
    assert done.returncode == 0, done.stdout
    clean, large = [], set()
    for line in done.stdout.splitlines():
        if line.startswith("frame "):
            large.add(line.removeprefix("frame ").partition(":")[0])
        else:
            assert line.startswith("0 bytes "), done.stdout
            clean.append(line.removeprefix("0 bytes "))
    assert sorted(clean) == sorted(paths), done.stdout
    assert large <= frames, f"frames from the heap on paths that do not declare them:\n{done.stdout}"
    if where == "micropython":
        assert frames <= large, f"declared, but not so: {sorted(frames - large)}"


@pytest.mark.parametrize("where", WHERE)
def test_prover_tells_what_allocates(where: str) -> None:
    done = RUNTIMES[where](ALLOC / "detects.py")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert {line.removeprefix("0 bytes ") for line in lines if line.startswith("0 bytes ")} == CLEAN, (
        done.stdout
    )
    failed = {line.removeprefix("FAIL ").partition(":")[0] for line in lines if line.startswith("FAIL ")}
    assert failed == ALLOCATES, done.stdout
    if where == "micropython":
        assert "frame large_frame: 152 bytes a call" in lines
