"""A hub whose wall clock the tests set, and which may have a defect of `mutants`.

    python tests/cluster/launch.py CLOCK [--mutant NAME] hub --config hub.toml

`CLOCK` is a file of eight bytes: nanoseconds that are added to the wall clock. Monotonic clocks are not changed.
"""

import mmap
import struct
import sys
import time
from pathlib import Path

_OFFSET = struct.Struct("<q")


def step(clock: Path, seconds: float) -> None:
    """Set the clock of hubs that were started with this file so far away from the real time."""
    if clock.exists():
        with clock.open("r+b") as file:
            file.write(_OFFSET.pack(int(seconds * 1e9)))
    else:
        clock.write_bytes(_OFFSET.pack(int(seconds * 1e9)))


def _patch(clock: Path) -> None:
    with clock.open("rb") as file:
        offset = mmap.mmap(file.fileno(), _OFFSET.size, access=mmap.ACCESS_READ)
    real = time.time_ns

    def time_ns() -> int:
        return real() + int(_OFFSET.unpack_from(offset)[0])

    # Before any module of the hub takes a name from it.
    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


def _main() -> int:
    _patch(Path(sys.argv.pop(1)))
    from headwater_host.cli.main import main

    if sys.argv[1] == "--mutant":
        sys.path.append(str(Path(__file__).parents[2]))
        from tests.cluster.mutants import MUTANTS

        del sys.argv[1]
        MUTANTS[sys.argv.pop(1)]()
    return main()


if __name__ == "__main__":
    sys.exit(_main())
