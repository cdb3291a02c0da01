"""The file system of a virtual board: a directory or a littlefs image."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from tools.board_process import unix_command, unix_environment

Flash = Literal["posix", "littlefs"]
Content = str | bytes | Path

#: Directory of the boot script.
BOOT_DIR = Path(__file__).with_name("device")
_BLOCK = 4096


class BoardError(Exception):
    """The board did not do what was requested."""


class BoardFiles:
    """The board's files in `root`. This class does not know whether the board runs.

    `flash_size` is in bytes and applies to littlefs only; `host_dirs` is as for `VirtualBoard`.
    """

    def __init__(self, root: Path, flash: Flash, flash_size: int, host_dirs: Mapping[str, str]) -> None:
        """Check the sizes; `prepare` creates files. Raises ValueError for an invalid flash size."""
        if flash_size % _BLOCK or flash_size < 8 * _BLOCK:
            raise ValueError(f"flash_size={flash_size}: a multiple of {_BLOCK}, at least {8 * _BLOCK}")
        self._root = root
        self._image = root / "flash.img" if flash == "littlefs" else None
        self._size = flash_size
        self._host_dirs = [(mount, str(Path(path).absolute())) for mount, path in host_dirs.items()]

    def prepare(self) -> None:
        """Create an erased flash image if there is none."""
        if self._image is not None and not self._image.exists():
            self._image.write_bytes(b"\xff" * self._size)

    def config(self, cut_at: int = 0) -> dict[str, object]:
        """Return the boot script's configuration of the files. `cut_at` is the flash operation to cut at."""
        if self._image is None:
            return {"root": str(self._root), "host_dirs": self._host_dirs}
        flash = (str(self._image), self._size // _BLOCK, _BLOCK, cut_at)
        return {"flash": flash, "host_dirs": self._host_dirs}

    def path(self, name: str) -> Path:
        """Return a file's path on this machine. Raises ValueError for littlefs and for paths outside."""
        if self._image is not None:
            raise ValueError("the board's files are in a littlefs image: use put and get, or mpremote")
        return _inside(self._root, name)

    def put(self, files: Mapping[str, Content]) -> None:
        """Write files and create their directories. A littlefs image must not be in use."""
        if not files:
            return
        if self._image is None:
            _write(self._root, files)
            return
        with tempfile.TemporaryDirectory() as staged:
            _write(Path(staged), files)
            self._factory("copy_in", staged)

    def get(self, name: str) -> bytes:
        """Read a file. Raises FileNotFoundError if it does not exist. A littlefs image must not be in use."""
        if self._image is None:
            return self.path(name).read_bytes()
        with tempfile.TemporaryDirectory() as staged:
            self._factory("copy_out", staged, name)
            return (Path(staged) / "file").read_bytes()

    def _factory(self, what: str, *arguments: str) -> None:
        """Open the flash in a separate process without the board."""
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
