"""What tests of the assembler share: who its messages are of, and what may come of them."""

import random
from collections.abc import Sequence

from headwater_host.mq.reassembly.assembler import Assembler, Outcome
from headwater_host.mq.reassembly.outcomes import Problem, Whole

ID, OTHER = b"a" * 24, b"b" * 24
TEXT = random.Random(1).randbytes(1000)


def add(assembler: Assembler, *payloads: bytes, now: float = 1.0, topic: str = "t") -> list[Outcome]:
    """What the last of them leads to; nothing may come of those before it."""
    for one in payloads[:-1]:
        assert assembler.add(topic, one, now) == []
    return assembler.add(topic, payloads[-1], now)


def whole(outcomes: "Sequence[Outcome]") -> Whole:
    (one,) = outcomes
    assert isinstance(one, Whole), one
    return one


def problem(outcomes: "Sequence[Outcome]") -> Problem:
    (one,) = outcomes
    assert isinstance(one, Problem), one
    return one
