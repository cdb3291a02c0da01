"""Print the requirements of one extra, one a line: ``python -m tools.extras bench``."""

import sys
from importlib import metadata

from packaging.requirements import Requirement


def requirements(extra: str, distribution: str = "headwater") -> list[str]:
    """The requirements that ``extra`` adds to the installed ``distribution``, for this interpreter, without markers."""
    found = []
    for line in metadata.requires(distribution) or []:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}) or not marker.evaluate({"extra": extra}):
            continue
        found.append(f"{requirement.name}{requirement.specifier}")
    return found


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1])))
