"""The numbers of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from headwater_host.capture.problem import Problem
from headwater_spark.part import Part
from headwater_spark.plan import Plan
from headwater_spark.stats import Stats, add


@dataclass
class Result:
    """The results of a batch: numbers of what it added."""

    #: The logs, and what was read of them.
    captures: list[str]
    plan: Plan
    #: The number of the tables' last batch; 0 if there is none.
    batch: int = 0
    #: Batches that a crash had left open and this run has completed.
    completed: list[int] = field(default_factory=list)
    #: Rows by table.
    rows: Counter[str] = field(default_factory=Counter)
    #: Frames and messages by protocol.
    frames: Counter[int] = field(default_factory=Counter)
    messages: Counter[int] = field(default_factory=Counter)
    #: Logical messages of IBM MQ by kind: ``buckets.KINDS``.
    logical: Counter[str] = field(default_factory=Counter)
    undecoded: Counter[tuple[int, int]] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    stats: Stats = field(default_factory=dict)
    #: Parts that ran twice, and rows that Spark shuffled.
    again: int = 0
    #: Frames that this batch has taken from the quarantine.
    taken: int = 0
    candidates: int = 0
    #: Kept messages that may be duplicates.
    possible_duplicates: int = 0
    seconds: float = 0.0

    @property
    def duplicates(self) -> int:
        """Return how many frames repeat a message."""
        received = sum(stat.received for stat in self.stats.values())
        stored = sum(stat.stored for stat in self.stats.values())
        return received - stored - self.quarantined["identity_conflict"]

    def collect(self, parts: Sequence[Part]) -> None:
        """Add up the reports of all tasks."""
        self.problems = list(self.plan.problems)
        for part in parts:
            self.rows.update(part.rows)
            self.frames.update(part.frames)
            self.messages.update(part.messages)
            self.logical.update(part.logical)
            self.undecoded.update(part.undecoded)
            self.quarantined.update(part.quarantined)
            self.problems += part.problems
            self.possible_duplicates += part.doubtful
        self.stats = add(part.stats for part in parts)
