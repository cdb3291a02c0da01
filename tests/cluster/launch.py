"""A hub whose clocks the tests set and stop, and which may have a defect of `mutants`.

    python tests/cluster/launch.py CLOCK [--mutant NAME] hub --config hub.toml

`CLOCK` is a file of two numbers of eight bytes: nanoseconds that are added to the wall clock; and 1 while the
monotonic clock of the lease stands still, otherwise 0.
"""

import mmap
import struct
import sys
import time
from pathlib import Path

_NUMBER = struct.Struct("<q")


def make(clock: Path) -> None:
    """Make the file of clocks that are right."""
    clock.write_bytes(bytes(2 * _NUMBER.size))


def step(clock: Path, seconds: float) -> None:
    """Set the wall clock of hubs that were started with this file so far away from the real time."""
    _write(clock, 0, int(seconds * 1e9))


def stop(clock: Path, stopped: bool = True) -> None:
    """Let the monotonic clock of the lease stand still, or jump to the real time."""
    _write(clock, 1, int(stopped))


def _write(clock: Path, n: int, value: int) -> None:
    with clock.open("r+b") as file:
        file.seek(n * _NUMBER.size)
        file.write(_NUMBER.pack(value))


def _patch(clock: Path) -> None:
    with clock.open("rb") as file:
        numbers = mmap.mmap(file.fileno(), 2 * _NUMBER.size, access=mmap.ACCESS_READ)
    real, monotonic = time.time_ns, time.clock_gettime
    stopped: dict[int, float] = {}

    def time_ns() -> int:
        return real() + int(_NUMBER.unpack_from(numbers)[0])

    def clock_gettime(which: int) -> float:
        if not _NUMBER.unpack_from(numbers, _NUMBER.size)[0]:
            stopped.clear()
            return monotonic(which)
        return stopped.setdefault(which, monotonic(which))

    # Before any module of the hub takes a name from it.
    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9
    time.clock_gettime = clock_gettime


def _main() -> int:
    _patch(Path(sys.argv.pop(1)))
    from headwater_host.cli.main import main

    if sys.argv[1] == "--mutant":
        sys.path.append(str(Path(__file__).parents[2]))
        from tests.cluster import mutants
        from tests.host import hub_slave_mutants

        name = sys.argv[2]
        del sys.argv[1:3]
        (mutants.MUTANTS.get(name) or hub_slave_mutants.MUTANTS[name]).install()
    return main()


if __name__ == "__main__":
    sys.exit(_main())
