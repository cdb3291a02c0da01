"""IBM MQ segments reassembled: 1 KB each, 64 to a message.

`judge` applies the rules to lists, without contents. `Assembler` takes payloads with an MQMDE and reads complete
messages; its store is a file that is not synced. "all open": the segments of all messages are interleaved. Rates
are per second of CPU time.
"""

from __future__ import annotations

import random
import sqlite3
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from headwater.ibmmq.header import MQMDE
from headwater_host.mq.CMQC import MQMF_LAST_SEGMENT, MQMF_SEGMENT
from headwater_host.mq.reassembly.assembler import Assembler
from headwater_host.mq.reassembly.outcomes import Whole
from headwater_host.mq.reassembly.verdicts import Segment, judge
from headwater_host.mq.structures import encode

ROUNDS = 3
SIZE = 1024
EACH = 64
COUNT = 64 * 400


def _flags(k: int) -> int:
    return MQMF_LAST_SEGMENT if k == EACH - 1 else MQMF_SEGMENT


def _segments() -> list[tuple[int, Segment]]:
    return [(n // EACH + 1, Segment(1, n % EACH * SIZE, SIZE, _flags(n % EACH))) for n in range(COUNT)]


def _payloads() -> list[bytes]:
    found = []
    for message, one in _segments():
        fields = {"GroupId": message.to_bytes(24, "big"), "Offset": one.offset, "MsgFlags": one.flags}
        found.append(encode(MQMDE, {**fields, "CodedCharSetId": 1208}, big=True, ccsid=819) + bytes(SIZE))
    return found


def _judge(arrivals: list[tuple[int, Segment]]) -> None:
    messages: dict[int, list[Segment]] = {}
    for message, one in arrivals:
        messages.setdefault(message, []).append(one)
    for segments in messages.values():
        if not judge(segments, [b""].__getitem__).complete:
            raise AssertionError("a message is incomplete")


def _assemble(arrivals: list[bytes], memory: int) -> None:
    with TemporaryDirectory(prefix="headwater-bench-") as place:
        db = sqlite3.connect(Path(place) / "a.db")
        assembler = Assembler(db, memory=memory)
        length = 0
        for payload in arrivals:
            for one in assembler.add("t", payload, 0.0):
                if isinstance(one, Whole):
                    length += sum(map(len, one.chunks()))
        if length != COUNT * SIZE:
            raise AssertionError(f"only {length} bytes were reassembled")
        db.close()


def _row(what: str, how: str, work: Callable[[], None]) -> dict[str, object]:
    rounds = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        work()
        rounds.append(time.process_time() - begin)
    rate = COUNT / statistics.median(rounds)
    return {
        "what": what,
        "arrival": how,
        "segments, k/s": f"{rate / 1e3:.0f}",
        "MB/s": f"{rate * SIZE / 1e6:.0f}",
    }


def run() -> list[dict[str, object]]:
    """Return a row for each method and order."""
    chance = random.Random(1)
    segments, payloads = _segments(), _payloads()
    mixed, mixed_payloads = chance.sample(segments, COUNT), chance.sample(payloads, COUNT)
    return [
        _row("judge", "in order", lambda: _judge(segments)),
        _row("judge", "all open", lambda: _judge(mixed)),
        _row("Assembler, in memory", "in order", lambda: _assemble(payloads, 64 << 20)),
        _row("Assembler, in memory", "all open", lambda: _assemble(mixed_payloads, 64 << 20)),
        _row("Assembler, memory of 1 MiB", "all open", lambda: _assemble(mixed_payloads, 1 << 20)),
    ]


if __name__ == "__main__":
    for row in run():
        print(row)
