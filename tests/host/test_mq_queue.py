"""Puts and gets on a local queue: order, match options, browse, truncation, expiry, waiting, limits."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headwater.ibmmq.header import MQMDE
from headwater_host.mq import CMQC, structures
from headwater_host.mq.descriptors import MD
from headwater_host.mq.errors import MQMIError
from headwater_mq.manager import QueueManager
from headwater_mq.options import GMO, OD, PMO
from headwater_mq.queue import Queue
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
)
from tests.host.set_clocks import SetClocks
from tests.rows import each_row

MS = 1_000_000

CASES = json.loads((Path(__file__).parents[1] / "vectors" / "mqput.json").read_text(encoding="utf-8"))[
    "cases"
]
PUTS = [case for case in CASES if case["kind"] == "MQPUT"]


@each_row("case", PUTS, ids=[case["name"] for case in PUTS])
def test_cases_through_the_file(case: dict[str, Any], tmp_path: Path) -> None:
    qmgr = case["qmgr"]
    attributes = {
        "CodedCharSetId": qmgr["CodedCharSetId"],
        "Encoding": qmgr["Encoding"],
        "Platform": CMQC.MQPL_ZOS if qmgr["platform"] == "zos" else CMQC.MQPL_UNIX,
    }
    fields = {k: bytes.fromhex(v) if k == "GroupId" else v for k, v in case["mqmd"].items()}
    body = bytearray.fromhex(case["body_hex"])
    with queue_manager(tmp_path, **attributes) as manager:
        index = getattr(CMQC, qmgr.get("IndexType", "MQIT_NONE"))
        manager.define("Q1", IndexType=index)
        manager.define("QM2", Usage=CMQC.MQUS_TRANSMISSION)
        remote = case.get("destination") == "remote"
        target = OD(ObjectName="Q1", ObjectQMgrName="QM2" if remote else "")
        expected = case["expect"]
        if expected["outcome"] == "fail":
            assert reason_of(manager.put1, target, body, MD(**fields)) == expected["Reason"]
            assert manager.statistics("Q1")[0].messages == 0
            return
        given = MD(**fields)
        manager.put1(target, body, given)
        manager.commit()
        assert body.hex() == case.get("caller_buffer_after_hex", case["body_hex"])
        if remote:
            assert manager.statistics("QM2")[0].messages == 1
            return
        with Queue(manager, "Q1") as queue:
            md = md2()
            data = queue.get(None, md)
            assert data.hex() == case.get("stored_body_hex", case.get("app_data_hex"))
            assert md.CodedCharSetId == case.get("stored_ccsid", md.CodedCharSetId)
            kept = case.get("stored_mqmd", {}) | (
                case.get("effective_v2", {}) if expected["outcome"] != "mqmde-generated" else {}
            )
            if not md.MsgFlags & (GROUP | LAST):
                # The queue manager's own, whatever the caller says.
                kept |= {"MsgSeqNumber": 1}
            for name, value in kept.items():
                if name == "GroupId" and not any(bytes.fromhex(value)) and md.MsgFlags & 0x1F:
                    assert any(md.GroupId), "it was generated"
                else:
                    wanted = {name: bytes.fromhex(value) if name == "GroupId" else value}
                    assert md[name] == MD(**wanted)[name], name
            if expected["outcome"] != "honoured" and given.Version == 1:
                assert given.Format == md.Format


def test_what_is_put_comes_back(queue: Queue) -> None:
    for data in (b"", b"x", bytes(range(256)) * 40):
        given = MD(
            Format=CMQC.MQFMT_STRING,
            CorrelId=b"correl",
            Priority=3,
            ReplyToQ="ANSWERS",
            MsgType=CMQC.MQMT_REQUEST,
            Encoding=273,
            CodedCharSetId=500,
        )
        pmo = PMO(Version=2)
        queue.put(data, given, pmo)
        assert pmo.ResolvedQName == b"Q".ljust(48)
        assert (pmo.KnownDestCount, pmo.UnknownDestCount) == (1, 0)
        got = MD()
        assert queue.get(None, got) == data
        assert got.MsgId == given.MsgId != CMQC.MQMI_NONE
        assert got.MsgId[:16] == b"AMQ QM1         "
        assert got.ReplyToQMgr == b"QM1".ljust(48)
        assert (got.Format, got.Encoding, got.CodedCharSetId) == (b"MQSTR   ", 273, 500)
        assert got.CorrelId == b"correl".ljust(24, b"\0")
        assert (got.Priority, got.Persistence, got.BackoutCount) == (3, CMQC.MQPER_PERSISTENT, 0)
        assert got.PutDate.isdigit()
        assert got.PutTime.isdigit()
        # What was put can be put again, as it is.
        again = got.copy()
        queue.put(data, again, PMO(Options=CMQC.MQPMO_NEW_MSG_ID | CMQC.MQPMO_NEW_CORREL_ID))
        assert again.MsgId != got.MsgId
        assert again.CorrelId != got.CorrelId
        assert queue.get() == data
    assert empty(queue)


def test_what_is_no_bytes_is_a_type_error_that_says_what_to_pass(manager: QueueManager, queue: Queue) -> None:
    wrong: Any
    for wrong, said in (
        ("text", r"not str; encode text first: text\.encode\(\)"),
        (5, "not int; pass bytes"),
    ):
        for put in (queue.put, lambda message: manager.put1("Q", message)):
            with pytest.raises(TypeError, match=said):
                put(wrong)
    assert empty(queue)
    queue.put(memoryview(b"view"))
    assert queue.get() == b"view"


def test_numbers_of_what_is_in_no_group_and_no_segment(queue: Queue) -> None:
    """As IBM says: so that a getter of version 1 gets no MQMDE for them."""
    for flags, numbers in ((0, (1, 0)), (SEG, (1, 60)), (GROUP, (7, 0)), (GROUP | SEG, (7, 60))):
        md = md2(MsgSeqNumber=7, Offset=60, MsgFlags=flags)
        queue.put(b"data", md)
        assert (md.MsgSeqNumber, md.Offset) == numbers
        if not flags:
            old = MD()
            assert queue.get(None, old) == b"data"
            assert old.Format == CMQC.MQFMT_NONE
            continue
        got = md2()
        assert queue.get(None, got) == b"data"
        assert (got.MsgSeqNumber, got.Offset) == numbers


def test_ids_are_never_given_twice(tmp_path: Path) -> None:
    seen: set[bytes] = set()
    for _ in range(3):
        with queue_manager(tmp_path) as one, queue_manager(tmp_path) as other:
            if not one.queues():
                one.define("Q", MaxQDepth=100)
                one.define("FULL", MaxQDepth=0)
            for manager in (one, other):
                assert reason_of(manager.put1, "FULL", b"x", MD()) == CMQC.MQRC_Q_FULL
                for _ in range(5):
                    md = md2(MsgFlags=GROUP)
                    manager.put1("Q", b"x", md, PMO(Options=CMQC.MQPMO_NEW_CORREL_ID))
                    assert not seen & {md.MsgId, md.CorrelId, md.GroupId}
                    seen |= {md.MsgId, md.CorrelId, md.GroupId}
    assert len(seen) == 3 * 2 * 5 * 3


@each_row("sequence", [CMQC.MQMDS_PRIORITY, CMQC.MQMDS_FIFO])
def test_order(sequence: int, tmp_path: Path) -> None:
    priorities = [0, 5, 9, 5, 0, 9, 4]
    with queue_manager(tmp_path) as manager:
        manager.define("Q", MsgDeliverySequence=sequence, DefPriority=4)
        with Queue(manager, "Q", ALL) as queue:
            for number, priority in enumerate(priorities):
                queue.put(bytes([number]), MD(Priority=-1 if number == 6 else priority))
            expected = list(range(7))
            if sequence == CMQC.MQMDS_PRIORITY:
                expected.sort(key=lambda number: -priorities[number])
            browsed = [queue.browse(first=not n)[0] for n in range(7)]
            assert browsed == expected
            assert reason_of(queue.browse) == CMQC.MQRC_NO_MSG_AVAILABLE
            assert [queue.get()[0] for _ in range(7)] == expected


def test_a_priority_that_is_too_high_is_a_warning(queue: Queue) -> None:
    md = MD(Priority=12)
    assert reason_of(queue.put, b"x", md, comp=CMQC.MQCC_WARNING) == CMQC.MQRC_PRIORITY_EXCEEDS_MAXIMUM
    got = MD()
    assert queue.get(None, got) == b"x"
    assert got.Priority == 9


@each_row(
    "option, field, value",
    [
        (CMQC.MQMO_MATCH_MSG_ID, "MsgId", b"m2"),
        (CMQC.MQMO_MATCH_CORREL_ID, "CorrelId", b"c2"),
        (CMQC.MQMO_MATCH_GROUP_ID, "GroupId", b"g2"),
        (CMQC.MQMO_MATCH_MSG_SEQ_NUMBER, "MsgSeqNumber", 3),
        (CMQC.MQMO_MATCH_OFFSET, "Offset", 2),
    ],
)
def test_match_options(option: int, field: str, value: Any, queue: Queue) -> None:
    for n in (1, 2, 3):
        fields = {"MsgId": f"m{n}", "CorrelId": f"c{n}", "GroupId": f"g{n}"}
        ids = {name: text.encode() for name, text in fields.items()}
        queue.put(b"%d" % n, md2(**ids, MsgSeqNumber=n + 1, Offset=n, MsgFlags=GROUP | SEG))
    none = MD(**{field: b"nobody"}) if isinstance(value, bytes) else MD(**{field: 77})
    none.Version = 2
    assert reason_of(queue.get, None, none, gmo2(MatchOptions=option)) == CMQC.MQRC_NO_MSG_AVAILABLE
    md = md2(**{field: value})
    for browse in (CMQC.MQGMO_BROWSE_FIRST, 0):
        assert queue.get(None, md.copy(), gmo2(browse, MatchOptions=option)) == b"2"
    # The field of an option that is not given, and an id that is nothing, match all.
    assert queue.get(None, none, gmo2()) == b"1"
    matches = CMQC.MQMO_MATCH_MSG_ID | CMQC.MQMO_MATCH_CORREL_ID | CMQC.MQMO_MATCH_GROUP_ID
    assert queue.get(None, md2(), gmo2(MatchOptions=matches)) == b"3"


def test_options_of_version_1_match_both_ids(queue: Queue) -> None:
    queue.put(b"x", MD(MsgId=b"m", CorrelId=b"c"))
    assert reason_of(queue.get, None, MD(MsgId=b"m", CorrelId=b"d")) == CMQC.MQRC_NO_MSG_AVAILABLE
    # Match options of an MQGMO of version 1 do not count.
    gmo = GMO(MatchOptions=CMQC.MQMO_NONE)
    assert reason_of(queue.get, None, MD(MsgId=b"n"), gmo) == CMQC.MQRC_NO_MSG_AVAILABLE
    assert queue.get(None, MD(MsgId=b"m", CorrelId=b"c")) == b"x"


def test_truncation(queue: Queue) -> None:
    queue.put(b"0123456789", MD(MsgId=b"one"))
    for options, reason in (
        (CMQC.MQGMO_BROWSE_FIRST, CMQC.MQRC_TRUNCATED_MSG_FAILED),
        (0, CMQC.MQRC_TRUNCATED_MSG_FAILED),
        (CMQC.MQGMO_ACCEPT_TRUNCATED_MSG, CMQC.MQRC_TRUNCATED_MSG_ACCEPTED),
    ):
        md = MD()
        gmo = GMO(Version=3, Options=options)
        with pytest.raises(MQMIError) as caught:
            queue.get(4, md, gmo)
        error = caught.value
        assert (error.comp, error.reason) == (CMQC.MQCC_WARNING, reason)
        assert (error.message, error.original_length) == (b"0123", 10)
        assert md.MsgId == b"one".ljust(24, b"\0")
        assert gmo.ReturnedLength == 4
    assert empty(queue)
    queue.put(b"0123", MD())
    older = GMO(Version=2)
    assert queue.get(4, MD(), older) == b"0123"
    assert older.ReturnedLength == CMQC.MQRL_UNDEFINED
    queue.put(b"", MD())
    assert queue.get(0) == b""


def test_the_room_is_for_the_mqmde_as_well(queue: Queue) -> None:
    queue.put(b"data", md2(MsgFlags=GROUP, GroupId=GROUP_ID))
    assert reason_of(queue.get, 75, MD(), comp=CMQC.MQCC_WARNING) == CMQC.MQRC_TRUNCATED_MSG_FAILED
    md = MD()
    data = queue.get(76, md)
    mde = structures.decode(MQMDE, data, big=False, ccsid=819)
    assert (mde["GroupId"], mde["MsgFlags"], data[72:]) == (GROUP_ID, GROUP, b"data")
    assert (md.Format, md.Version) == (CMQC.MQFMT_MD_EXTENSION, 1)
    assert md.has_defaults()


def test_browse_and_the_cursor(manager: QueueManager, queue: Queue) -> None:
    under, browse_under = CMQC.MQGMO_MSG_UNDER_CURSOR, CMQC.MQGMO_BROWSE_MSG_UNDER_CURSOR
    for n in range(4):
        queue.put(b"%d" % n)
    assert reason_of(queue.get, None, MD(), gmo2(under)) == CMQC.MQRC_NO_MSG_UNDER_CURSOR
    # The first BROWSE_NEXT begins at the beginning.
    assert queue.browse() == b"0"
    assert queue.browse() == b"1"
    assert queue.get(None, MD(), gmo2(browse_under)) == b"1"
    assert queue.get(None, MD(), gmo2(browse_under)) == b"1"
    assert queue.get(None, MD(), gmo2(under)) == b"1"
    assert reason_of(queue.get, None, MD(), gmo2(under)) == CMQC.MQRC_NO_MSG_UNDER_CURSOR
    assert queue.browse() == b"2"
    # A get does not move the cursor.
    assert queue.get() == b"0"
    assert queue.browse() == b"3"
    assert reason_of(queue.browse) == CMQC.MQRC_NO_MSG_AVAILABLE
    queue.put(b"4")
    assert queue.browse() == b"4"
    assert queue.browse(first=True) == b"2"
    with Queue(manager, "Q", CMQC.MQOO_BROWSE) as other:
        assert other.browse() == b"2"
        assert other.browse() == b"3"
        assert reason_of(other.get) == CMQC.MQRC_NOT_OPEN_FOR_INPUT
    assert [queue.get() for _ in range(3)] == [b"2", b"3", b"4"]


def test_a_browse_with_too_little_room_stays_where_it_was(queue: Queue) -> None:
    under, first = CMQC.MQGMO_BROWSE_MSG_UNDER_CURSOR, CMQC.MQGMO_BROWSE_FIRST
    failed = CMQC.MQRC_TRUNCATED_MSG_FAILED
    for data, flags in ((b"first", GROUP), (b"second", LAST)):
        queue.put(data, md2(MsgFlags=flags), PMO(Options=CMQC.MQPMO_LOGICAL_ORDER))
    assert reason_of(queue.browse, 1, md2(), comp=CMQC.MQCC_WARNING) == failed
    assert queue.browse(None, md2()) == b"first"
    assert reason_of(queue.browse, 1, md2(), comp=CMQC.MQCC_WARNING) == failed
    assert queue.get(None, md2(), gmo2(under)) == b"first"
    assert queue.browse(None, md2()) == b"second"
    assert reason_of(queue.get, 1, md2(), gmo2(first), comp=CMQC.MQCC_WARNING) == failed
    assert reason_of(queue.get, None, md2(), gmo2(under)) == CMQC.MQRC_NO_MSG_UNDER_CURSOR
    assert queue.browse(None, md2()) == b"first"
    # In logical order as well, where the place in the group stays.
    ordered = CMQC.MQGMO_LOGICAL_ORDER
    assert queue.get(None, md2(), gmo2(first | ordered)) == b"first"
    following = gmo2(CMQC.MQGMO_BROWSE_NEXT | ordered)
    assert reason_of(queue.get, 1, md2(), following, comp=CMQC.MQCC_WARNING) == failed
    assert queue.get(None, md2(), following) == b"second"


def test_expiry(tmp_path: Path) -> None:
    clocks = SetClocks()
    with queue_manager(tmp_path, "Q", clocks=clocks) as manager, Queue(manager, "Q", ALL) as queue:
        queue.put(b"short", MD(Expiry=10))
        queue.put(b"long", MD(Expiry=30))
        queue.put(b"ever", MD())
        clocks.go(950 * MS)
        md = MD()
        assert queue.browse(None, md) == b"short"
        assert md.Expiry == 1, "never none left"
        clocks.go(50 * MS)
        assert queue.browse(None, md, first=True) == b"long"
        assert md.Expiry == 20
        assert manager.statistics("Q")[0].depth == 3
        assert queue.get(None, md) == b"long"
        assert manager.statistics("Q")[0].depth == 1
        clocks.go(1000000000 * MS)
        md = MD()
        assert queue.get(None, md) == b"ever"
        assert md.Expiry == CMQC.MQEI_UNLIMITED
        assert empty(queue)


def test_what_has_expired_makes_room(tmp_path: Path) -> None:
    clocks = SetClocks()
    with queue_manager(tmp_path, clocks=clocks) as manager:
        manager.define("Q", MaxQDepth=2)
        for _ in range(2):
            manager.put1("Q", b"x", MD(Expiry=1))
        assert reason_of(manager.put1, "Q", b"x") == CMQC.MQRC_Q_FULL
        clocks.go(1000 * MS)
        manager.put1("Q", b"y")
        assert manager.statistics("Q")[0].messages == 1


def test_wait(manager: QueueManager, queue: Queue, tmp_path: Path) -> None:
    wait = CMQC.MQGMO_WAIT
    began = time.monotonic()
    gmo = gmo2(wait, WaitInterval=30)
    assert reason_of(queue.get, None, MD(), gmo) == CMQC.MQRC_NO_MSG_AVAILABLE
    assert time.monotonic() - began >= 0.03
    queue.put(b"there already")
    assert queue.get(None, MD(), gmo2(wait, WaitInterval=0)) == b"there already"
    # From the same connection, in another thread; from another connection; when that commits.
    for other in (manager, QueueManager("QM1", tmp_path / "queues.db")):
        for options in (CMQC.MQPMO_NO_SYNCPOINT, CMQC.MQPMO_SYNCPOINT):

            def put(other: QueueManager = other, options: int = options) -> None:
                other.put1("Q", b"wanted", MD(CorrelId=b"c"), PMO(Options=options))
                other.commit()

            other.put1("Q", b"not wanted")
            thread = threading.Timer(0.02, put)
            thread.start()
            matching = gmo2(wait, WaitInterval=CMQC.MQWI_UNLIMITED, MatchOptions=CMQC.MQMO_MATCH_CORREL_ID)
            assert queue.get(None, MD(CorrelId=b"c"), matching) == b"wanted"
            thread.join()
            assert queue.get() == b"not wanted"
    other.disconnect()


def test_waiting_ends_with_the_connection_or_when_gets_are_inhibited(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q") as manager:
        other = QueueManager("QM1", tmp_path / "queues.db")
        gmo = gmo2(CMQC.MQGMO_WAIT, WaitInterval=CMQC.MQWI_UNLIMITED)
        with Queue(other, "Q", ALL) as queue:
            threading.Timer(0.02, manager.alter, ("Q",), {"InhibitGet": CMQC.MQQA_GET_INHIBITED}).start()
            assert reason_of(queue.get, None, MD(), gmo) == CMQC.MQRC_GET_INHIBITED
            manager.alter("Q", InhibitGet=CMQC.MQQA_GET_ALLOWED)
            threading.Timer(0.02, other.disconnect).start()
            assert reason_of(queue.get, None, MD(), gmo) == CMQC.MQRC_HCONN_ERROR


def test_limits(tmp_path: Path) -> None:
    with queue_manager(tmp_path, MaxMsgLength=2000) as manager:
        manager.define("Q", MaxQDepth=2, MaxMsgLength=100)
        manager.define("LARGE", MaxMsgLength=5000)
        with Queue(manager, "Q", ALL) as queue:
            queue.put(bytes(100))
            assert reason_of(queue.put, bytes(101)) == CMQC.MQRC_MSG_TOO_BIG_FOR_Q
            queue.put(b"")
            assert reason_of(queue.put, b"") == CMQC.MQRC_Q_FULL
            # Not half a message either.
            queue.get()
            assert reason_of(queue.put, bytes(300), md2(MsgFlags=ALLOWED)) == CMQC.MQRC_Q_FULL
            assert queue.inquire(CMQC.MQIA_CURRENT_Q_DEPTH) == 1
            manager.alter("Q", InhibitPut=CMQC.MQQA_PUT_INHIBITED)
            assert reason_of(queue.put, b"") == CMQC.MQRC_PUT_INHIBITED
            manager.alter("Q", InhibitGet=CMQC.MQQA_GET_INHIBITED)
            assert reason_of(queue.get) == CMQC.MQRC_GET_INHIBITED
            assert reason_of(queue.browse) == CMQC.MQRC_GET_INHIBITED
        assert reason_of(manager.put1, "LARGE", bytes(2001)) == CMQC.MQRC_MSG_TOO_BIG_FOR_Q_MGR
        manager.put1("LARGE", bytes(2000))


def test_the_queue_manager_cuts_messages(tmp_path: Path) -> None:
    data = bytes(range(250)) * 4
    with queue_manager(tmp_path) as manager:
        manager.define("Q", MaxMsgLength=100)
        with Queue(manager, "Q", ALL) as queue:
            md = md2(MsgFlags=ALLOWED, Format="MQSTR")
            queue.put(data, md)
            assert any(md.GroupId)
            ids = set()
            for at in range(0, len(data), 96):
                got, gmo = md2(), gmo2()
                assert queue.get(None, got, gmo) == data[at : at + 96]
                last = at + 96 >= len(data)
                assert got.MsgFlags == ALLOWED | SEG | (LAST_SEG if last else 0)
                assert (got.GroupId, got.MsgSeqNumber, got.Offset) == (md.GroupId, 1, at)
                assert got.OriginalLength == len(data[at : at + 96])
                assert gmo.SegmentStatus == (CMQC.MQSS_LAST_SEGMENT if last else CMQC.MQSS_SEGMENT)
                assert gmo.Segmentation == CMQC.MQSEG_ALLOWED
                ids.add(got.MsgId)
            assert len(ids) == 11
            # A segment is cut as well, and is the last only in its last part.
            for flags, last_flags in ((SEG, 0), (LAST_SEG, LAST_SEG)):
                queue.put(data[:100], md2(MsgFlags=ALLOWED | flags, GroupId=GROUP_ID, Offset=160))
                queue.put(data[:101], md2(MsgFlags=ALLOWED | flags, GroupId=GROUP_ID, Offset=160))
                wanted = [(160, 100, last_flags), (160, 96, 0), (256, 5, last_flags)]
                for offset, length, last_flag in wanted:
                    got = md2()
                    assert len(queue.get(None, got)) == length
                    assert (got.Offset, got.MsgFlags) == (offset, ALLOWED | SEG | last_flag)
            # What is not allowed to be cut, or cannot be.
            too_big = CMQC.MQRC_MSG_TOO_BIG_FOR_Q
            assert reason_of(queue.put, data, md2()) == too_big
            assert reason_of(queue.put, data, md2(MsgFlags=ALLOWED, Format="MQDEAD")) == too_big
            report = md2(MsgType=CMQC.MQMT_REPORT, MsgFlags=ALLOWED | SEG, OriginalLength=len(data))
            assert reason_of(queue.put, data, report) == too_big
            high = md2(MsgFlags=ALLOWED | SEG, Offset=999_999_900)
            assert reason_of(queue.put, data, high) == CMQC.MQRC_OFFSET_ERROR
            # Where the last of its segments ends is what counts.
            high.Offset = 999_999_999 - 191
            assert reason_of(queue.put, data[:192], high) == CMQC.MQRC_OFFSET_ERROR
            high.Offset -= 1
            queue.put(data[:192], high)
            assert [queue.get(None, md2()) for _ in range(2)] == [data[:96], data[96:192]]
            manager.alter("Q", MaxMsgLength=15)
            assert reason_of(queue.put, data, md2(MsgFlags=ALLOWED)) == too_big
            manager.alter("Q", MaxMsgLength=16)
            queue.put(data, md2(MsgFlags=ALLOWED))
            assert queue.inquire(CMQC.MQIA_CURRENT_Q_DEPTH) == 63


def test_zos_does_not_segment_and_begins_units_of_work(tmp_path: Path) -> None:
    with queue_manager(tmp_path, Platform=CMQC.MQPL_ZOS, Encoding=785, CodedCharSetId=500) as manager:
        manager.define("Q", MaxMsgLength=100)
        with Queue(manager, "Q", ALL) as queue:
            assert reason_of(queue.put, bytes(101), md2(MsgFlags=ALLOWED)) == CMQC.MQRC_MSG_TOO_BIG_FOR_Q
            queue.put(b"x", md2(MsgFlags=SEG | ALLOWED))
            with queue_manager(tmp_path) as other, Queue(other, "Q", ALL) as elsewhere:
                assert empty(elsewhere)
                manager.commit()
                gmo = gmo2(CMQC.MQGMO_NO_SYNCPOINT)
                assert elsewhere.get(None, md2(), gmo) == b"x"
                assert gmo.SegmentStatus == CMQC.MQSS_NOT_A_SEGMENT
                assert gmo.Segmentation == CMQC.MQSEG_INHIBITED


def test_contexts(tmp_path: Path) -> None:
    every = CMQC.MQOO_SET_ALL_CONTEXT
    given: dict[str, Any] = {
        "UserIdentifier": "somebody",
        "AccountingToken": b"token",
        "ApplIdentityData": "identity",
        "PutApplType": 99,
        "PutApplName": "elsewhere",
        "PutDate": "20200102",
        "PutTime": "03040506",
        "ApplOriginData": "orig",
    }
    with queue_manager(tmp_path, "Q") as manager, Queue(manager, "Q", ALL | every) as queue:
        for options, kept in (
            (CMQC.MQPMO_SET_ALL_CONTEXT, set(given)),
            (CMQC.MQPMO_SET_IDENTITY_CONTEXT, {"UserIdentifier", "AccountingToken", "ApplIdentityData"}),
            (CMQC.MQPMO_DEFAULT_CONTEXT, set()),
            (CMQC.MQPMO_NO_CONTEXT, set()),
        ):
            queue.put(b"", MD(**given), PMO(Options=options))
            md = MD()
            queue.get(None, md)
            assert {name for name in given if md[name] == MD(**given)[name]} == kept
            if options == CMQC.MQPMO_NO_CONTEXT:
                assert (md.PutApplType, md.PutDate.strip()) == (CMQC.MQAT_NO_CONTEXT, b"")
        with Queue(manager, "Q", CMQC.MQOO_OUTPUT) as plain:
            for option, reason in (
                (CMQC.MQPMO_SET_ALL_CONTEXT, CMQC.MQRC_NOT_OPEN_FOR_SET_ALL),
                (CMQC.MQPMO_SET_IDENTITY_CONTEXT, CMQC.MQRC_NOT_OPEN_FOR_SET_IDENT),
            ):
                assert reason_of(plain.put, b"", MD(), PMO(Options=option)) == reason
