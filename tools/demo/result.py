"""What becomes of the demo's messages: noise on the line, waiting for the log, and whether the figures held."""

from __future__ import annotations

import json
import random
import time
from contextlib import suppress
from pathlib import Path

from headwater_host.capture.reader import CaptureReader


class Noise:
    """A disturbed serial line: damages one byte in ``one_in``, the same ones for the same seed."""

    def __init__(self, seed: int, one_in: int) -> None:
        """Nothing is damaged yet."""
        self._random = random.Random(seed)
        self._chance = 1 / one_in
        #: How many bytes were damaged.
        self.damaged = 0

    def __call__(self, number: int, to_board: bool, data: bytes) -> bytes:
        """The bytes of the line ``number`` as they arrive."""
        hit = [i for i in range(len(data)) if self._random.random() < self._chance]
        if not hit:
            return data
        damaged = bytearray(data)
        for i in hit:
            damaged[i] ^= self._random.randrange(1, 256)
        self.damaged += len(hit)
        return bytes(damaged)


#: Who a message is: board, boot, seq.
Identity = tuple[str, int, int]


def wait_for_messages(capture: Path, wanted: set[Identity], timeout: float) -> set[Identity]:
    """Wait until the messages are in the log: those that did not come in ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    reader = CaptureReader(capture)
    missing = set(wanted)
    while True:
        for record in reader.records():
            with suppress(ValueError, KeyError):  # bytes that broke a connection are in the log as well
                # The payload is a flat object; in front of it, a length or a packet id can look like a brace.
                values = json.loads(record.frame[record.frame.rindex(b"{") :])
                missing.discard((values["board"], values["boot"], values["seq"]))
        if not missing or time.monotonic() > deadline:
            return missing
        time.sleep(0.05)


def verdict(report: Path, boards: list[str]) -> list[str]:
    """What is wrong with the figures of ``report.json``; nothing when they held.

    A run in which nothing was acknowledged, or nothing went wrong on the way, proves nothing, and is wrong as well.
    """
    numbers = json.loads(report.read_text(encoding="utf-8"))
    rows = {row["board"]: row for row in numbers["compared"] or []}
    starts = {row["board"]: row["starts"] for row in numbers["boards"]}
    wrong = []
    for name in boards:
        row = rows.get(name)
        if row is None or row["acknowledged"] == 0:
            wrong.append(f"{name}: nothing was acknowledged")
            continue
        if row["lost"]:
            wrong.append(f"{name}: {row['lost']} acknowledged messages are lost")
        if row["duplicates_left"]:
            wrong.append(f"{name}: {row['duplicates_left']} duplicates are in messages")
    if starts.get("b2") != 2:
        wrong.append(f"b2: {starts.get('b2')} starts, and it should be 2: the power cut did not happen")
    return wrong
