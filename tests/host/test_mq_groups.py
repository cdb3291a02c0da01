"""Groups and segments on a local queue: logical order of puts and gets, whole messages, groups that are all there."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.ibmmq.layouts import MQMDE
from headwater_host.ibmmq import CMQC, structures
from headwater_host.ibmmq.queue.descriptors import MD, PMO
from headwater_host.ibmmq.queue.queue import Queue
from tests.host.mq_queue import (
    ALL,
    ALLOWED,
    GROUP,
    GROUP_ID,
    LAST,
    LAST_SEG,
    SEG,
    empty,
    gmo2,
    md2,
    queue_manager,
    reason_of,
    segments,
    sync,
)

ORDERED = CMQC.MQPMO_LOGICAL_ORDER
LOGICAL = CMQC.MQGMO_LOGICAL_ORDER
COMPLETE = CMQC.MQGMO_COMPLETE_MSG
ALL_MSGS = CMQC.MQGMO_ALL_MSGS_AVAILABLE
ALL_SEGS = CMQC.MQGMO_ALL_SEGMENTS_AVAILABLE
WARNING = CMQC.MQCC_WARNING


def ordered(options: int = 0) -> PMO:
    return PMO(Options=ORDERED | options)


def fields(md: MD) -> tuple[int, int, int]:
    return md.MsgSeqNumber, md.Offset, md.MsgFlags


def test_logical_order_numbers_a_group(tmp_path: Path) -> None:
    flags = [GROUP, GROUP | SEG, GROUP | SEG, LAST_SEG | GROUP, LAST | SEG, LAST | LAST_SEG]
    wanted = [
        (1, 0, GROUP),
        (2, 0, GROUP | SEG),
        (2, 3, GROUP | SEG),
        (2, 6, GROUP | SEG | LAST_SEG),
        (3, 0, GROUP | LAST | SEG),
        (3, 3, GROUP | LAST | SEG | LAST_SEG),
    ]
    with queue_manager(tmp_path, "Q") as manager, Queue(manager, "Q", ALL) as queue:
        groups = []
        for _ in range(2):
            ids = set()
            for flag, numbers in zip(flags, wanted, strict=True):
                # What the caller says of these does not matter.
                md = md2(MsgFlags=flag, MsgSeqNumber=-5, Offset=-9, GroupId=GROUP_ID)
                queue.put(b"abc", md, ordered())
                assert fields(md) == numbers
                ids.add(md.GroupId)
            assert len(ids) == 1
            groups.append(ids.pop())
        assert GROUP_ID not in groups
        assert groups[0] != groups[1]
        # One after the other, and then something that is in no group.
        alone = md2(MsgSeqNumber=7)
        queue.put(b"alone", alone, ordered())
        assert (alone.GroupId, *fields(alone)) == (CMQC.MQGI_NONE, 1, 0, 0)
        seen = []
        for _ in range(13):
            md = md2()
            queue.get(None, md, gmo2(LOGICAL))
            seen.append((md.GroupId, *fields(md)))
        expected = [(group, *numbers) for group in groups for numbers in wanted]
        assert seen == [*expected, (CMQC.MQGI_NONE, 1, 0, 0)]


def test_a_put_that_does_not_fit_where_the_handle_is(tmp_path: Path) -> None:
    message, group = CMQC.MQRC_INCOMPLETE_MSG, CMQC.MQRC_INCOMPLETE_GROUP
    for first, then, reason in (
        (GROUP, 0, group),
        (GROUP, SEG, group),
        (GROUP | SEG, GROUP, message),
        (GROUP | SEG, GROUP | LAST | SEG, message),
        (GROUP | SEG, SEG, message),
        (SEG, 0, message),
        (SEG, GROUP | SEG, message),
    ):
        with queue_manager(tmp_path) as manager:
            if not manager.queues():
                manager.define("Q", MaxQDepth=1000)
            queue = Queue(manager, "Q", ALL)
            queue.put(b"x", md2(MsgFlags=first), ordered())
            assert reason_of(queue.put, b"x", md2(MsgFlags=then), ordered()) == reason
            # The handle is where it was.
            md = md2(MsgFlags=first)
            queue.put(b"x", md, ordered())
            assert (md.MsgSeqNumber, md.Offset) == ((1, 1) if first & SEG else (2, 0))
            transient = md2(MsgFlags=first, Persistence=0)
            assert reason_of(queue.put, b"x", transient, ordered()) == CMQC.MQRC_INCONSISTENT_PERSISTENCE
            in_unit = ordered(CMQC.MQPMO_SYNCPOINT)
            assert reason_of(queue.put, b"x", md2(MsgFlags=first), in_unit) == CMQC.MQRC_INCONSISTENT_UOW
            # Out of order it is put, with a warning.
            md = md2(MsgFlags=GROUP, GroupId=GROUP_ID, MsgSeqNumber=8)
            assert reason_of(queue.put, b"y", md, comp=WARNING) == (message if first & SEG else group)
            # From there the handle goes on, which is how a group is taken up again after a restart.
            md = md2(MsgFlags=LAST)
            queue.put(b"z", md, ordered())
            assert (md.GroupId, md.MsgSeqNumber) == (GROUP_ID, 9)
            queue.close()


def test_closing_in_the_middle_is_a_warning(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q") as manager:
        for flags, reason in (
            (GROUP, CMQC.MQRC_INCOMPLETE_GROUP),
            (GROUP | SEG, CMQC.MQRC_INCOMPLETE_MSG),
            (LAST_SEG, 0),
            (LAST, 0),
        ):
            for what in ("put", "get"):
                queue = Queue(manager, "Q", ALL)
                if what == "put":
                    queue.put(b"x", md2(MsgFlags=flags), ordered())
                else:
                    assert queue.get(None, md2(), gmo2(LOGICAL)) == b"x"
                if reason:
                    assert reason_of(queue.close, comp=WARNING) == reason
                queue.close()
        assert manager.statistics("Q")[0].open_for_input == 0


def test_reports_on_segments_go_on_where_the_segments_did(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q") as manager, Queue(manager, "Q", ALL) as queue:
        for offset, flags in ((0, SEG), (100, SEG), (200, LAST_SEG)):
            md = md2(MsgType=CMQC.MQMT_REPORT, MsgFlags=flags, OriginalLength=100)
            queue.put(b"first bytes", md, ordered())
            assert (md.Offset, md.OriginalLength) == (offset, 100)
        for offset in (0, 100, 200):
            md = md2()
            assert queue.get(None, md, gmo2(LOGICAL)) == b"first bytes"
            assert md.Offset == offset


def test_logical_order_ends_at_the_largest_offset(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q") as manager, Queue(manager, "Q", ALL) as queue:
        for length, beyond in ((999_999_999, 2), ((1 << 31) - 1, 1)):
            report = {"MsgType": CMQC.MQMT_REPORT, "OriginalLength": length}
            for offset in (0, length)[:beyond]:
                md = md2(MsgFlags=SEG, **report)
                queue.put(b"first bytes", md, ordered())
                assert md.Offset == offset
            call = queue.put, b"first bytes", md2(MsgFlags=LAST_SEG, **report), ordered()
            assert reason_of(*call) == CMQC.MQRC_OFFSET_ERROR
            assert reason_of(queue.close, comp=WARNING) == CMQC.MQRC_INCOMPLETE_MSG
            queue.open("Q", ALL)


def test_put1_has_no_order(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q") as manager:
        assert reason_of(manager.put1, "Q", b"x", md2(), ordered()) == CMQC.MQRC_OPTIONS_ERROR


def test_logical_order_of_what_came_in_another(tmp_path: Path) -> None:
    """A group stands where its first message in the queue does; it begins with message 1."""
    y, z, w = b"y" * 24, b"z" * 24, b"w" * 24
    with queue_manager(tmp_path, "Q") as manager, Queue(manager, "Q", ALL) as queue:
        for data, md in (
            (b"W2", md2(GroupId=w, MsgSeqNumber=2, MsgFlags=GROUP | LAST)),
            (b"A", md2()),
            (b"Y1", md2(GroupId=y, MsgFlags=GROUP)),
            (b"Z2", md2(GroupId=z, MsgSeqNumber=2, MsgFlags=GROUP | LAST)),
            (b"Y2", md2(GroupId=y, MsgSeqNumber=2, MsgFlags=GROUP)),
            (b"Y3b", md2(GroupId=y, MsgSeqNumber=3, Offset=3, MsgFlags=GROUP | LAST | SEG | LAST_SEG)),
            (b"Y3a", md2(GroupId=y, MsgSeqNumber=3, MsgFlags=GROUP | LAST | SEG)),
            (b"Z1", md2(GroupId=z, MsgFlags=GROUP)),
            (b"B", md2()),
            # No first message.
            (b"?2", md2(GroupId=b"?" * 24, MsgSeqNumber=2, MsgFlags=GROUP)),
        ):
            queue.put(data, md)
        expected = [b"A", b"Y1", b"Y2", b"Y3a", b"Y3b", b"Z1", b"Z2", b"B"]
        options = CMQC.MQGMO_BROWSE_FIRST
        for data in expected:
            assert queue.get(None, md2(), gmo2(options | LOGICAL)) == data
            # The cursor is where the message is, not where the group is.
            assert queue.get(None, md2(), gmo2(CMQC.MQGMO_BROWSE_MSG_UNDER_CURSOR)) == data
            options = CMQC.MQGMO_BROWSE_NEXT
        assert empty(queue, options | LOGICAL)
        assert reason_of(queue.browse) == CMQC.MQRC_INCONSISTENT_BROWSE
        queue.browse(first=True)
        next_logical = gmo2(CMQC.MQGMO_BROWSE_NEXT | LOGICAL)
        assert reason_of(queue.get, None, md2(), next_logical) == CMQC.MQRC_INCONSISTENT_BROWSE
        # Message 1 of W comes last, and W stands first.
        queue.put(b"W1", md2(GroupId=w, MsgFlags=GROUP))
        for data in [b"W1", b"W2", *expected]:
            assert queue.get(None, md2(), gmo2(LOGICAL)) == data
        assert empty(queue, LOGICAL)
        assert queue.get(None, md2()) == b"?2"


@pytest.mark.parametrize("flags", [ALLOWED, LAST_SEG])
def test_logical_order_of_what_is_in_no_group(flags: int, tmp_path: Path) -> None:
    """It keeps its MsgSeqNumber, which is no place in a group."""
    with queue_manager(tmp_path, "Q") as manager, Queue(manager, "Q", ALL) as queue:
        for options in (LOGICAL, LOGICAL | COMPLETE, LOGICAL | ALL_MSGS):
            for seq in (7, 5):
                queue.put(b"%d" % seq, md2(GroupId=GROUP_ID, MsgSeqNumber=seq, MsgFlags=flags))
            for expected in (7, 5):
                md = md2()
                assert queue.get(None, md, gmo2(options)) == b"%d" % expected
                assert md.MsgSeqNumber == expected
            assert empty(queue, options)


def test_statuses_and_getting_until_the_group_ends(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q") as manager, Queue(manager, "Q", ALL) as queue:
        for flags in (GROUP, GROUP | SEG, GROUP | LAST_SEG, LAST, 0):
            queue.put(b"x", md2(MsgFlags=flags), ordered())
        statuses = ""
        for _ in range(5):
            gmo = gmo2(LOGICAL)
            queue.get(None, md2(), gmo)
            statuses += chr(gmo.GroupStatus) + chr(gmo.SegmentStatus)
            assert gmo.ResolvedQName == b"Q".ljust(48)
        assert statuses == "G GSGLL   "


def test_gets_that_do_not_fit_where_the_handle_is(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q") as manager, Queue(manager, "Q", ALL) as queue:
        for flags in (GROUP, GROUP, LAST):
            queue.put(b"x", md2(MsgFlags=flags), ordered())
        queue.put(b"alone", md2(CorrelId=b"c"))
        match = CMQC.MQMO_MATCH_CORREL_ID
        # Before a group has begun there may be such a message, or come.
        second = gmo2(LOGICAL, MatchOptions=CMQC.MQMO_MATCH_MSG_SEQ_NUMBER)
        assert reason_of(queue.get, None, md2(MsgSeqNumber=2), second) == CMQC.MQRC_NO_MSG_AVAILABLE
        queue.put(b"seventh", md2(MsgFlags=LAST_SEG, MsgSeqNumber=7))
        assert queue.get(None, md2(MsgSeqNumber=7), second) == b"seventh"
        queue.put(b"ninth", md2(MsgSeqNumber=9))
        assert queue.get(None, md2(MsgSeqNumber=9), second) == b"ninth"
        queue.get(None, md2(), gmo2(LOGICAL))
        other = gmo2(LOGICAL, MatchOptions=match)
        assert reason_of(queue.get, None, md2(CorrelId=b"c"), other) == CMQC.MQRC_MATCH_OPTIONS_ERROR
        assert queue.get(None, md2(MsgSeqNumber=2), gmo2(LOGICAL | CMQC.MQGMO_BROWSE_FIRST)) == b"alone"
        in_unit = gmo2(LOGICAL | CMQC.MQGMO_SYNCPOINT)
        assert reason_of(queue.get, None, md2(), in_unit) == CMQC.MQRC_INCONSISTENT_UOW
        assert queue.get(None, md2(MsgSeqNumber=2), second) == b"x"
        # Out of order it is got, with a warning.
        out = gmo2(MatchOptions=match)
        assert reason_of(queue.get, None, md2(CorrelId=b"c"), out, comp=WARNING) == CMQC.MQRC_INCOMPLETE_GROUP
        assert queue.get(None, md2()) == b"x"
        assert empty(queue)


def test_whole_messages(tmp_path: Path) -> None:
    data = bytes(range(200))
    with queue_manager(tmp_path, "Q") as manager, Queue(manager, "Q", ALL) as queue:
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


@pytest.mark.parametrize("how", [COMPLETE, ALL_SEGS, LOGICAL | COMPLETE, LOGICAL | ALL_MSGS])
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


def test_all_segments_and_all_messages(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q") as manager, Queue(manager, "Q", ALL) as queue:
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


def test_contradicting_segments_are_set_aside(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q") as manager, Queue(manager, "Q", ALL) as queue:
        for md, part in segments(b"abcdef", 2, GroupId=GROUP_ID):
            queue.put(part, md)
        queue.put(b"XX", md2(GroupId=GROUP_ID, Offset=1, MsgFlags=SEG))
        for md, part in segments(b"good", 2, GroupId=b"other"):
            queue.put(part, md)
        assert queue.get(None, md2(), gmo2(COMPLETE | CMQC.MQGMO_BROWSE_FIRST)) == b"good"
        assert manager.statistics("Q")[0].set_aside == 0, "a browse changes nothing"
        assert queue.get(None, md2(), gmo2(COMPLETE)) == b"good"
        counted = manager.statistics("Q")[0]
        assert (counted.set_aside, counted.messages, counted.depth) == (4, 0, 4)
        aside = list(manager.set_aside("Q"))
        assert {reason for reason, _, _ in aside} == {CMQC.MQRC_OFFSET_ERROR}
        assert sorted(data for _, _, data in aside) == [b"XX", b"ab", b"cd", b"ef"]
        assert empty(queue)
        # Nothing is lost: they can be got one by one.
        assert manager.give_back("Q") == 4
        assert sorted(queue.get(None, md2()) for _ in range(4)) == [b"XX", b"ab", b"cd", b"ef"]


@pytest.mark.parametrize(
    "how", [COMPLETE, ALL_SEGS, ALL_MSGS, ALL_MSGS | COMPLETE, LOGICAL, LOGICAL | COMPLETE]
)
def test_a_group_id_alone_makes_no_group(how: int, tmp_path: Path) -> None:
    """A put returns the GroupId that it made for MQMF_SEGMENTATION_ALLOWED: a descriptor used again has it."""
    with queue_manager(tmp_path, "Q") as manager, Queue(manager, "Q", ALL) as queue:
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


def test_same_data_with_other_flags_are_no_duplicate(tmp_path: Path) -> None:
    """In logical order a segment goes with all that are the same, and with no other."""
    with queue_manager(tmp_path, "Q") as manager, Queue(manager, "Q", ALL) as queue:
        for flags in (SEG, SEG, SEG | LAST_SEG):
            queue.put(b"ab", md2(GroupId=GROUP_ID, MsgFlags=flags))
        assert queue.get(None, md2(), gmo2(LOGICAL)) == b"ab"
        md = md2()
        assert reason_of(queue.get, None, md, comp=WARNING) == CMQC.MQRC_INCOMPLETE_MSG
        assert md.MsgFlags == SEG | LAST_SEG
        assert empty(queue)


def test_the_message_under_the_cursor_must_begin_a_message(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q") as manager, Queue(manager, "Q", ALL) as queue:
        for md, part in segments(b"abcd", 2, GroupId=GROUP_ID):
            queue.put(part, md)
        under = gmo2(COMPLETE | CMQC.MQGMO_MSG_UNDER_CURSOR)
        assert queue.browse(None, md2()) == b"ab"
        assert queue.browse(None, md2()) == b"cd"
        assert reason_of(queue.get, None, md2(), under) == CMQC.MQRC_INVALID_MSG_UNDER_CURSOR
        queue.browse(first=True)
        assert queue.get(None, md2(), under) == b"abcd"


def test_a_backout_takes_the_handle_back(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q") as manager, Queue(manager, "Q", ALL) as queue:
        options = CMQC.MQPMO_SYNCPOINT
        first = md2(MsgFlags=GROUP)
        queue.put(b"1", first, ordered(options))
        manager.commit()
        queue.put(b"2", md2(MsgFlags=GROUP), ordered(options))
        queue.put(b"3", md2(MsgFlags=GROUP), ordered(options))
        manager.backout()
        again = md2(MsgFlags=LAST)
        queue.put(b"2", again, ordered(options))
        assert (again.GroupId, again.MsgSeqNumber) == (first.GroupId, 2)
        manager.commit()
        gmo = gmo2(LOGICAL | CMQC.MQGMO_SYNCPOINT)
        assert queue.get(None, md2(), gmo) == b"1"
        manager.commit()
        assert queue.get(None, md2(), gmo) == b"2"
        manager.backout()
        assert queue.get(None, md2(), gmo) == b"2"
        manager.commit()
        assert empty(queue)


def test_a_backout_leaves_what_was_outside_of_the_unit_of_work(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q") as manager, Queue(manager, "Q", ALL) as queue:
        queue.put(b"urgent", md2(Priority=9))
        queue.put(b"1", md2(MsgFlags=GROUP), ordered())
        # Only a get is in the unit of work: puts in logical order go on beside it.
        assert queue.get(None, md2(), gmo2(CMQC.MQGMO_SYNCPOINT)) == b"urgent"
        queue.put(b"2", md2(MsgFlags=GROUP), ordered())
        manager.backout()
        third = md2(MsgFlags=LAST)
        queue.put(b"3", third, ordered())
        assert third.MsgSeqNumber == 3
        # Only a put is: gets in logical order go on.
        assert queue.get() == b"urgent"
        assert queue.get(None, md2(), gmo2(LOGICAL)) == b"1"
        queue.put(b"other", md2(), sync())
        assert queue.get(None, md2(), gmo2(LOGICAL)) == b"2"
        manager.backout()
        assert queue.get(None, md2(), gmo2(LOGICAL)) == b"3"
        assert empty(queue)


def test_a_backout_does_not_take_back_a_queue_that_was_closed(tmp_path: Path) -> None:
    options = CMQC.MQPMO_SYNCPOINT
    with queue_manager(tmp_path, "Q") as manager:
        queue = Queue(manager, "Q", ALL)
        queue.put(b"1", md2(MsgFlags=GROUP), ordered(options))
        manager.commit()
        queue.put(b"2", md2(MsgFlags=GROUP), ordered(options))
        assert reason_of(queue.close, comp=WARNING) == CMQC.MQRC_INCOMPLETE_GROUP
        queue.open("Q", ALL)
        manager.backout()
        another = md2(MsgFlags=LAST)
        queue.put(b"1", another, ordered(options))
        assert another.MsgSeqNumber == 1
        queue.close()


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    messages=st.lists(st.binary(max_size=60), min_size=1, max_size=4),
    size=st.integers(1, 40),
    seed=st.integers(0, 1000),
    lost=st.integers(-3, 30),
    how=st.sampled_from([ALL_MSGS | COMPLETE, ALL_MSGS, ALL_SEGS, COMPLETE, 0]),
)
def test_any_order_of_arrival(
    tmp_path_factory: pytest.TempPathFactory,
    messages: list[bytes],
    size: int,
    seed: int,
    lost: int,
    how: int,
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


def test_a_group_that_contradicts_itself(tmp_path: Path) -> None:
    """Two last messages: of no harm to who takes messages, and never whole."""
    with queue_manager(tmp_path, "Q") as manager, Queue(manager, "Q", ALL) as queue:
        for number in (1, 2, 3):
            last = LAST if number > 1 else 0
            for group_id in (GROUP_ID, b"other"):
                queue.put(b"%d" % number, md2(GroupId=group_id, MsgSeqNumber=number, MsgFlags=GROUP | last))
        wanted = md2(GroupId=GROUP_ID)
        by_group = CMQC.MQMO_MATCH_GROUP_ID
        assert queue.get(None, wanted, gmo2(COMPLETE, MatchOptions=by_group)) == b"1"
        assert manager.statistics("Q")[0].set_aside == 0
        assert empty(queue, ALL_MSGS)
        aside = list(manager.set_aside("Q"))
        assert [data for _, _, data in aside] == [b"1", b"2", b"2", b"3", b"3"]
        assert {reason for reason, _, _ in aside} == {CMQC.MQRC_MSG_FLAGS_ERROR}
