"""The manifests of firmwares name files that exist, each once, and all that their components need.

MicroPython's build is not here; stand-ins are the functions that its ``tools/manifestfile.py`` gives to a manifest.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import built
from tests.rows import each_row
from tools import mpy
from tools.components.table import COMPONENTS
from tools.runtimes import run_unix
from tools.toolchain import ROOT

BOARDS = ROOT / "ports" / "micropython" / "boards"
#: Board, its port and the manifest of MicroPython 1.29 that its firmware has otherwise.
FIRMWARES = {
    **{f"ESP32_GENERIC{kind}": ("esp32", "boards") for kind in ("", "_C3", "_C6", "_S2", "_S3")},
    **dict.fromkeys(("RPI_PICO", "RPI_PICO2"), ("rp2", "boards")),
    **{board: ("rp2", f"boards/{board}") for board in ("RPI_PICO_W", "RPI_PICO2_W")},
}


class Manifest:
    """What a manifest asks for when MicroPython's build executes it."""

    def __init__(self, path: Path) -> None:
        #: Name on the board -> source file.
        self.frozen: dict[str, Path] = {}
        #: What comes from MicroPython's own tree.
        self.own: list[str] = []
        self.included: list[Path] = []
        #: Relative paths are those of the manifest that is being executed.
        self._folder = path.parent
        self.include(path.name)

    def include(self, path: str | Sequence[str]) -> None:
        """Execute a manifest, once; a folder stands for the manifest.py in it."""
        if not isinstance(path, str):
            for one in path:
                self.include(one)
        elif path.startswith("$("):
            self.own.append(path)
        else:
            found = (self._folder / path).resolve()
            found = found / "manifest.py" if found.is_dir() else found
            if found not in self.included:
                self.included.append(found)
                names = ("include", "freeze", "module", "package", "require")
                before, self._folder = self._folder, found.parent
                exec(compile(found.read_text(), found, "exec"), {name: getattr(self, name) for name in names})
                self._folder = before

    def freeze(self, path: str, script: str | Sequence[str] | None = None, opt: int | None = None) -> None:
        """Freeze files of a folder: ``script``, or all; ``path`` is no part of their names on the board."""
        assert opt == 2, "without opt=2, asserts and their texts go to the board"
        folder = (self._folder / path).resolve()
        names = (script,) if isinstance(script, str) else script
        if names is None:
            names = [file.relative_to(folder).as_posix() for file in folder.rglob("*.py")]
        for name in names:
            assert (folder / name).is_file(), f"{folder / name} is missing"
            assert name not in self.frozen, f"{name} is frozen twice"
            self.frozen[name] = folder / name

    def module(self, name: str, base_path: str = ".", opt: int | None = None) -> None:
        self.freeze(base_path, name, opt)

    def package(
        self, name: str, files: Sequence[str] | None = None, base_path: str = ".", opt: int | None = None
    ) -> None:
        folder = (self._folder / base_path / name).resolve()
        if files is None:
            files = [file.relative_to(folder).as_posix() for file in folder.rglob("*.py")]
        self.freeze(base_path, [f"{name}/{file}" for file in files], opt)

    def require(self, name: str, **_: object) -> None:
        """Freeze a package of micropython-lib."""
        self.own.append(name)


@pytest.fixture(scope="module")
def components(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("firmware") / "components"
    built.components(folder)
    return folder


def test_each_board_has_a_manifest() -> None:
    assert {path.parent.name for path in BOARDS.glob("*/manifest.py")} == set(FIRMWARES)


@each_row("board", FIRMWARES)
def test_a_manifest_names_what_exists_and_what_it_adds_to(board: str, components: Path) -> None:
    manifest = Manifest(components / "boards" / board / "manifest.py")
    assert manifest.own == [f"$(PORT_DIR)/{FIRMWARES[board][1]}/manifest.py"]
    assert manifest.frozen
    assert all(components in path.parents for path in manifest.frozen.values())


@each_row("board", FIRMWARES)
def test_a_manifest_has_the_command_that_builds_it(board: str) -> None:
    text = (BOARDS / board / "manifest.py").read_text()
    commands = re.findall(r"^#   (make .*)$", text, re.MULTILINE)
    assert commands == [
        f"make BOARD={board} submodules",
        f"make BOARD={board} FROZEN_MANIFEST=$COMPONENTS/boards/{board}/manifest.py",
    ]
    assert f"MicroPython's ports/{FIRMWARES[board][0]} " in text


@pytest.mark.needs_micropython
@pytest.mark.parametrize("board", ["ESP32_GENERIC", "RPI_PICO", "RPI_PICO_W"])
def test_what_is_frozen_is_complete(board: str, components: Path, tmp_path: Path) -> None:
    """Every module of its components can be imported where only these files are."""
    manifest = Manifest(components / "boards" / board / "manifest.py")
    for name, source in manifest.frozen.items():
        mpy.compile_file(source, tmp_path / "frozen" / f"{name[:-3]}.mpy", name, "-O2")
    names = {path.name.removesuffix(".manifest.py") for path in manifest.included} & set(COMPONENTS)
    assert len(names) > 1
    wanted = sorted({module for name in names for module in COMPONENTS[name]})
    script = tmp_path / "main.py"
    script.write_text("".join(f"__import__({module!r})\n" for module in wanted) + "print('all')\n")
    # A module of the firmware, beside the script.
    (tmp_path / "network.py").write_text("")
    done = run_unix(script, path=[tmp_path / "frozen"])
    assert (done.returncode, done.stdout) == (0, "all\n")


@pytest.mark.parametrize(
    "text, says",
    [
        ('freeze("source", "headwater/none.py", opt=2)', "none.py is missing"),
        (
            'include("headwater.manifest.py")\nfreeze("source", "headwater/__init__.py", opt=2)',
            "frozen twice",
        ),
        ('include("none.manifest.py")', "No such file"),
        ('freeze("source", "headwater/__init__.py")', "without opt=2"),
    ],
)
def test_a_wrong_manifest_is_noticed(text: str, says: str, components: Path) -> None:
    wrong = components / "wrong.py"
    wrong.write_text(text)
    with pytest.raises((AssertionError, FileNotFoundError), match=says):
        Manifest(wrong)
