"""``python -m tests.fuzz TARGET [--runs N] [--seed S]``: let atheris look for an input that a target does not stand.

``all`` is every target, one after the other; without a target, the table. Inputs that reach something new are kept in
``.cache/fuzz/TARGET`` (``--corpus`` names another folder), where the next run goes on from. An input that fails is
printed in hexadecimal, ready to be named in ``tests/fuzz/corpus/TARGET.txt``; ``--input HEX`` plays it again, for which
atheris is not needed.

Exit status: 0, or 1 when an input failed, 2 when this cannot be run.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools import toolchain

#: Seconds after which an input counts as one that hangs; memory that no target comes near.
TIMEOUT_S = 100
MEMORY_MB = 2048
PACKAGES = ["headwater", "headwater_host", "headwater_board", "headwater_spark"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("target", nargs="?", help="a name of the table, or all")
    parser.add_argument("--runs", type=int, default=100_000, help="how many inputs (100000); 0 for no end")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers (1)")
    parser.add_argument("--seconds", type=int, default=0, help="stop after that long, whatever --runs says")
    parser.add_argument("--corpus", type=Path, help="where inputs are kept (.cache/fuzz)")
    parser.add_argument("--input", metavar="HEX", help="run this one input, without atheris")
    return parser.parse_args()


def _find_portable() -> None:
    portable = str(Path(__file__).parents[1] / "portable")
    if portable not in sys.path:
        sys.path.insert(0, portable)


def _failing_loudly(name: str, run: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """``run``; says with which input it failed."""

    def one(data: bytes) -> None:
        try:
            run(data)
        except BaseException:
            print(f"\n{name}: this input failed:\n  {data.hex() or '(nothing)'}", file=sys.stderr, flush=True)
            raise

    return one


def _fuzz(atheris: Any, target: Any, arguments: argparse.Namespace, corpus: Path) -> int:
    """Fuzz one target in a process of its own, because libFuzzer ends the one it runs in: its exit status."""
    folder = corpus / target.name
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(target.seeds().values()):
        (folder / f"seed-{number}").write_bytes(data)
    options = [
        "tests.fuzz",
        f"-seed={arguments.seed}",
        f"-max_len={target.longest}",
        f"-timeout={TIMEOUT_S}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-artifact_prefix={folder.parent}/{target.name}-",
        "-close_fd_mask=0",
        "-print_final_stats=1",
    ]
    if arguments.runs:
        options.append(f"-runs={arguments.runs}")
    if arguments.seconds:
        options.append(f"-max_total_time={arguments.seconds}")
    child = os.fork()
    if child == 0:
        atheris.Setup([*options, str(folder)], _failing_loudly(target.name, target.run))
        atheris.Fuzz()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> int:
    """Run the command line; its exit status."""
    arguments = _arguments()
    _find_portable()
    atheris = None
    if arguments.target and arguments.input is None:
        if toolchain.find("atheris") is None:
            tool = toolchain.TOOLS["atheris"]
            print(f"atheris ({tool.what}) is missing: {tool.get}", file=sys.stderr)
            return 2
        atheris = importlib.import_module("atheris")
        # What is imported from here on counts the branches it takes.
        with atheris.instrument_imports(include=PACKAGES):
            targets = importlib.import_module("tests.fuzz.targets")
    else:
        targets = importlib.import_module("tests.fuzz.targets")
    table = targets.TARGETS
    if arguments.target is None:
        for target in table.values():
            print(f"{target.name:16} {len(target.seeds()):4} seeds, inputs up to {target.longest} bytes")
        return 0
    if arguments.target != "all" and arguments.target not in table:
        print(f"there is no target {arguments.target!r}; the table: {' '.join(table)}", file=sys.stderr)
        return 2
    chosen = list(table.values()) if arguments.target == "all" else [table[arguments.target]]
    if arguments.input is not None:
        for target in chosen:
            _failing_loudly(target.name, target.run)(bytes.fromhex(arguments.input))
        return 0
    corpus = arguments.corpus or toolchain.CACHE / "fuzz"
    failed = [target.name for target in chosen if _fuzz(atheris, target, arguments, corpus)]
    if failed:
        print(f"failed: {' '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
