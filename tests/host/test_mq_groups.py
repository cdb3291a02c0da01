"""Groups and segments on a local queue: logical order of puts and gets, whole messages, groups that are all there."""

from pathlib import Path

import pytest

from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import MD
from headwater_mq.manager import QueueManager
from headwater_mq.queue import Queue
from tests.host.mq_queue import (
    ALL,
    ALL_MSGS,
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
    ordered,
    queue_manager,
    reason_of,
    sync,
)


def fields(md: MD) -> tuple[int, int, int]:
    return md.MsgSeqNumber, md.Offset, md.MsgFlags


def test_logical_order_numbers_a_group(queue: Queue) -> None:
    flags = [GROUP, GROUP | SEG, GROUP | SEG, LAST_SEG | GROUP, LAST | SEG, LAST | LAST_SEG]
    wanted = [
        (1, 0, GROUP),
        (2, 0, GROUP | SEG),
        (2, 3, GROUP | SEG),
        (2, 6, GROUP | SEG | LAST_SEG),
        (3, 0, GROUP | LAST | SEG),
        (3, 3, GROUP | LAST | SEG | LAST_SEG),
    ]
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


def test_reports_on_segments_go_on_where_the_segments_did(queue: Queue) -> None:
    for offset, flags in ((0, SEG), (100, SEG), (200, LAST_SEG)):
        md = md2(MsgType=CMQC.MQMT_REPORT, MsgFlags=flags, OriginalLength=100)
        queue.put(b"first bytes", md, ordered())
        assert (md.Offset, md.OriginalLength) == (offset, 100)
    for offset in (0, 100, 200):
        md = md2()
        assert queue.get(None, md, gmo2(LOGICAL)) == b"first bytes"
        assert md.Offset == offset


def test_logical_order_ends_where_a_segment_may_end(queue: Queue) -> None:
    for length, fits in ((999_999_988, True), (999_999_989, False), ((1 << 31) - 1, False)):
        report = {"MsgType": CMQC.MQMT_REPORT, "OriginalLength": length}
        md = md2(MsgFlags=SEG, **report)
        queue.put(b"first bytes", md, ordered())
        if fits:
            md = md2(MsgFlags=SEG, **report)
            queue.put(b"first bytes", md, ordered())
            assert md.Offset == length
        call = queue.put, b"first bytes", md2(MsgFlags=LAST_SEG, **report), ordered()
        assert reason_of(*call) == CMQC.MQRC_OFFSET_ERROR
        assert reason_of(queue.close, comp=WARNING) == CMQC.MQRC_INCOMPLETE_MSG
        queue.open("Q", ALL)


def test_put1_has_no_order(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q") as manager:
        assert reason_of(manager.put1, "Q", b"x", md2(), ordered()) == CMQC.MQRC_OPTIONS_ERROR


def test_logical_order_of_what_came_in_another(queue: Queue) -> None:
    """A group stands where its first message in the queue does; it begins with message 1."""
    y, z, w = b"y" * 24, b"z" * 24, b"w" * 24
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
def test_logical_order_of_what_is_in_no_group(flags: int, queue: Queue) -> None:
    """Its MsgSeqNumber is 1, whatever the caller says, and no place in a group."""
    for options in (LOGICAL, LOGICAL | COMPLETE, LOGICAL | ALL_MSGS):
        for seq in (7, 5):
            queue.put(b"%d" % seq, md2(GroupId=bytes([seq]) * 24, MsgSeqNumber=seq, MsgFlags=flags))
        for expected in (7, 5):
            md = md2()
            assert queue.get(None, md, gmo2(options)) == b"%d" % expected
            assert (md.GroupId, md.MsgSeqNumber) == (bytes([expected]) * 24, 1)
        assert empty(queue, options)


def test_statuses_and_getting_until_the_group_ends(queue: Queue) -> None:
    for flags in (GROUP, GROUP | SEG, GROUP | LAST_SEG, LAST, 0):
        queue.put(b"x", md2(MsgFlags=flags), ordered())
    statuses = ""
    for _ in range(5):
        gmo = gmo2(LOGICAL)
        queue.get(None, md2(), gmo)
        statuses += chr(gmo.GroupStatus) + chr(gmo.SegmentStatus)
        assert gmo.ResolvedQName == b"Q".ljust(48)
    assert statuses == "G GSGLL   "


def test_gets_that_do_not_fit_where_the_handle_is(queue: Queue) -> None:
    for flags in (GROUP, GROUP, LAST):
        queue.put(b"x", md2(MsgFlags=flags), ordered())
    queue.put(b"alone", md2(CorrelId=b"c"))
    match = CMQC.MQMO_MATCH_CORREL_ID
    # Before a group has begun there may be such a message, or come.
    second = gmo2(LOGICAL, MatchOptions=CMQC.MQMO_MATCH_MSG_SEQ_NUMBER)
    assert reason_of(queue.get, None, md2(MsgSeqNumber=2), second) == CMQC.MQRC_NO_MSG_AVAILABLE
    first = md2(MsgSeqNumber=1, CorrelId=b"d")
    by_both = gmo2(LOGICAL, MatchOptions=CMQC.MQMO_MATCH_MSG_SEQ_NUMBER | match)
    queue.put(b"seventh", md2(MsgFlags=LAST_SEG, MsgSeqNumber=7, CorrelId=b"d"))
    assert queue.get(None, first, by_both) == b"seventh"
    queue.put(b"ninth", md2(MsgSeqNumber=9, CorrelId=b"d"))
    assert queue.get(None, md2(MsgSeqNumber=1, CorrelId=b"d"), by_both) == b"ninth"
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


def test_a_backout_takes_the_handle_back(manager: QueueManager, queue: Queue) -> None:
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


def test_a_backout_leaves_what_was_outside_of_the_unit_of_work(manager: QueueManager, queue: Queue) -> None:
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
