"""The assembler: what it hands out, what it reports, its bounds, and what it knows after a restart."""

import gc
import io
import json
import random
import sqlite3
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.ibmmq.header import BIG, EBCDIC
from headwater_host.ibmmq.CMQC import (
    MQMF_LAST_MSG_IN_GROUP,
    MQMF_LAST_SEGMENT,
    MQMF_MSG_IN_GROUP,
    MQMF_SEGMENT,
    MQRC_INCOMPLETE_GROUP,
    MQRC_INCOMPLETE_MSG,
    MQRC_INCONSISTENT_ENCODINGS,
    MQRC_MDE_ERROR,
    MQRC_MSG_FLAGS_ERROR,
    MQRC_MSG_SEQ_NUMBER_ERROR,
    MQRC_OFFSET_ERROR,
    MQRC_SEGMENT_LENGTH_ZERO,
    MQRC_STORAGE_MEDIUM_FULL,
)
from headwater_host.ibmmq.reassembly.assembler import Assembler, Outcome
from headwater_host.ibmmq.reassembly.outcomes import GoneError, Problem, Whole, WholeGroup
from headwater_host.ibmmq.reassembly.verdicts import Segment, judge
from tests.host.mq_segments import cut, payload

S, LS, G, LG = MQMF_SEGMENT, MQMF_LAST_SEGMENT, MQMF_MSG_IN_GROUP, MQMF_LAST_MSG_IN_GROUP
ID, OTHER = b"a" * 24, b"b" * 24
TEXT = random.Random(1).randbytes(1000)


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    yield connection
    connection.close()


def add(assembler: Assembler, *payloads: bytes, now: float = 1.0, topic: str = "t") -> list[Outcome]:
    """What the last of them leads to; nothing may come of those before it."""
    for one in payloads[:-1]:
        assert assembler.add(topic, one, now) == []
    return assembler.add(topic, payloads[-1], now)


def whole(outcomes: "list[Outcome]") -> Whole:
    (one,) = outcomes
    assert isinstance(one, Whole), one
    return one


def problem(outcomes: "list[Outcome] | list[Problem]") -> Problem:
    (one,) = outcomes
    assert isinstance(one, Problem), one
    return one


# -- what is handed out ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [0, BIG, EBCDIC, BIG | EBCDIC])
@pytest.mark.parametrize("memory", [3000, 1 << 20])
def test_a_message_comes_whole(db: sqlite3.Connection, kind: int, memory: int) -> None:
    assembler = Assembler(db, memory=memory)
    how: dict[str, Any] = {"big": bool(kind & BIG), "ccsid": 500 if kind & EBCDIC else 819, "Format": "MQSTR"}
    parts = cut(ID, 7, TEXT, 100, **how)
    one = whole(add(assembler, *parts[1:], parts[4], parts[0]))
    assert (assembler.counts.segments, assembler.counts.duplicates) == (10, 1)
    assert (one.topic, one.group_id, one.seq, one.length) == ("t", ID, 7, 1000)
    assert (one.format, one.encoding, one.ccsid) == ("MQSTR   ", 273, 1208)
    assert one.read() == TEXT
    file = io.BytesIO()
    assert (one.write_to(file), file.getvalue()) == (1000, TEXT)
    assert {len(chunk) for chunk in one.chunks()} == {100}


def test_what_it_is_comes_from_the_first_segment(db: sqlite3.Connection) -> None:
    assembler = Assembler(db)
    parts = [payload(ID, 1, 1, LS, b"b", Format="LATER"), payload(ID, 1, 0, S, b"a", Format="FIRST")]
    assert whole(add(assembler, *parts)).format == "FIRST   "
    parts = [payload(OTHER, 1, 0, S, b"a", Format="FIRST"), payload(OTHER, 1, 1, LS, b"b", Format="LATER")]
    assert whole(add(assembler, *parts)).format == "FIRST   "


