"""What became of the demo's messages: waits for the log, compares it with the boards' own records, shows the table."""

from __future__ import annotations

import random
import time
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


def wait_for_topic(capture: Path, topic: str, timeout: float) -> None:
    """Wait until a message of ``topic`` is in the log; TimeoutError when it does not come."""
    deadline = time.monotonic() + timeout
    reader = CaptureReader(capture)
    wanted = topic.encode()
    while not any(wanted in record.frame for record in reader.records()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no message of {topic} has come to {capture} in {timeout:.0f} s")
        time.sleep(0.05)
