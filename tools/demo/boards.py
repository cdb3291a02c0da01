"""The demo's boards: virtual boards that run examples/device/telemetry.py."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from tools import deploy
from tools.toolchain import ROOT
from tools.virtual_board import VirtualBoard

_PROGRAM = ROOT / "examples" / "device"
HEAP = "192K"


@dataclass
class Record:
    """A board's own record: published and acknowledged sequence numbers by (boot, seq), with the QoS."""

    sent: dict[tuple[int, int], int] = field(default_factory=dict)
    acknowledged: dict[tuple[int, int], int] = field(default_factory=dict)


class DemoBoard:
    """A virtual board that publishes telemetry. `how` has host and port, or serial, and the protocol and version."""

    def __init__(self, name: str, root: Path, how: dict[str, object], *, period_ms: int) -> None:
        """Prepare the board's flash; `power_on` starts it."""
        self.name = name
        protocol = f"{how.get('protocol', 'mqtt')}{' 5.0' if how.get('version') == 5 else ''}"
        self.what = f"{protocol} over {'serial' if 'serial' in how else 'tcp'}"
        self._settings = {"name": name, "period_ms": period_ms, "send_record": True, **how}
        files = {
            **deploy.package_files("mpy"),
            "main.py": _PROGRAM / "telemetry.py",
            "sampling.py": _PROGRAM / "sampling.py",
        }
        self.board = VirtualBoard(
            root,
            heap=HEAP,
            files=files,
            uarts=int("serial" in how),
            host_dirs={"/proc": "/proc"},
            name=name,
        )

    def set_time(self, seconds: float) -> None:
        """Set how long it publishes after its next start."""
        self.board.put({"telemetry.json": json.dumps({**self._settings, "seconds": seconds})})

    def record(self) -> Record:
        """Read the board's record, without a line that a power cut truncated."""
        record = Record()
        path = self.board.fs_path("sent.jsonl")
        if not path.exists():
            return record
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            key = (row["boot"], row["seq"])
            (record.acknowledged if row["acknowledged"] else record.sent)[key] = row["qos"]
        return record