@pytest.mark.parametrize("lengths", [(1, 2), (2, 1)])
@pytest.mark.parametrize("memory", [3000, 1 << 20])
def test_of_two_first_segments_it_is_the_one_that_came_first(
    db: sqlite3.Connection, lengths: tuple[int, int], memory: int
) -> None:
    """As in a list of them."""
    assembler = Assembler(db, memory=memory)
    one, two = (payload(ID, 1, 0, S, b"abc"[:n], Format=f"HAS{n}") for n in lengths)
    last = payload(ID, 1, 1, LS, b"bc", Format="LATER")
    assert add(assembler, one, two) == []
    assembler.flush()
    assert whole(add(assembler, last)).format == f"HAS{lengths[0]}    "
    segments = [Segment(1, 0, n, S) for n in lengths]
    assert judge([*segments, Segment(1, 1, 2, LS)], lambda i: [one, two, last][i][72:]).messages[1].first == 0


def test_what_is_no_segment_is_whole_by_itself(db: sqlite3.Connection) -> None:
    assembler = Assembler(db)
    plain = whole(add(assembler, b"21.5"))
    assert (plain.group_id, plain.seq, plain.format, plain.read()) == (bytes(24), 1, "        ", b"21.5")
    alone = payload(bytes(24), 1, 0, 0, b"abc", Format="MQSTR")
    for _ in range(2):
        # Nothing says that the second is the first again.
        one = whole(add(assembler, alone))
        assert (one.format, one.read()) == ("MQSTR   ", b"abc")
    assert whole(add(assembler, b"MDE \x00\x00\x00\x01")).read() == b"MDE \x00\x00\x00\x01"
    assert whole(add(assembler, b"")).read() == b""
    assert assembler.counts.plain == 5
    assert assembler.groups == 0


def test_messages_of_a_group_as_they_become_whole(db: sqlite3.Connection) -> None:
    assembler = Assembler(db)
    one, two = cut(ID, 1, TEXT, 400, grouped=True), cut(ID, 2, TEXT[:300], 200, grouped=True, last=True)
    assert whole(add(assembler, two[1], one[0], two[0])).seq == 2
    assert assembler.add("t", two[0], 1.0) == []
    assert (assembler.counts.groups, assembler.counts.duplicates) == (0, 1)
    assert whole(add(assembler, *one[1:])).read() == TEXT
    assert assembler.counts.groups == 1
    assert assembler.groups == 0 or assembler.expire(1e9) == []


@pytest.mark.parametrize("memory", [4000, 1 << 20])
def test_a_group_when_all_of_it_is_there(db: sqlite3.Connection, memory: int) -> None:
    assembler = Assembler(db, memory=memory, groups=True)
    parts = cut(ID, 3, b"last", 2, grouped=True, last=True) + cut(ID, 1, TEXT, 300, grouped=True)
    (group,) = add(assembler, *parts, payload(ID, 2, 0, G, b"two"))
    assert isinstance(group, WholeGroup)
    assert (group.topic, group.group_id, group.count, group.length) == ("t", ID, 3, 1007)
    for _ in range(2):
        assert [(one.seq, one.read()) for one in group.messages()] == [(1, TEXT), (2, b"two"), (3, b"last")]
    # In no group: handed out at once.
    assert whole(add(assembler, *cut(OTHER, 1, TEXT, 500))).read() == TEXT
    assert (assembler.counts.whole, assembler.counts.groups) == (4, 1)


def test_that_it_is_the_last_may_be_said_when_it_comes_again(db: sqlite3.Connection) -> None:
    first, again = payload(ID, 1, 0, G, b"x"), payload(ID, 1, 0, LG, b"x")
    assembler = Assembler(db)
    whole(add(assembler, first))
    assert add(assembler, again) == []
    assert (assembler.counts.groups, assembler.counts.duplicates, assembler.groups) == (1, 1, 0)
    assembler = Assembler(db, groups=True)
    (group,) = add(assembler, first, again, topic="g")
    assert isinstance(group, WholeGroup)
    # Or that it cannot be.
    assembler = Assembler(db)
    for one in (first, payload(ID, 2, 0, G, b"y")):
        whole(add(assembler, one, topic="m"))
    assert problem(add(assembler, again, topic="m")).kind == "behind last"


