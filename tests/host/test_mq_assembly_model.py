"""Any messages, cut anyhow, in any order, with duplicates, losses, and crashes in between: the assembler gives the
exact bytes, once, or says exactly what is missing; and it never takes more memory than it may. Of any segments it says
what ``judge`` says of a list of them."""

import random
import sqlite3
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_host.mq.CMQC import MQRC_INCOMPLETE_GROUP, MQRC_INCOMPLETE_MSG
from headwater_host.mq.reassembly.assembler import Assembler, Outcome
from headwater_host.mq.reassembly.outcomes import Problem, Whole, WholeGroup
from headwater_host.mq.reassembly.verdicts import Segment, judge
from tests.host.mq_assembler import ID
from tests.host.mq_segments import LG, LS, G, S, cut, payload

#: How an MQMDE may be written.
WAYS: list[dict[str, Any]] = [
    {"big": True},
    {"big": False},
    {"big": True, "ccsid": 500},
    {"big": False, "ccsid": 500},
]


@dataclass
class Sent:
    """What belongs to one GroupId: messages by number, each as (offset, size, payload)."""

    group_id: bytes
    grouped: bool
    texts: dict[int, bytes]
    segments: dict[int, list[tuple[int, int, bytes]]]
    lost: set[tuple[int, int]] = field(default_factory=set)

    def missing(self) -> tuple[list[tuple[int, int | None]], dict[int, list[tuple[int, int | None]]]]:
        """Numbers of messages, and ranges of bytes, that did not come."""
        seen = [
            seq
            for seq, parts in self.segments.items()
            if any((seq, k) not in self.lost for k in range(len(parts)))
        ]
        numbers: list[tuple[int, int | None]] = []
        last = len(self.texts)
        if self.grouped:
            end = last if last in seen else None
            numbers = _ranges([seq for seq in range(1, end or max(seen) + 1) if seq not in seen])
            if end is None:
                numbers.append((max(seen) + 1, None))
        bytes_of = {}
        for seq in seen:
            parts = self.segments[seq]
            gone = [
                at
                for k, (at, size, _) in enumerate(parts)
                if (seq, k) in self.lost
                for at in range(at, at + size)
            ]
            here = [at + size for k, (at, size, _) in enumerate(parts) if (seq, k) not in self.lost]
            if (seq, len(parts) - 1) in self.lost:
                ranges = [*_ranges([at for at in gone if at < max(here)]), (max(here), None)]
            else:
                ranges = _ranges(gone)
            if ranges:
                bytes_of[seq] = ranges
        return numbers, bytes_of


