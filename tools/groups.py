"""Print the requirements of one dependency group, one a line: ``python -m tools.groups bench``."""

import sys
from pathlib import Path

from packaging.requirements import Requirement

from headwater_host.settings import read_toml
from tools.toolchain import ROOT


def requirements(group: str, project: Path = ROOT / "pyproject.toml") -> list[str]:
    """Return the requirements of ``group`` that apply to this interpreter, without their markers.

    Groups that include others are not supported.
    """
    found = map(Requirement, read_toml(project.read_text("utf-8"))["dependency-groups"][group])
    return [f"{one.name}{one.specifier}" for one in found if one.marker is None or one.marker.evaluate()]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1])))