@pytest.mark.parametrize("memory", [1, 1 << 20])
def test_groups_and_others_at_the_same_time(db: sqlite3.Connection, memory: int) -> None:
    assembler = Assembler(db, memory=memory, groups=True)
    for seq in (2, 3):
        for group_id in (ID, OTHER):
            assert add(assembler, payload(group_id, seq, 0, G if seq < 3 else LG, b"x")) == []
        assembler.flush()
    for group_id in (ID, OTHER):
        (group,) = add(assembler, payload(group_id, 1, 0, G, b"x"))
        assert isinstance(group, WholeGroup)
        assert group.count == 3


@pytest.mark.parametrize("memory", [1, 1 << 20])
def test_segments_that_overlap_in_any_order(db: sqlite3.Connection, memory: int) -> None:
    assembler = Assembler(db, memory=memory)
    cuts = [(0, 4), (3, 7), (2, 9), (5, 6), (8, 10)]
    for n, order in enumerate(permutations(cuts), 1):
        found = []
        for start, stop in order:
            one = payload(n.to_bytes(24, "big"), 1, start, LS if stop == 10 else S, TEXT[start:stop])
            found += [whole([got]).read() for got in assembler.add("t", one, 1.0)]
        assert found == [TEXT[:10]]


def test_topics_and_group_ids_are_apart(db: sqlite3.Connection) -> None:
    assembler = Assembler(db)
    parts = cut(ID, 1, TEXT, 500)
    assert add(assembler, parts[0], topic="a") == []
    assert add(assembler, parts[1], topic="b") == []
    assert add(assembler, cut(OTHER, 1, TEXT, 500)[1], topic="a") == []
    assert add(assembler, cut(ID, 2, TEXT, 500)[1], topic="a") == []
    assert whole(add(assembler, parts[1], topic="a")).topic == "a"
    assert whole(add(assembler, parts[0], topic="b")).read() == TEXT


def test_what_was_handed_out_is_gone_at_the_next_call(db: sqlite3.Connection) -> None:
    assembler = Assembler(db, memory=2500)
    for call in (assembler.flush, lambda: assembler.expire(2.0), lambda: assembler.add("t", b"", 2.0)):
        one = whole(add(assembler, *cut(random.Random(repr(call)).randbytes(24), 1, TEXT, 100)))
        chunks = one.chunks()
        next(chunks)
        call()
        with pytest.raises(GoneError):
            next(chunks)
        with pytest.raises(GoneError):
            one.read()


# -- what is reported --------------------------------------------------------------------------------------------------


def test_what_stays_incomplete_is_reported_and_blocks_nobody(db: sqlite3.Connection) -> None:
    assembler = Assembler(db, timeout=10.0)
    parts = cut(ID, 1, TEXT, 100)
    add(assembler, *parts[:3], *parts[4:])
    assert whole(add(assembler, *cut(OTHER, 1, TEXT, 300), now=5.0)).read() == TEXT
    assert assembler.expire(10.9) == []
    found = problem(assembler.expire(11.0))
    assert (found.kind, found.reason, found.missing.segments) == (
        "incomplete",
        MQRC_INCOMPLETE_MSG,
        {1: ((300, 400),)},
    )
    assert b"".join(data for _, _, data in found.pieces()) == TEXT[:300] + TEXT[400:]
    assert [(seq, at) for seq, at, _ in found.pieces()] == [
        (1, at) for at in range(0, 1000, 100) if at != 300
    ]
    assert (
        str(found)
        == f"t, GroupId {ID.hex()}: incomplete, missing: of message 1 bytes 300 to 399 (2242 MQRC_INCOMPLETE_MSG)"
    )
    assert json.loads(json.dumps(found.as_dict()))["missing"]["segments"] == {"1": [[300, 400]]}
    assert assembler.expire(99.0) == []
    assert (assembler.memory_bytes < 2000, assembler.held_bytes, assembler.groups) == (True, 0, 0)
    # What comes now begins nothing, and is not lost without a word.
    late = problem(add(assembler, parts[3], now=20.0))
    assert (late.kind, late.reason, late.seq) == ("late", MQRC_INCOMPLETE_MSG, 1)
    assert (assembler.counts.incomplete, assembler.counts.late, assembler.groups) == (1, 1, 0)


