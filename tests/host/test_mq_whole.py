"""Whole messages and groups from a local queue: what waits until all of it is there, whatever order it comes in."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.ibmmq.header import MQMDE
from headwater_host.mq import CMQC, structures
from headwater_host.mq.descriptors import MD
from headwater_mq.manager import QueueManager
from headwater_mq.queue import Queue
from tests.host.mq_queue import (
    ALL,
    ALL_MSGS,
    ALL_SEGS,
    ALLOWED,
    COMPLETE,
    GROUP,
    GROUP_ID,
    LAST,
    LAST_SEG,
    LOGICAL,
    SEG,
    WARNING,
    empty,
    gmo2,
    md2,
    queue_manager,
    reason_of,
    segments,
    sync,
)
from tests.rows import each_row


def test_whole_messages(manager: QueueManager, queue: Queue) -> None:
    data = bytes(range(200))
    parts = segments(data, 30, GroupId=GROUP_ID, Format="MQSTR")
    random.Random("shuffled").shuffle(parts)
    for md, part in parts[:-1]:
        queue.put(part, md)
    for options in (COMPLETE, ALL_SEGS, ALL_MSGS, COMPLETE | LOGICAL):
        assert empty(queue, options)
    md, part = parts[-1]
    queue.put(part, md)
    # Twice the same counts once, and does not stay behind.
    md, part = parts[2]
    queue.put(part, md)
    got, gmo = md2(), gmo2(COMPLETE | CMQC.MQGMO_BROWSE_FIRST)
    assert queue.get(None, got, gmo) == data
    assert (got.Offset, got.MsgFlags, got.OriginalLength) == (0, 0, -1)
    assert (got.Format, got.GroupId) == (b"MQSTR   ", GROUP_ID)
    assert (gmo.SegmentStatus, gmo.GroupStatus) == (CMQC.MQSS_NOT_A_SEGMENT, CMQC.MQGS_NOT_IN_GROUP)
    truncated = reason_of(queue.get, 50, md2(), gmo2(COMPLETE), comp=WARNING)
    assert truncated == CMQC.MQRC_TRUNCATED_MSG_FAILED
    assert queue.get(None, md2(), gmo2(COMPLETE)) == data
    assert manager.statistics("Q")[0].depth == 0
    # A caller of version 1 is told of the GroupId only.
    for md, part in parts:
        queue.put(part, md)
    old = MD()
    found = queue.get(None, old, gmo2(COMPLETE))
    mde = structures.decode(MQMDE, found, big=False, ccsid=819)
    assert (mde["MsgFlags"], mde["GroupId"], mde["Format"]) == (0, GROUP_ID, "MQSTR   ")
    assert found[72:] == data


@each_row("how", [COMPLETE, ALL_SEGS, LOGICAL | COMPLETE, LOGICAL | ALL_MSGS])
def test_one_message_after_the_other_does_not_read_the_group_each_time(how: int, tmp_path: Path) -> None:
    """How much SQLite does for the second message does not depend on how many there are."""
    steps: list[int] = []
    for count in (20, 200):
        (folder := tmp_path / str(count)).mkdir()
        with queue_manager(folder, "Q") as manager, Queue(manager, "Q", ALL) as queue:
            for seq in range(1, count + 1):
                flags = LAST if seq == count else GROUP
                queue.put(b"x", md2(GroupId=GROUP_ID, MsgSeqNumber=seq, MsgFlags=flags), sync())
            manager.commit()
            queue.get(None, md2(), gmo2(how | CMQC.MQGMO_SYNCPOINT))
            steps.append(0)

            def step() -> int:
                steps[-1] += 1
                return 0

            manager.file.db.set_progress_handler(step, 1)
            queue.get(None, md2(), gmo2(how | CMQC.MQGMO_SYNCPOINT))
            manager.file.db.set_progress_handler(None, 1)
            manager.backout()
    assert 0 < steps[1] < 2 * steps[0], steps


def test_all_segments_and_all_messages(queue: Queue) -> None:
    two = segments(b"abcdef", 2, GroupId=GROUP_ID, MsgSeqNumber=2, flags=GROUP | LAST)
    queue.put(b"1", md2(GroupId=GROUP_ID, MsgFlags=GROUP))
    for md, part in two[1:]:
        queue.put(part, md)
    queue.put(b"whole", md2())
    # The group is not whole; its first message is; what is in no group always is.
    assert queue.get(None, md2(), gmo2(ALL_MSGS | CMQC.MQGMO_BROWSE_FIRST)) == b"whole"
    assert queue.get(None, md2(), gmo2(ALL_SEGS | CMQC.MQGMO_BROWSE_FIRST)) == b"1"
    queue.put(two[0][1], two[0][0])
    for options in (LOGICAL | ALL_MSGS, LOGICAL | ALL_MSGS | COMPLETE):
        begin = options | CMQC.MQGMO_BROWSE_FIRST
        expected = [b"1", b"abcdef"] if options & COMPLETE else [b"1", b"ab", b"cd", b"ef"]
        for data in [*expected, b"whole"]:
            assert queue.get(None, md2(), gmo2(begin)) == data
            begin = options | CMQC.MQGMO_BROWSE_NEXT
    # In the middle of the group it does not matter any more that it is not whole.
    for data in (b"1", b"ab", b"cd", b"ef", b"whole"):
        assert queue.get(None, md2(), gmo2(LOGICAL | ALL_MSGS)) == data


def test_segments_of_different_encoding_come_back_as_far_as_they_agree(tmp_path: Path) -> None:
    for field, reason in (
        ("CodedCharSetId", CMQC.MQRC_INCONSISTENT_CCSIDS),
        ("Encoding", CMQC.MQRC_INCONSISTENT_ENCODINGS),
    ):
        with queue_manager(tmp_path) as manager:
            if not manager.queues():
                manager.define("Q")
            with Queue(manager, "Q", ALL) as queue:
                for n, (md, part) in enumerate(segments(b"abcdef", 2, GroupId=GROUP_ID)):
                    md[field] = 273 if n == 2 else 546
                    queue.put(part, md)
                got = md2()
                assert reason_of(queue.get, None, got, gmo2(COMPLETE), comp=WARNING) == reason
                assert got.MsgFlags == SEG
                assert empty(queue, COMPLETE)
                assert queue.get(None, md2()) == b"ef"


@pytest.mark.parametrize("how", [COMPLETE, ALL_SEGS, ALL_MSGS, LOGICAL | COMPLETE])
def test_contradicting_segments_stay_where_they_are(how: int, manager: QueueManager, queue: Queue) -> None:
    """A get that passes them over changes nothing, in a unit of work or outside of one: others can get them."""
    for md, part in segments(b"abcdef", 2, GroupId=GROUP_ID):
        queue.put(part, md)
    queue.put(b"XX", md2(GroupId=GROUP_ID, Offset=1, MsgFlags=SEG))
    for md, part in segments(b"good", 4, GroupId=b"other"):
        queue.put(part, md)
    assert queue.get(None, md2(), gmo2(how | CMQC.MQGMO_BROWSE_FIRST)) == b"good"
    assert queue.get(None, md2(), gmo2(how | CMQC.MQGMO_SYNCPOINT)) == b"good"
    before = manager.file.db.total_changes
    assert empty(queue, how | CMQC.MQGMO_SYNCPOINT)
    assert empty(queue, how)
    assert manager.file.db.total_changes == before, "a get that gives nothing writes nothing"
    manager.backout()
    counted = manager.statistics("Q")[0]
    assert (counted.set_aside, counted.messages, counted.depth) == (0, 5, 5)
    got = [queue.get(None, md2(), gmo2()) for _ in range(5)]
    assert got == [b"ab", b"cd", b"ef", b"XX", b"good"]


@pytest.mark.parametrize(
    "how", [COMPLETE, ALL_SEGS, ALL_MSGS, ALL_MSGS | COMPLETE, LOGICAL, LOGICAL | COMPLETE]
)
def test_a_group_id_alone_makes_no_group(how: int, manager: QueueManager, queue: Queue) -> None:
    """A put returns the GroupId that it made for MQMF_SEGMENTATION_ALLOWED: a descriptor used again has it."""
    md = md2(MsgFlags=ALLOWED)
    for data in (b"one", b"three", b"four"):
        queue.put(data, md)
    assert md.GroupId != CMQC.MQGI_NONE
    # What has parts stays apart from them.
    for part, data in segments(b"abcd", 2, GroupId=md.GroupId):
        queue.put(data, part)
    got = [queue.get(None, md2(), gmo2(how)) for _ in range(3)]
    assert got == [b"one", b"three", b"four"]
    assert queue.get(None, md2(), gmo2(how | COMPLETE)) == b"abcd"
    assert empty(queue)
    assert manager.statistics("Q")[0].set_aside == 0


def test_same_data_with_other_flags_are_no_duplicate(queue: Queue) -> None:
    """In logical order a segment goes with all that are the same, and with no other."""
    for flags in (SEG, SEG, SEG | LAST_SEG):
        queue.put(b"ab", md2(GroupId=GROUP_ID, MsgFlags=flags))
    assert queue.get(None, md2(), gmo2(LOGICAL)) == b"ab"
    md = md2()
    assert reason_of(queue.get, None, md, comp=WARNING) == CMQC.MQRC_INCOMPLETE_MSG
    assert md.MsgFlags == SEG | LAST_SEG
    assert empty(queue)


def test_the_message_under_the_cursor_must_begin_a_message(queue: Queue) -> None:
    for md, part in segments(b"abcd", 2, GroupId=GROUP_ID):
        queue.put(part, md)
    under = gmo2(COMPLETE | CMQC.MQGMO_MSG_UNDER_CURSOR)
    assert queue.browse(None, md2()) == b"ab"
    assert queue.browse(None, md2()) == b"cd"
    assert reason_of(queue.get, None, md2(), under) == CMQC.MQRC_INVALID_MSG_UNDER_CURSOR
    queue.browse(first=True)
    assert queue.get(None, md2(), under) == b"abcd"


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    messages=st.lists(st.binary(max_size=60), min_size=1, max_size=4),
    size=st.integers(1, 40),
    seed=st.integers(0, 1000),
    lost=st.integers(-3, 30),
    how=st.sampled_from([ALL_MSGS | COMPLETE, ALL_MSGS, ALL_SEGS, COMPLETE, 0]),
)
def test_any_order_of_arrival(
    tmp_path_factory: pytest.TempPathFactory, messages: list[bytes], size: int, seed: int, lost: int, how: int
) -> None:
    """A group in segments, shuffled, some twice, perhaps one lost: what comes back is exact, or nothing does."""
    chance = random.Random(seed)
    physical = []
    for number, data in enumerate(messages, 1):
        flags = GROUP | (LAST if number == len(messages) else 0)
        fields = {"GroupId": GROUP_ID, "MsgSeqNumber": number}
        if len(data) <= size:
            physical.append((md2(MsgFlags=flags, **fields), data))
        else:
            physical.extend(segments(data, size, flags=flags, **fields))
    missing = physical.pop(lost) if 0 <= lost < len(physical) else None
    sent = physical + chance.sample(physical, len(physical) // 2)
    chance.shuffle(sent)
    with queue_manager(tmp_path_factory.mktemp("any")) as manager:
        manager.define("Q", MaxQDepth=1000)
        with Queue(manager, "Q", ALL) as queue:
            for md, data in sent:
                queue.put(data, md.copy(), sync())
            manager.commit()
            if missing is not None:
                assert empty(queue, LOGICAL | ALL_MSGS | CMQC.MQGMO_SYNCPOINT)
            else:
                count = len(messages) if how & COMPLETE else len(physical)
                options = LOGICAL | how | CMQC.MQGMO_SYNCPOINT
                got = [queue.get(None, md2(), gmo2(options)) for _ in range(count)]
                assert b"".join(got) == b"".join(messages)
                assert got == messages or not how & COMPLETE
                assert empty(queue, 0), "nothing stays behind"
            manager.commit()


@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.binary(max_size=700), most=st.integers(16, 150), options=st.sampled_from([0, LOGICAL]))
def test_what_the_queue_manager_cuts_it_puts_together(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, most: int, options: int
) -> None:
    with queue_manager(tmp_path_factory.mktemp("cut")) as manager:
        manager.define("Q", MaxMsgLength=most)
        with Queue(manager, "Q", ALL) as queue:
            queue.put(data, md2(MsgFlags=ALLOWED), sync())
            manager.commit()
            assert manager.statistics("Q")[0].depth == max(1, -(-len(data) // (most // 16 * 16))) or (
                len(data) <= most
            )
            md = md2()
            assert queue.get(None, md, gmo2(COMPLETE | options)) == data
            assert md.MsgFlags == ALLOWED
            assert empty(queue)


def test_a_group_that_contradicts_itself(manager: QueueManager, queue: Queue) -> None:
    """Two last messages: of no harm to who takes messages, and never whole."""
    for number in (1, 2, 3):
        last = LAST if number > 1 else 0
        for group_id in (GROUP_ID, b"other"):
            queue.put(b"%d" % number, md2(GroupId=group_id, MsgSeqNumber=number, MsgFlags=GROUP | last))
    wanted = md2(GroupId=GROUP_ID)
    by_group = CMQC.MQMO_MATCH_GROUP_ID
    assert queue.get(None, wanted, gmo2(COMPLETE, MatchOptions=by_group)) == b"1"
    assert empty(queue, ALL_MSGS)
    assert manager.statistics("Q")[0].set_aside == 0
    assert [queue.get(None, md2(), gmo2()) for _ in range(5)] == [b"1", b"2", b"2", b"3", b"3"]
