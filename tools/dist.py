"""Make what a release consists of, the same bytes from the same sources:

    ./run dist                                              all of it, in dist
    python -m tools.dist --output FOLDER

- wheels of headwater and headwater-mq;
- ``components``: what ``python -m tools.components`` makes, as a folder and as one archive;
- ``mip``: an index for ``mpremote mip install --index``, to be served over HTTP;
- ``SHA256SUMS`` of all files, for ``sha256sum --check``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from headwater import __version__
from tools import mpy
from tools.components.build import build, write
from tools.components.program import BundleError
from tools.components.table import COMPONENTS
from tools.toolchain import ROOT

OUTPUT = ROOT / "dist"
#: Last written; it also names a folder as one that this module may overwrite.
SUMS = "SHA256SUMS"
_PROJECTS = (ROOT, ROOT / "ports" / "cpython" / "headwater_mq")
#: The earliest time that an archive can hold.
_EPOCH = (1980, 1, 1, 0, 0, 0)


class DistError(Exception):
    """A release cannot be made; the text says why."""


def make(folder: Path) -> None:
    """Write a release to ``folder``, which must be new, empty or an earlier release."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / SUMS).is_file():
            raise DistError(f"{folder} is not empty and has no {SUMS} in it: name another folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for project in _PROJECTS:
        _wheel(project, folder)
    components = folder / "components"
    write(build(), components)
    write_index(components, folder / "mip")
    _archive(components, folder / f"headwater-components-{__version__}.zip")
    sums = [f"{_sha256(folder / name)}  {name}\n" for name in _files(folder)]
    (folder / SUMS).write_text("".join(sums))


def write_index(components: Path, folder: Path) -> None:
    """Write the index of ``components`` to ``folder``, in the layout of micropython.org's package index.

    ``package`` has a description of each component for the version of the .mpy format, and for ``py``: sources, which
    any MicroPython compiles. ``file`` has the files, named after their contents.
    """
    for component in COMPONENTS:
        urls = json.loads((components / f"{component}.json").read_text())["urls"]
        compiled = {name: components / url for name, url in urls}
        sources = {
            f"{name.removesuffix('.mpy')}.py": components / "source" / f"{name.removesuffix('.mpy')}.py"
            for name in compiled
        }
        # The second byte of a .mpy file is the version of its format, which a board asks for.
        form = str(next(iter(compiled.values())).read_bytes()[1])
        for kind, files in ((form, compiled), ("py", sources)):
            hashes = [[name, _store(path, folder)] for name, path in sorted(files.items())]
            package = {"v": 1, "version": __version__, "hashes": hashes, "deps": []}
            for version in (__version__, "latest"):
                target = folder / "package" / kind / component / f"{version}.json"
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(json.dumps(package) + "\n")


def _store(path: Path, folder: Path) -> str:
    """Copy a file to where an index has it, and return the name it has there."""
    name = _sha256(path)[:16]
    target = folder / "file" / name[:2] / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(path.read_bytes())
    return name


def _wheel(project: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder.resolve())]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DistError(f"the wheel of {project}: {done.stderr.strip()}")


def _archive(source: Path, target: Path) -> None:
    """Pack a folder, without what differs from run to run: times, owners and modes."""
    with zipfile.ZipFile(target, "w") as archive:
        for name in _files(source):
            entry = zipfile.ZipInfo(f"{target.stem}/{name}", _EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, (source / name).read_bytes(), zipfile.ZIP_DEFLATED)


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> int:
    """Make a release, and print the sums of the files that are its downloads."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.dist",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-o", "--output", type=Path, default=OUTPUT, metavar="FOLDER", help="output folder")
    folder: Path = parser.parse_args().output
    try:
        make(folder)
    except (BundleError, DistError, mpy.CompileError, OSError) as error:
        print(f"dist: {error}", file=sys.stderr)
        return 1
    for line in (folder / SUMS).read_text().splitlines():
        if "/" not in line:
            print(line)
    print(f"{_sha256(folder / SUMS)}  {SUMS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