@pytest.mark.parametrize("memory", [1, 1 << 20])
def test_what_is_incomplete_can_be_looked_at(db: sqlite3.Connection, memory: int) -> None:
    """By somebody who has only the store, and may not write there; and then goes on."""
    assembler = Assembler(db, timeout=10.0)
    for n in range(1, 21):
        for one in cut(bytes([n]) * 24, 1, TEXT, 100)[n % 3 :: 2]:
            assembler.add("t", one, float(100 - n))
    assembler.flush()
    db.execute("PRAGMA query_only = 1")
    found = [one.as_dict() for one in Assembler(db, memory=memory).incomplete()]
    db.execute("PRAGMA query_only = 0")
    assert found == [one.as_dict() for one in assembler.incomplete()]
    assert assembler.groups == len(found) == 20
    assert found == [one.as_dict() for one in assembler.expire(1000.0)]
    assert list(assembler.incomplete()) == []


def test_an_incomplete_group(db: sqlite3.Connection) -> None:
    for by_group in (False, True):
        assembler = Assembler(db, timeout=10.0, groups=by_group)
        first = assembler.add(f"{by_group}", payload(ID, 1, 0, G, b"one"), 1.0)
        assert len(first) == (not by_group)
        assembler.add(f"{by_group}", payload(ID, 4, 5, G | S, b"part"), 2.0)
        found = problem(assembler.expire(12.0))
        assert (found.reason, found.seq) == (MQRC_INCOMPLETE_GROUP, 0)
        assert found.missing.messages == ((2, 4), (5, None))
        assert found.missing.segments == {4: ((0, 5), (9, None))}
        there = [(4, 5, b"part")]
        assert list(found.pieces()) == ([(1, 0, b"one"), *there] if by_group else there)


def test_something_that_comes_puts_the_time_out_off(db: sqlite3.Connection) -> None:
    for memory in (3000, 1 << 20):
        assembler = Assembler(db, timeout=10.0, memory=memory)
        counts = []
        for now in range(1, 50, 7):
            assembler.add("t", payload(ID, 1, now, S, TEXT[:1]), float(now))
            assembler.add("t", payload(now.to_bytes(24, "big"), 1, 1, S, TEXT), float(now))
            found = assembler.expire(float(now))
            assert all(one.group_id != ID for one in found)
            counts.append(len(found))
        assert counts == [0, 0, 1, 1, 1, 1, 1]
        assert assembler.expire(60.0)[-1].group_id == ID
        db.rollback()


@pytest.mark.parametrize("memory", [2000, 1 << 20])
def test_a_clock_that_is_set_back_keeps_nobody(db: sqlite3.Connection, memory: int) -> None:
    assembler = Assembler(db, timeout=10, memory=memory)
    parts = [cut(bytes([n]) * 24, 1, TEXT, 500)[0] for n in (1, 2, 3, 4)]
    add(assembler, parts[0], now=1e9)
    assembler.flush()
    add(assembler, parts[1], now=1e9)
    add(assembler, *parts[2:], now=100)
    assert assembler.expire(105) == []
    assert {one.group_id[0] for one in assembler.expire(110)} == {3, 4}
    assert {one.group_id[0] for one in assembler.expire(115)} == {1, 2}


def test_the_oldest_first_and_so_many_at_a_time(db: sqlite3.Connection) -> None:
    # Some are in memory then, and some in the store only.
    assembler = Assembler(db, memory=9000, timeout=10.0)
    ids = [n.to_bytes(24, "big") for n in random.Random(3).sample(range(1, 100), 20)]
    for now, group_id in enumerate(ids):
        assembler.add("t", payload(group_id, 1, 1, S, b"x"), float(now))
    found = []
    while problems := assembler.expire(27.0, 4):
        assert len(problems) <= 4
        found += [one.group_id for one in problems]
    assert found == ids[:18]
    assert assembler.groups == 2


