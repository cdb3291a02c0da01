"""The assembler: what it hands out, and what it knows after a restart."""

import io
import random
import sqlite3
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from headwater.ibmmq.header import BIG, EBCDIC
from headwater_host.mq.CMQC import MQRC_INCOMPLETE_MSG, MQRC_MSG_SEQ_NUMBER_ERROR
from headwater_host.mq.reassembly.assembler import Assembler
from headwater_host.mq.reassembly.outcomes import GoneError, Whole, WholeGroup
from headwater_host.mq.reassembly.verdicts import Segment, judge
from tests.host.mq_assembler import ID, OTHER, TEXT, add, problem, whole
from tests.host.mq_segments import LG, LS, G, S, cut, payload
from tests.rows import each_row

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
            came = assembler.add("t", one, 1.0)
            found += [got.read() if isinstance(got, Whole) else problem([got]).kind for got in came]
        assert found[0] == TEXT[:10]
        # A part of a piece cannot be compared with what was handed out.
        assert set(found[1:]) <= {"late"}


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
    assert (behind.kind, behind.reason) == ("behind last", MQRC_MSG_SEQ_NUMBER_ERROR)


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


# -- the store ---------------------------------------------------------------------------------------------------------


@each_row("isolation", ["", None])
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
