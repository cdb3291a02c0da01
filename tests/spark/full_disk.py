"""Commands on a disk that is full: ``unshare -rm python -m tests.spark.full_disk LOG DIR`` mounts a small disk at DIR.

Prints the exit code and the error of each command, and how many messages the tables have at the end, as JSON.
"""

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from headwater_host.cli.main import main
from headwater_spark import delta
from headwater_spark.engine import LocalEngine
from headwater_spark.pipeline import run_on
from headwater_spark.tables import MESSAGES


def command(*words: object) -> tuple[int, str]:
    with redirect_stderr(io.StringIO()) as said, redirect_stdout(io.StringIO()):
        code = main([str(word) for word in words])
    return code, said.getvalue()


def run(log: Path, disk: Path) -> dict[str, object]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", disk], check=True)
    out = disk / "out"
    for name in ("a", "b"):
        run_on(LocalEngine(), log / name, out)
    filler = disk / "filler"
    found: dict[str, object] = {}

    def fill() -> None:
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

    fill()
    found["compact"] = command("pipeline", "compact", "--out", out)
    try:
        run_on(LocalEngine(), log / "c", out)
    except OSError as error:
        found["run"] = str(error)
    found["stream"] = command("pipeline", "stream", "--capture", log / "c", "--out", disk / "other")
    filler.unlink()
    run_on(LocalEngine(), log / "c", out)
    found["again"] = command("pipeline", "compact", "--out", out)[0]
    found["messages"] = sum(file.rows for file in delta.live(out, MESSAGES).files)
    found["files"] = len(delta.live(out, MESSAGES).files)
    return found


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]), Path(sys.argv[2]))))
