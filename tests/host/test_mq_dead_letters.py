"""The special case of a put: a segment behind an MQDLH, which is kept with an MQMDE between the two."""

from itertools import product
from pathlib import Path

import pytest

from headwater.ibmmq.chain import MQDLH
from headwater.ibmmq.header import MQMDE
from headwater_host.mq import CMQC, structures
from headwater_host.mq.descriptors import MD
from headwater_mq.forward import Forward, LocalQueue
from headwater_mq.options import OD, PMO
from headwater_mq.queue import Queue
from tests.host.mq_queue import ALL, GROUP_ID, LAST_SEG, SEG, empty, md2, queue_manager, reason_of
from tests.rows import each_row


def test_a_dead_letter_segment_has_the_handles_numbers(queue: Queue) -> None:
    dlh = structures.encode(MQDLH, {"Format": "MQSTR", "CodedCharSetId": 1208}, big=False, ccsid=819)
    places = []
    for flags in (SEG, SEG, LAST_SEG):
        queue.put(dlh + b"four", md2(Format="MQDEAD", MsgFlags=flags), PMO(Options=CMQC.MQPMO_LOGICAL_ORDER))
        got = md2()
        data = queue.get(None, got)
        assert got.has_defaults()
        mde = structures.decode(MQMDE, data, 172, big=False, ccsid=819)
        places.append((mde["Offset"], mde["OriginalLength"], mde["Format"], data[244:]))
    assert places == [(at, 4, "MQSTR   ", b"four") for at in (0, 4, 8)]
    assert reason_of(queue.put, dlh, md2(Format="MQDEAD", MsgFlags=SEG)) == CMQC.MQRC_SEGMENT_LENGTH_ZERO
    short = md2(Format="MQDEAD", MsgFlags=LAST_SEG)
    assert reason_of(queue.put, dlh[:-1], short) == CMQC.MQRC_DLH_ERROR
    assert empty(queue)


@pytest.mark.parametrize("version", [1, 2])
def test_a_dead_letter_segment_by_its_mqmde(version: int, queue: Queue) -> None:
    """Its fields go behind the MQDLH as well, with which segments would not fit together."""
    dlh = structures.encode(MQDLH, {"Format": "MQSTR", "CodedCharSetId": 1208}, big=False, ccsid=819)
    fields = {"GroupId": GROUP_ID, "Offset": 4, "MsgFlags": LAST_SEG, "CodedCharSetId": 819}
    mde = structures.encode(MQMDE, fields | {"Format": "MQDEAD"}, big=False, ccsid=819)
    queue.put(mde + dlh + b"four", MD(Version=version, Format="MQHMDE"))
    got = md2()
    data = queue.get(None, got)
    assert (got.Format, got.has_defaults()) == (b"MQDEAD  ", True)
    behind = structures.decode(MQMDE, data, 172, big=False, ccsid=819)
    assert (behind["GroupId"], behind["Offset"], behind["Format"]) == (GROUP_ID, 4, "MQSTR   ")
    assert data[244:] == b"four"


@each_row("name, more", [("Q", 72), ("QM2", 428 + 72)])
def test_what_is_kept_is_not_larger_than_the_queue_takes(name: str, more: int, tmp_path: Path) -> None:
    dlh = structures.encode(MQDLH, {"Format": "MQSTR"}, big=False, ccsid=819)
    target = OD(ObjectName="Q", ObjectQMgrName="" if name == "Q" else name)
    segment = md2(Format="MQDEAD", MsgFlags=SEG, GroupId=GROUP_ID)
    with queue_manager(tmp_path) as manager:
        usage = CMQC.MQUS_NORMAL if name == "Q" else CMQC.MQUS_TRANSMISSION
        manager.define(name, MaxMsgLength=1000, Usage=usage)
        data = dlh.ljust(1000 - more, b".")
        assert reason_of(manager.put1, target, data + b".", segment.copy()) == CMQC.MQRC_MSG_TOO_BIG_FOR_Q
        manager.put1(target, data, segment)
        assert manager.statistics(name)[0].bytes == 1000


def test_what_is_no_segment_needs_no_room_for_an_mqmde(tmp_path: Path) -> None:
    dlh = structures.encode(MQDLH, {"Format": "MQSTR"}, big=False, ccsid=819)
    with queue_manager(tmp_path) as manager:
        manager.define("Q", MaxMsgLength=1000)
        manager.put1("Q", dlh.ljust(1000, b"."), md2(Format="MQDEAD"))
        assert manager.statistics("Q")[0].bytes == 1000


@each_row("ccsid, of_message", product([819, 1140], [819, 1140]))
def test_any_format_of_an_mqdlh(ccsid: int, of_message: int, tmp_path: Path) -> None:
    """1140's euro sign has the place of the currency sign, as in 037."""
    how = {819: 819, 1140: 37}
    dlh = structures.encode(MQDLH, {"Format": "\xa4"}, big=False, ccsid=how[of_message])
    with queue_manager(tmp_path, "Q", CodedCharSetId=ccsid) as manager, Queue(manager, "Q", ALL) as queue:
        md = md2(Format="MQDEAD", MsgFlags=SEG, GroupId=GROUP_ID, CodedCharSetId=of_message)
        queue.put(dlh + b"data", md)
        mde = structures.decode(MQMDE, queue.get(None, md2()), 172, big=False, ccsid=how[ccsid])
        assert mde["Format"] == "\xa4       "


def test_any_format_of_what_a_gateway_sets_aside(tmp_path: Path) -> None:
    with queue_manager(tmp_path, CodedCharSetId=1140) as manager:
        forward = Forward(manager.file.path, LocalQueue("EDGE", "DEAD", 10, 1000, 1 << 20))
        with forward.transaction():
            forward.set_aside(md2(Format=b"\xa4"), b"data", CMQC.MQRC_MDE_ERROR)
        forward.close()
        with Queue(manager, "DEAD") as queue:
            dlh = structures.decode(MQDLH, queue.get(None, md2()), big=False, ccsid=37)
    assert (dlh["Format"], dlh["Reason"]) == ("\xa4       ", CMQC.MQRC_MDE_ERROR)
