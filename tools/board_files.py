"""The file system of a virtual board, a directory or a littlefs image, and the factory that fills it."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from tools.board_process import unix_command, unix_environment

Flash = Literal["posix", "littlefs"]
Content = str | bytes | Path

#: Where the boot script lies.
BOOT_DIR = Path(__file__).with_name("device")
_BLOCK = 4096


class BoardError(Exception):
    """The board did not do what was asked of it."""


class BoardFiles:
    """The board's files in ``root``; nothing in here knows whether the board runs.

    ``flash_size`` is in bytes, and counts with littlefs only; ``host_dirs`` are as of ``VirtualBoard``.
    """

    def __init__(self, root: Path, flash: Flash, flash_size: int, host_dirs: Mapping[str, str]) -> None:
        """Touch nothing yet: ``prepare`` does. ValueError for a size that flash cannot have."""
        if flash_size % _BLOCK or flash_size < 8 * _BLOCK:
            raise ValueError(f"flash_size {flash_size} is not a multiple of {_BLOCK}, at least {8 * _BLOCK}")
        self._root = root
        self._image = root / "flash.img" if flash == "littlefs" else None
        self._size = flash_size
        self._host_dirs = [(mount, str(Path(path).absolute())) for mount, path in host_dirs.items()]

    def prepare(self) -> None:
        """Make a flash that is erased, if there is none yet."""
        if self._image is not None and not self._image.exists():
            self._image.write_bytes(b"\xff" * self._size)

    def config(self, cut_at: int = 0) -> dict[str, object]:
        """Where the boot script finds the files, for every use of it; ``cut_at`` as in there."""
        if self._image is None:
            return {"root": str(self._root), "host_dirs": self._host_dirs}
        flash = (str(self._image), self._size // _BLOCK, _BLOCK, cut_at)
        return {"flash": flash, "host_dirs": self._host_dirs}

    def path(self, name: str) -> Path:
        """Where a file lies on this machine; ValueError with littlefs, or when it is outside."""
        if self._image is not None:
            raise ValueError("the board's files lie in a littlefs image: use put and get, or mpremote")
        return _inside(self._root, name)

    def put(self, files: Mapping[str, Content]) -> None:
        """Write files, with the folders above them; with littlefs nobody else may use the image."""
        if not files:
            return
        if self._image is None:
            _write(self._root, files)
            return
        with tempfile.TemporaryDirectory() as staged:
            _write(Path(staged), files)
            self._factory("copy_in", staged)

    def get(self, name: str) -> bytes:
        """Read a file; FileNotFoundError when it is not there. With littlefs nobody else may use the image."""
        if self._image is None:
            return self.path(name).read_bytes()
        with tempfile.TemporaryDirectory() as staged:
            self._factory("copy_out", staged, name)
            return (Path(staged) / "file").read_bytes()

    def _factory(self, what: str, *arguments: str) -> None:
        """Open the flash without the board, in a process that ends."""
        code = f"__import__('virtual_board_boot').{what}({self.config()!r}, *{arguments!r})"
        done = subprocess.run(
            unix_command(8 << 20, "-c", code),
            env=unix_environment(str(BOOT_DIR)),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if done.returncode:
            text = done.stdout + done.stderr
            if "ENOENT" in text:
                raise FileNotFoundError(*arguments[1:])
            raise BoardError(text)


def _write(root: Path, files: Mapping[str, Content]) -> None:
    for name, content in files.items():
        path = _inside(root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.read_bytes() if isinstance(content, Path) else content
        path.write_bytes(data.encode() if isinstance(data, str) else data)


def _inside(root: Path, name: str) -> Path:
    path = (root / name.lstrip("/")).resolve()
    if not path.is_relative_to(root.resolve()):
        raise ValueError(f"{name!r} is outside the board's file system")
    return path