# Payloads of one message; the kind of the fault; its reason.
FAULTS = {
    "other bytes": (
        [payload(ID, 1, 0, S, b"abc"), payload(ID, 1, 2, S, b"Xd")],
        "overlap",
        MQRC_OFFSET_ERROR,
    ),
    "two ends": ([payload(ID, 1, 2, LS, b"c"), payload(ID, 1, 0, LS, b"a")], "ends", MQRC_MSG_FLAGS_ERROR),
    "behind": ([payload(ID, 1, 2, LS, b"c"), payload(ID, 1, 3, S, b"d")], "behind end", MQRC_OFFSET_ERROR),
    "mixed": ([payload(ID, 1, 0, G | S, b"c"), payload(ID, 1, 0, G, b"c")], "mixed", MQRC_MSG_FLAGS_ERROR),
    "encodings": (
        [payload(ID, 1, 0, S, b"c"), payload(ID, 1, 1, S, b"c", Encoding=546)],
        "encodings",
        MQRC_INCONSISTENT_ENCODINGS,
    ),
}


@pytest.mark.parametrize("parts, kind, reason", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("memory", [1, 1 << 20])
def test_what_contradicts_itself_is_set_aside(
    db: sqlite3.Connection, parts: list[bytes], kind: str, reason: int, memory: int
) -> None:
    assembler = Assembler(db, memory=memory, timeout=1e9)
    found = problem(add(assembler, *parts))
    assert (found.kind, found.reason, found.seq, found.group_id) == (kind, reason, 1, ID)
    assert [data for _, _, data in found.pieces()] == [parts[0][72:]]
    assert problem(add(assembler, parts[0])).kind == "late"
    assert (assembler.counts.faulty, assembler.counts.late) == (1, 1)
    assert whole(add(assembler, *cut(OTHER, 1, TEXT, 500))).read() == TEXT


def test_a_fault_in_a_message_of_a_group(db: sqlite3.Connection) -> None:
    parts = [payload(ID, 2, 0, G | S, b"abc"), payload(ID, 2, 1, G | S, b"X")]
    others = [payload(ID, 1, 0, G, b"one"), payload(ID, 3, 0, LG, b"three")]
    # Others go on, and the group ends when all are settled.
    assembler = Assembler(db)
    assert problem(add(assembler, *parts)).seq == 2
    assert whole(add(assembler, others[0])).read() == b"one"
    assert problem(add(assembler, parts[0])).kind == "late"
    assert whole(add(assembler, others[1])).read() == b"three"
    assert (assembler.groups, assembler.counts.groups) == (0, 1)
    assert assembler.expire(1e9) == []
    # Together, there is no more to wait for.
    assembler = Assembler(db, groups=True)
    assert assembler.add("g", others[0], 1.0) == []
    assert assembler.add("g", parts[0], 1.0) == []
    found = problem(assembler.add("g", parts[1], 1.0))
    assert (found.kind, found.seq) == ("overlap", 2)
    assert list(found.pieces()) == [(1, 0, b"one"), (2, 0, b"abc")]
    assert problem(assembler.add("g", others[1], 1.0)).kind == "late"


GROUP_FAULTS = {
    "lasts": ([payload(ID, 1, 0, LG | S, b"a"), payload(ID, 2, 0, LG, b"b")], MQRC_MSG_FLAGS_ERROR),
    "behind last": ([payload(ID, 1, 0, LG | S, b"a"), payload(ID, 2, 0, G, b"b")], MQRC_MSG_SEQ_NUMBER_ERROR),
    "behind last, which comes late": (
        [payload(ID, 2, 0, G | S, b"a"), payload(ID, 1, 0, LG, b"b")],
        MQRC_MSG_SEQ_NUMBER_ERROR,
    ),
    "membership": ([payload(ID, 1, 0, G | S, b"a"), payload(ID, 2, 0, LS, b"b")], MQRC_MSG_FLAGS_ERROR),
}


@pytest.mark.parametrize("parts, reason", GROUP_FAULTS.values(), ids=GROUP_FAULTS)
@pytest.mark.parametrize("by_group", [False, True])
def test_a_group_that_contradicts_itself(
    db: sqlite3.Connection, parts: list[bytes], reason: int, by_group: bool
) -> None:
    assembler = Assembler(db, groups=by_group)
    found = problem(add(assembler, *parts))
    assert found.reason == reason
    assert [data for _, _, data in found.pieces()] == [b"a"]
    assert problem(add(assembler, payload(ID, 1, 1, G | LS, b"c"))).kind == "late"


# Payload; kind; reason; offset of the field in it.
MALFORMED = {
    "cut short": (payload(ID, 1, 0, S, b"")[:70], "malformed", MQRC_MDE_ERROR, 68),
    "flags": (payload(ID, 1, 0, S | 32, b"x"), "flags", MQRC_MSG_FLAGS_ERROR, -1),
    "number": (payload(ID, 0, 0, S, b"x"), "number", MQRC_MSG_SEQ_NUMBER_ERROR, -1),
    "negative offset": (payload(ID, 1, -1, S, b"x"), "offset", MQRC_OFFSET_ERROR, -1),
    "offset": (payload(ID, 1, 10**9, S, b"x"), "offset", MQRC_OFFSET_ERROR, -1),
    "empty": (payload(ID, 1, 0, S, b""), "empty", MQRC_SEGMENT_LENGTH_ZERO, -1),
    "no id": (payload(bytes(24), 1, 0, S, b"x"), "group id", 2258, -1),
}


@pytest.mark.parametrize("bad, kind, reason, at", MALFORMED.values(), ids=MALFORMED)
def test_what_mqput_would_not_take_is_a_part_of_nothing(
    db: sqlite3.Connection, bad: bytes, kind: str, reason: int, at: int
) -> None:
    assembler = Assembler(db)
    parts = cut(ID, 1, TEXT, 500)
    assert add(assembler, parts[0]) == []
    found = problem(add(assembler, bad))
    assert (found.kind, found.reason, found.at) == (kind, reason, at)
    assert found.as_dict()["offset"] == (None if at < 0 else at)
    assert list(found.pieces()) == []
    assert (assembler.counts.malformed, assembler.groups) == (1, 1)
    assert whole(add(assembler, parts[1])).read() == TEXT


def test_a_malformed_one_is_told_in_words(db: sqlite3.Connection) -> None:
    found = problem(Assembler(db).add("a/b", payload(ID, 1, 0, S, b"")[:15], 0))
    assert (
        str(found)
        == "a/b: malformed MQMDE: Encoding at offset 12: the MQMDE is cut short (2248 MQRC_MDE_ERROR)"
    )


# -- duplicates --------------------------------------------------------------------------------------------------------


def test_what_is_done_is_not_begun_again(db: sqlite3.Connection) -> None:
    assembler = Assembler(db)
    alone = cut(ID, 5, TEXT, 500)
    add(assembler, *alone)
    group = [payload(OTHER, 1, 0, G, b"one"), payload(OTHER, 2, 0, LG, b"two")]
    for one in group:
        whole(add(assembler, one))
    for _ in range(2):
        for one in alone + group:
            assert add(assembler, one) == []
        assert assembler.groups == 0
        # And after a restart.
        assembler.flush()
        db.commit()
        assembler = Assembler(db)
    # Another message of the same GroupId, which is in no group, is another message.
    assert whole(add(assembler, *cut(ID, 6, TEXT, 500))).seq == 6
    behind = problem(add(assembler, payload(OTHER, 3, 0, G, b"three")))
    assert (behind.kind, behind.reason) == ("late", MQRC_MSG_SEQ_NUMBER_ERROR)


def test_only_so_many_are_remembered(db: sqlite3.Connection) -> None:
    assembler = Assembler(db, remembered=3)
    messages = [payload(n.to_bytes(24, "big"), 1, 0, LS, b"x") for n in range(1, 7)]
    for one in messages:
        whole(add(assembler, one))
        # In memory there are no more, either.
        assert len(assembler._holding._done) <= 3
    assembler.flush()
    assert db.execute("SELECT count(*) FROM assembly_done").fetchone() == (3,)
    for one in messages[3:]:
        assert add(assembler, one) == []
    assert whole(add(assembler, messages[2])).read() == b"x"


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_what_has_no_room_is_refused_and_nothing_is_lost(db: sqlite3.Connection) -> None:
    assembler = Assembler(db, room=3000)
    parts = cut(ID, 1, TEXT, 250)
    add(assembler, *parts[:2])
    other = cut(OTHER, 1, bytes(2500), 1250)
    assert add(assembler, other[0]) == []
    for _ in range(2):
        found = problem(add(assembler, other[1]))
        assert (found.kind, found.reason, found.seq) == ("room", MQRC_STORAGE_MEDIUM_FULL, 1)
    assert assembler.held_bytes <= 3000
    # What is there already needs no room.
    assert add(assembler, parts[0]) == []
    assert whole(add(assembler, *parts[2:])).read() == TEXT
    assert whole(add(assembler, other[1])).read() == bytes(2500)
    assert assembler.counts.refused == 2


def test_only_so_many_groups_at_once(db: sqlite3.Connection) -> None:
    assembler = Assembler(db, open_groups=2)
    parts = cut(ID, 1, TEXT, 500)
    assert add(assembler, parts[0], cut(OTHER, 1, TEXT, 500)[0]) == []
    third = cut(b"c" * 24, 1, TEXT, 500)
    assert problem(add(assembler, third[0])).kind == "room"
    whole(add(assembler, parts[1]))
    assert whole(add(assembler, *third)).read() == TEXT


def fragments(count: int) -> list[bytes]:
    """A message in segments of one byte, every other of them."""
    return [payload(ID, 1, k, S, TEXT[k % 1000 : k % 1000 + 1]) for k in range(0, 2 * count, 2)]


def many_groups(count: int) -> list[bytes]:
    return [payload(k.to_bytes(24, "big"), 1, 3, S, b"x") for k in range(1, count)]


def many_messages(count: int) -> list[bytes]:
    return [payload(ID, k, 3, G | S, b"x") for k in range(1, count)]


def one_large_message(count: int) -> list[bytes]:
    return cut(ID, 1, bytes(count * 200), 200)[:-1]


def short_messages(count: int) -> list[bytes]:
    """Each is whole at once, and is remembered."""
    return [payload(k.to_bytes(24, "big"), 1, 0, LS, b"x") for k in range(1, count)]


@pytest.mark.parametrize("make", [fragments, many_groups, many_messages, one_large_message, short_messages])
def test_the_memory_it_really_takes_is_within_its_bound(
    tmp_path: Path, make: Callable[[int], list[bytes]]
) -> None:
    # Beside what is counted: SQLite's statements, and a call's own lists.
    memory, few = 150_000, 16_000
    payloads = make(1400)
    random.Random(2).shuffle(payloads)
    db = sqlite3.connect(tmp_path / "a.db")
    assembler = Assembler(db, memory=memory)
    for one in payloads[:100]:
        assembler.add("a/topic", one, 1.0)
    assembler.flush()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        most = 0
        for one in payloads[100:]:
            assembler.add("a/topic", one, 1.0)
            counted = assembler.memory_bytes
            assert counted <= memory
            most = max(most, counted)
        assert tracemalloc.get_traced_memory()[1] - before < memory + few
        real = tracemalloc.get_traced_memory()[0] - before
        assert real < assembler.memory_bytes + few
    finally:
        tracemalloc.stop()
    assert most > memory // 2
    db.close()


def test_a_message_that_is_larger_than_memory(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "a.db")
    assembler = Assembler(db, memory=64 << 10)
    block = random.Random(4).randbytes(4096)
    count = 1500
    tracemalloc.start()
    try:
        for k in range(count - 1):
            assert assembler.add("t", payload(ID, 1, k * 4096, S, block), 1.0) == []
        one = whole(assembler.add("t", payload(ID, 1, (count - 1) * 4096, LS, block), 1.0))
        assert one.length == count * 4096
        assert all(chunk == block for chunk in one.chunks())
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
    db.close()


def test_a_payload_that_is_larger_than_memory(db: sqlite3.Connection) -> None:
    assembler = Assembler(db, memory=4000)
    parts = cut(ID, 1, bytes(30_000), 10_000)
    for one in parts[:2]:
        assert add(assembler, one) == []
        assert assembler.memory_bytes <= 4000
    assert whole(add(assembler, parts[2])).length == 30_000


def test_a_message_has_only_so_many_pieces_in_memory(db: sqlite3.Connection) -> None:
    assembler = Assembler(db)
    parts = fragments(4100)
    add(assembler, *parts[:4096])
    assert db.execute("SELECT count(*) FROM assembly_piece").fetchone() == (0,)
    add(assembler, *parts[4096:])
    assert db.execute("SELECT count(*) FROM assembly_piece").fetchone() == (4097,)


@pytest.mark.parametrize("memory", [3000, 1 << 20])
def test_one_piece_takes_the_place_of_those_it_has_all_bytes_of(db: sqlite3.Connection, memory: int) -> None:
    assembler = Assembler(db, memory=memory)
    add(assembler, *(payload(ID, 1, k, S, TEXT[k : k + 1]) for k in range(1, 900, 2)))
    add(assembler, payload(ID, 1, 0, S, TEXT[:899]))
    assert assembler.held_bytes == 900 + 64 * 3
    # Also when it brings nothing new: or it would be compared with each of them as often as it came.
    assert add(assembler, payload(ID, 1, 0, S, TEXT[:900])) == []
    assert assembler.counts.duplicates == 1
    assert assembler.held_bytes == 900 + 64 * 2
    assert whole(add(assembler, payload(ID, 1, 890, LS, TEXT[890:]))).read() == TEXT
    assembler.flush()
    assert (assembler.memory_bytes, assembler.held_bytes) == (0, 0)


# -- the store ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["", None])
def test_only_the_caller_commits(tmp_path: Path, isolation: Any) -> None:
    db = sqlite3.connect(tmp_path / "a.db", isolation_level=isolation)
    watcher = sqlite3.connect(tmp_path / "a.db")
    assembler = Assembler(db, memory=2000)
    db.commit()
    parts = cut(ID, 1, TEXT, 100)
    add(assembler, *parts[:9])
    assembler.flush()
    assert watcher.execute("SELECT count(*) FROM assembly_piece").fetchone() == (0,)
    db.commit()
    assert watcher.execute("SELECT count(*) FROM assembly_piece").fetchone() == (9,)
    one = whole(add(assembler, parts[9]))
    assert one.read() == TEXT
    assembler.flush()
    assert watcher.execute("SELECT count(*) FROM assembly_piece").fetchone() == (9,)
    db.rollback()
    # Nothing has happened since.
    again = Assembler(db)
    assert (again.groups, again.held_bytes) == (1, 900 + 64 * 10)
    assert whole(add(again, parts[9])).read() == TEXT
    for connection in (db, watcher):
        connection.close()


def test_a_time_out_goes_on_over_a_restart(db: sqlite3.Connection) -> None:
    assembler = Assembler(db, timeout=10.0)
    add(assembler, *cut(ID, 1, TEXT, 500)[:1], now=1.0)
    assembler.flush()
    db.commit()
    again = Assembler(db, timeout=10.0)
    assert again.expire(10.0) == []
    assert problem(again.expire(11.0)).missing.segments == {1: ((500, None),)}
    # Reported, but not committed: it is reported again.
    db.rollback()
    assert problem(Assembler(db, timeout=10.0).expire(11.0)).reason == MQRC_INCOMPLETE_MSG


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
            # Unless the group was whole before the contradiction came.
            assert isinstance(first, WholeGroup) or first.kind not in ("incomplete", "late")
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
                assert seq in faulty | whole_ones
    db.close()
