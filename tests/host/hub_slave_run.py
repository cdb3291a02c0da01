"""Follow a leader through many changes: ``python -m tests.host.hub_slave_run --changes 1000000 --seed 7``."""

import argparse
import asyncio
import tempfile
from pathlib import Path

from tests.host.test_hub_slaves import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(asyncio.run(run(Path(folder), args.seed, args.changes)))


if __name__ == "__main__":
    main()
