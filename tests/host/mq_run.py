"""``headwater mq``, run in this process."""

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from headwater_host.cli import main as cli

GROUP = bytes(range(24)).hex()
OTHER = bytes(range(100, 124)).hex()


class Run:
    """``headwater mq`` on one queue, run in this process."""

    def __init__(self, path: Path):
        self.store = path / "queues.db"
        self.code: object = 0
        self.out = b""
        self.err = ""

    def __call__(self, name: str, *options: object, data: bytes = b"", queue: str = "Q") -> "Run":
        words = [
            "mq",
            name,
            "--store",
            str(self.store),
            *(["--queue", queue] if queue else []),
            *map(str, options),
        ]
        out = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="")
        err = io.StringIO()
        stdin = sys.stdin
        sys.stdin = io.TextIOWrapper(io.BytesIO(data))
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                self.code = cli.main(words)
                out.flush()
        except SystemExit as end:
            self.code = end.code
        finally:
            sys.stdin = stdin
        out.seek(0)
        self.out, self.err = out.buffer.read(), err.getvalue()
        return self

    def ok(self, name: str, *options: object, data: bytes = b"", queue: str = "Q") -> bytes:
        self(name, *options, data=data, queue=queue)
        assert (self.code, self.err) == (0, "")
        return self.out

    def lines(self, name: str, *options: object) -> list[dict[str, Any]]:
        """What ``--json`` says."""
        return [json.loads(line) for line in self.ok(name, *options, "--json").splitlines()]

    def fields(self, *options: object) -> list[dict[str, Any]]:
        return [line["fields"] for line in self.lines("browse", *options)]