def _ranges(numbers: list[int]) -> list[tuple[int, int | None]]:
    found: list[tuple[int, int | None]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return found


@st.composite
def sent(draw: st.DrawFn) -> tuple[list[Sent], list[bytes], random.Random]:
    chance = draw(st.randoms(use_true_random=False))
    groups = []
    for n in range(draw(st.integers(1, 4))):
        grouped = draw(st.booleans())
        how = draw(st.sampled_from(WAYS))
        group_id = bytes([n + 1]) * 24
        texts, segments = {}, {}
        sizes = draw(st.lists(st.integers(0, 400), min_size=1, max_size=4))
        for seq, size in enumerate(sizes, 1):
            step = draw(st.integers(max(1, size // 12), 200))
            texts[seq] = chance.randbytes(size)
            parts = cut(
                group_id, seq, texts[seq], step, grouped=grouped, last=grouped and seq == len(sizes), **how
            )
            segments[seq] = [(k * step, len(part) - 72, part) for k, part in enumerate(parts)]
        groups.append(Sent(group_id, grouped, texts, segments))
    for one in groups:
        every = [(seq, k) for seq, parts in one.segments.items() for k in range(len(parts))]
        one.lost = {place for place in every if draw(st.integers(0, 9)) == 0}
        if len(one.lost) == len(every):
            one.lost.clear()
    arrivals = [
        part
        for one in groups
        for seq, parts in one.segments.items()
        for k, (_, _, part) in enumerate(parts)
        if (seq, k) not in one.lost
    ]
    arrivals += chance.choices(arrivals, k=draw(st.integers(0, 10)))
    if draw(st.booleans()):
        chance.shuffle(arrivals)
    return groups, arrivals, chance


class Reader:
    """A source with a position, an assembler, and who takes what it hands out: in one database."""

    def __init__(self, arrivals: list[bytes], memory: int, by_group: bool):
        self.arrivals = arrivals
        self.memory = memory
        self.by_group = by_group
        self.db = sqlite3.connect(":memory:")
        self.db.execute("CREATE TABLE position (at INTEGER)")
        self.db.execute("INSERT INTO position VALUES (0)")
        self.db.execute("CREATE TABLE messages (group_id BLOB, seq INTEGER, data BLOB)")
        self.db.execute(
            "CREATE TABLE problems (group_id BLOB, seq INTEGER, kind TEXT, reason INTEGER, missing TEXT)"
        )
        self.db.commit()
        self.begin()

    def begin(self) -> None:
        self.assembler = Assembler(self.db, memory=self.memory, timeout=100.0, groups=self.by_group)
        self.at = self.db.execute("SELECT at FROM position").fetchone()[0]

    def take(self, outcomes: "list[Outcome]") -> None:
        for one in outcomes:
            if isinstance(one, Problem):
                row = one.group_id, one.seq, one.kind, one.reason, repr(one.missing[:2])
                self.db.execute("INSERT INTO problems VALUES (?, ?, ?, ?, ?)", row)
                continue
            for message in [one] if isinstance(one, Whole) else one.messages():
                data = message.read()
                assert len(data) == message.length
                self.db.execute(
                    "INSERT INTO messages VALUES (?, ?, ?)", (message.group_id, message.seq, data)
                )

    def step(self) -> None:
        self.take(self.assembler.add("t", self.arrivals[self.at], float(self.at)))
        self.at += 1
        # What is known of the message that is being changed is there in any case.
        assert self.assembler.memory_bytes <= max(self.memory, 2000 + 4 * len("t"))

    def commit(self) -> None:
        self.assembler.flush()
        self.db.execute("UPDATE position SET at = ?", (self.at,))
        self.db.commit()

    def crash(self) -> None:
        self.db.rollback()
        self.begin()

    def finish(self) -> None:
        while self.at < len(self.arrivals):
            self.step()
        while True:
            problems = self.assembler.expire(1e6, 2)
            if not problems:
                break
            self.take(list(problems))


@settings(max_examples=90, derandomize=True, deadline=None, database=None)
@given(
    sent(),
    st.sampled_from((1, 6000, 9000, 1 << 20)),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=8),
)
def test_the_exact_bytes_or_what_is_missing(
    what: tuple[list[Sent], list[bytes], random.Random],
    memory: int,
    by_group: bool,
    turns: list[tuple[int, bool]],
) -> None:
    groups, arrivals, _ = what
    reader = Reader(arrivals, memory, by_group)
    for steps, crash in turns:
        for _ in range(steps):
            if reader.at < len(arrivals):
                reader.step()
        if crash:
            reader.crash()
        else:
            reader.commit()
    reader.finish()

    wanted: list[tuple[bytes, int, bytes]] = []
    problems: list[tuple[bytes, int, str, int, str]] = []
    for one in groups:
        numbers, ranges = one.missing()
        if numbers or ranges:
            reason = MQRC_INCOMPLETE_GROUP if numbers else MQRC_INCOMPLETE_MSG
            problems.append(
                (
                    one.group_id,
                    0,
                    "incomplete",
                    reason,
                    repr((tuple(numbers), {s: tuple(r) for s, r in ranges.items()})),
                )
            )
        for seq, text in one.texts.items():
            whole = not any((seq, k) in one.lost for k in range(len(one.segments[seq])))
            if whole and not (by_group and one.grouped and (numbers or ranges)):
                wanted.append((one.group_id, seq, text))
    found = reader.db.execute("SELECT * FROM messages").fetchall()
    assert sorted(found) == sorted(wanted)
    if by_group:
        # A group's messages come together, and in order.
        for one in groups:
            mine = [seq for group_id, seq, _ in found if group_id == one.group_id]
            assert not one.grouped or mine == sorted(mine)
    assert sorted(reader.db.execute("SELECT * FROM problems").fetchall()) == sorted(problems)
    # Nothing is left behind.
    reader.commit()
    assert (reader.assembler.memory_bytes, reader.assembler.held_bytes, reader.assembler.groups) == (0, 0, 0)
    for table in ("group", "message", "piece"):
        assert reader.db.execute(f"SELECT count(*) FROM assembly_{table}").fetchone() == (0,)
    reader.db.close()


# -- the two ways to the same rules ------------------------------------------------------------------------------------

_PART = st.tuples(
    st.integers(1, 3),
    st.integers(0, 7),
    st.integers(0, 4),
    st.sampled_from((S, S, S, LS, 0, S | LS)),
    st.sampled_from((0, 0, 0, G, LG)),
    st.booleans(),
)


def spoiled_in(text: bytes) -> bool:
    """Whether it is the text, but for the bytes that came as NULs."""
    return all(byte in (0, at) for at, byte in enumerate(text))


@settings(max_examples=120, derandomize=True, deadline=None, database=None)
@given(st.lists(_PART, min_size=1, max_size=9), st.booleans(), st.sampled_from((1, 1 << 20)))
def test_the_assembler_and_judge_say_the_same(
    parts: list[tuple[int, int, int, int, int, bool]], in_group: bool, memory: int
) -> None:
    segments, contents = [], []
    for seq, offset, size, flags, grouped, spoiled in parts:
        data = bytes(range(offset, offset + size))
        if spoiled and offset == 2:
            data = bytes(size)
        # What is no segment and in no group is nothing to put together.
        if (data and flags) or flags & LS or (in_group and not flags):
            member = (grouped or G) if in_group else 0
            segments.append(Segment(seq, offset if flags else 0, len(data), flags | member))
            contents.append(data)
    if not segments:
        return
    verdict = judge(segments, contents.__getitem__)
    db = sqlite3.connect(":memory:")
    assembler = Assembler(db, memory=memory, timeout=1.0, groups=True)
    found: list[Any] = []
    for one, data in zip(segments, contents, strict=True):
        sent = payload(ID, one.seq, one.offset, one.flags, data, CodedCharSetId=0)
        for outcome in assembler.add("t", sent, 1.0):
            found.append(outcome)
            for message in outcome.messages() if isinstance(outcome, WholeGroup) else [outcome]:
                if isinstance(message, Whole):
                    text = message.read()
                    assert spoiled_in(text)
                    assert len(text) == message.length
    if in_group:
        found += assembler.expire(9.0)
        first = found[0]
        if verdict.complete:
            assert isinstance(first, WholeGroup)
        elif verdict.fault is not None:
            # The group may have been whole, and handed out, before the contradiction came.
            behind = found[1:] if isinstance(first, WholeGroup) else found
            assert any(one.kind != "incomplete" for one in behind)
        else:
            assert first.reason == verdict.reason
            assert first.missing == verdict.missing
    else:
        faulty = {one.seq for one in found if isinstance(one, Problem) and one.kind != "late"}
        whole_ones = {one.seq for one in found if isinstance(one, Whole)}
        for problem_ in assembler.expire(9.0):
            assert problem_.missing.segments == {
                seq: one.missing.segments[seq] for seq, one in verdict.messages.items() if one.missing
            }
        for seq, one_verdict in verdict.messages.items():
            if one_verdict.fault is None:
                assert (seq in whole_ones, seq in faulty) == (one_verdict.complete, False)
            else:
                late = {one.seq for one in found if isinstance(one, Problem) and one.kind == "late"}
                # Of another cut it cannot be said any more what it contradicts.
                assert seq in faulty | (whole_ones & late)
    db.close()
