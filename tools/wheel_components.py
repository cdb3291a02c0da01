"""Hatchling's hook that puts the compiled components into the wheel, for `headwater board install`.

Bytecode is the same for all boards, so the wheel stays independent of the platform, and its users need no compiler.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: Their place in the wheel.
TARGET = "headwater_host/board/components"
#: Package files and the names of tracebacks, compiled files, and the module that checks settings.
CONTENTS = ("*.json", "lib/**/*.mpy", "source/headwater_board/settings.py")


class Components(BuildHookInterface):  # type: ignore[type-arg]
    """Build the components and add what `headwater_host.board.components` reads."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the package files and compiled files; an editable install has none, because they would not change."""
        if version == "editable":
            return
        sys.path[:0] = [self.root, str(Path(self.root) / "sdk")]
        from tools.components.build import build, write

        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        write(build(), folder)
        for pattern in CONTENTS:
            for path in folder.glob(pattern):
                build_data["force_include"][str(path)] = f"{TARGET}/{path.relative_to(folder).as_posix()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the built files."""
        if version != "editable":
            self._folder.cleanup()
