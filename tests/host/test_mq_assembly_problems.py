"""The assembler: what it reports."""

import json
import random
import sqlite3

import pytest

from headwater_host.mq.CMQC import (
    MQRC_INCOMPLETE_GROUP,
    MQRC_INCOMPLETE_MSG,
    MQRC_INCONSISTENT_ENCODINGS,
    MQRC_MDE_ERROR,
    MQRC_MSG_FLAGS_ERROR,
    MQRC_MSG_SEQ_NUMBER_ERROR,
    MQRC_OFFSET_ERROR,
    MQRC_SEGMENT_LENGTH_ZERO,
)
from headwater_host.mq.reassembly.assembler import Assembler
from tests.host.mq_assembler import ID, OTHER, TEXT, add, problem, whole
from tests.host.mq_segments import LG, LS, G, S, cut, payload


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


def test_a_contradiction_behind_a_message_that_was_handed_out(db: sqlite3.Connection) -> None:
    parts = cut(ID, 1, b"abcdef", 3)
    assembler = Assembler(db)
    assert whole(add(assembler, *parts)).read() == b"abcdef"
    assert add(assembler, parts[0]) == add(assembler, parts[1]) == []
    # After a restart as well.
    assembler.flush()
    db.commit()
    assembler = Assembler(db)
    again = problem(add(assembler, payload(ID, 1, 3, LS, b"deX")))
    assert (again.kind, again.reason, again.seq, again.aside) == ("overlap", MQRC_OFFSET_ERROR, 1, False)
    assert problem(add(assembler, parts[0])).kind == "late"
    assert (assembler.counts.duplicates, assembler.counts.faulty, assembler.counts.late) == (0, 1, 1)


def test_what_an_earlier_version_has_finished_is_not_begun_again(db: sqlite3.Connection) -> None:
    """Its store has no checksums: what comes again cannot be compared, and is reported."""
    db.execute(
        "CREATE TABLE assembly_done (n INTEGER PRIMARY KEY, topic TEXT NOT NULL, group_id BLOB NOT NULL, "
        "seq INTEGER NOT NULL, last INTEGER NOT NULL, reason INTEGER NOT NULL, UNIQUE (topic, group_id, seq))"
    )
    db.execute("INSERT INTO assembly_done VALUES (1, 't', ?, 1, 0, 0), (2, 't', ?, 0, 2, 0)", (ID, OTHER))
    assembler = Assembler(db)
    for one in (cut(ID, 1, b"abcdef", 3)[0], payload(OTHER, 1, 0, G, b"one")):
        assert problem(add(assembler, one)).kind == "late"
    assert problem(add(assembler, payload(OTHER, 3, 0, G, b"three"))).kind == "behind last"
    assert assembler.groups == 0


def test_a_malformed_one_is_told_in_words(db: sqlite3.Connection) -> None:
    found = problem(Assembler(db).add("a/b", payload(ID, 1, 0, S, b"")[:15], 0))
    assert (
        str(found)
        == "a/b: malformed MQMDE: Encoding at offset 12: the MQMDE is truncated (2248 MQRC_MDE_ERROR)"
    )
