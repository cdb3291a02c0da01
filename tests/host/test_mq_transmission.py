"""What is put to another queue manager: as it stands on a transmission queue, and which one that is."""

from pathlib import Path
from typing import Any

import pytest

from headwater.ibmmq.chain import MQMD1, MQXQH
from headwater.ibmmq.header import MQMDE
from headwater_host.mq import CMQC, structures
from headwater_host.mq.descriptors import MD
from headwater_mq.options import OD, PMO
from headwater_mq.queue import Queue
from tests.host.mq_queue import ALL, ALLOWED, GROUP, GROUP_ID, md2, queue_manager, reason_of
from tests.rows import each_row


def test_remote_queues(tmp_path: Path) -> None:
    with queue_manager(tmp_path) as manager:
        manager.define("QM2", Usage=CMQC.MQUS_TRANSMISSION, MaxMsgLength=1000)
        manager.define("OTHER.XMIT", Usage=CMQC.MQUS_TRANSMISSION)
        manager.define("LOCAL")
        remote: dict[str, Any] = {"QType": CMQC.MQQT_REMOTE, "RemoteQName": "THEIRS", "RemoteQMgrName": "QM2"}
        manager.define("R", **remote)
        manager.define("R.OTHER", **remote, XmitQName="OTHER.XMIT")
        manager.define("R.BAD", **remote, XmitQName="LOCAL")
        manager.define("R.NONE", **remote, XmitQName="NONE")
        for target, holder in (
            ("R", "QM2"),
            ("R.OTHER", "OTHER.XMIT"),
            (OD(ObjectName="THEIRS", ObjectQMgrName="QM2"), "QM2"),
        ):
            fields = {"GroupId": GROUP_ID, "MsgSeqNumber": 2, "MsgFlags": GROUP}
            md = md2(Format="MQSTR", CodedCharSetId=1208, Priority=7, **fields)
            pmo = PMO(Version=2)
            manager.put1(target, b"temp", md, pmo)
            assert pmo.ResolvedQName == b"THEIRS".ljust(48)
            assert pmo.ResolvedQMgrName == b"QM2".ljust(48)
            assert (pmo.KnownDestCount, pmo.UnknownDestCount) == (0, 1)
            with Queue(manager, holder) as queue:
                outer = md2()
                data = queue.get(None, outer)
            assert (outer.Format, outer.Priority) == (CMQC.MQFMT_XMIT_Q_HEADER, 7)
            assert outer.has_defaults()
            assert outer.CorrelId == md.MsgId != outer.MsgId
            xqh = structures.decode(MQXQH, data, big=False, ccsid=819)
            assert (str(xqh["RemoteQName"]).rstrip(), str(xqh["RemoteQMgrName"]).rstrip()) == (
                "THEIRS",
                "QM2",
            )
            inner = structures.decode(MQMD1, data, 104, big=False, ccsid=819)
            assert (inner["Format"], inner["MsgId"], inner["Priority"]) == ("MQHMDE  ", md.MsgId, 7)
            mde = structures.decode(MQMDE, data, 428, big=False, ccsid=819)
            assert {name: mde[name] for name in fields} == fields
            assert (mde["Format"], mde["CodedCharSetId"], data[500:]) == ("MQSTR   ", 1208, b"temp")
        # Bits of MsgFlags that are for transmission queues; and room for what is put in front.
        manager.put1("R", bytes(500), md2(MsgFlags=0x1000))
        assert reason_of(manager.put1, "R", bytes(501)) == CMQC.MQRC_MSG_TOO_BIG_FOR_Q
        assert reason_of(manager.put1, "LOCAL", b"", md2(MsgFlags=0x1000)) == CMQC.MQRC_MSG_FLAGS_ERROR
        assert reason_of(manager.put1, "R.BAD", b"") == CMQC.MQRC_XMIT_Q_USAGE_ERROR
        assert reason_of(manager.put1, "R.NONE", b"") == CMQC.MQRC_UNKNOWN_XMIT_Q
        nowhere = OD(ObjectName="X", ObjectQMgrName="QM3")
        assert reason_of(manager.put1, nowhere, b"") == CMQC.MQRC_UNKNOWN_REMOTE_Q_MGR
        assert reason_of(Queue, manager, "R", CMQC.MQOO_INPUT_SHARED) == CMQC.MQRC_OPTION_NOT_VALID_FOR_TYPE


def test_names_that_lead_nowhere(tmp_path: Path) -> None:
    """As IBM has it, nothing is put on the transmission queue; aliases of queue managers are not made."""
    with queue_manager(tmp_path) as manager:
        manager.define("QM2", Usage=CMQC.MQUS_TRANSMISSION)
        remote: dict[str, Any] = {"QType": CMQC.MQQT_REMOTE, "RemoteQName": "THEIRS"}
        manager.define("R", **remote, RemoteQMgrName="QM2")
        manager.define("R.OWN", **remote, RemoteQMgrName="QM1", XmitQName="QM2")
        for target, reason in (
            (OD(ObjectQMgrName="QM2"), CMQC.MQRC_REMOTE_Q_NAME_ERROR),
            (OD(ObjectName="THEIRS", ObjectQMgrName="R"), CMQC.MQRC_UNKNOWN_REMOTE_Q_MGR),
            ("R.OWN", CMQC.MQRC_UNKNOWN_REMOTE_Q_MGR),
        ):
            assert reason_of(manager.put1, target, b"x") == reason
            assert reason_of(Queue, manager, target, CMQC.MQOO_OUTPUT) == reason
        assert manager.statistics("QM2")[0].depth == 0
        with pytest.raises(ValueError, match="a remote queue needs RemoteQName and RemoteQMgrName"):
            manager.define("ALIAS", QType=CMQC.MQQT_REMOTE, RemoteQMgrName="QM2")


def test_a_remote_queue_has_defaults_of_its_own(tmp_path: Path) -> None:
    with queue_manager(tmp_path) as manager:
        manager.define("QM2", Usage=CMQC.MQUS_TRANSMISSION, DefPriority=3)
        remote: dict[str, Any] = {"QType": CMQC.MQQT_REMOTE, "RemoteQName": "THEIRS", "RemoteQMgrName": "QM2"}
        manager.define("R", **remote, DefPriority=7, DefPersistence=CMQC.MQPER_NOT_PERSISTENT)
        for name, *defaults in (
            ("R", 7, CMQC.MQPER_NOT_PERSISTENT),
            # A queue by its name there has those of the transmission queue.
            (OD(ObjectName="THEIRS", ObjectQMgrName="QM2"), 3, CMQC.MQPER_PERSISTENT),
        ):
            md, kept = md2(), md2()
            manager.put1(name, b"", md)
            with Queue(manager, "QM2") as queue:
                data = queue.get(None, kept)
            inner = structures.decode(MQMD1, data, 104, big=False, ccsid=819)
            assert [md.Priority, md.Persistence] == defaults
            assert [kept.Priority, kept.Persistence] == defaults
            assert [inner["Priority"], inner["Persistence"]] == defaults


def test_a_remote_queue_that_takes_no_puts(tmp_path: Path) -> None:
    inhibited, allowed = CMQC.MQQA_PUT_INHIBITED, CMQC.MQQA_PUT_ALLOWED
    with queue_manager(tmp_path) as manager:
        manager.define("QM2", Usage=CMQC.MQUS_TRANSMISSION)
        manager.define(
            "R", QType=CMQC.MQQT_REMOTE, RemoteQName="THEIRS", RemoteQMgrName="QM2", InhibitPut=inhibited
        )
        # It can be opened, and is asked at each put.
        with Queue(manager, "R", CMQC.MQOO_OUTPUT) as queue:
            assert reason_of(queue.put, b"") == CMQC.MQRC_PUT_INHIBITED
            manager.alter("R", InhibitPut=allowed)
            queue.put(b"")
            manager.alter("R", InhibitPut=inhibited)
            assert reason_of(queue.put, b"") == CMQC.MQRC_PUT_INHIBITED
            manager.alter("R", InhibitPut=allowed)
            manager.alter("QM2", InhibitPut=inhibited)
            assert reason_of(queue.put, b"") == CMQC.MQRC_PUT_INHIBITED
            # Meanwhile nobody takes the definition away.
            assert reason_of(manager.delete, "R") == CMQC.MQRC_OBJECT_IN_USE
        manager.delete("R")
        assert manager.statistics("QM2")[0].open_for_output == 0


def test_where_answers_go(tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q", "HERE") as manager:
        manager.define("R", QType=CMQC.MQQT_REMOTE, RemoteQName="THEIRS", RemoteQMgrName="QM2")
        for asked, kept in (
            (("", ""), ("", "")),
            (("HERE", ""), ("HERE", "QM1")),
            (("ANY", ""), ("ANY", "QM1")),
            (("R", ""), ("THEIRS", "QM2")),
            (("R", "QM3"), ("R", "QM3")),
        ):
            md, got = md2(ReplyToQ=asked[0], ReplyToQMgr=asked[1]), md2()
            manager.put1("Q", b"", md)
            with Queue(manager, "Q") as queue:
                queue.get(None, got)
            assert (got.ReplyToQ.decode().rstrip(), got.ReplyToQMgr.decode().rstrip()) == kept
            # The putter's descriptor does not change: used again it names the same.
            assert (md.ReplyToQ.decode().rstrip(), md.ReplyToQMgr.decode().rstrip()) == asked


def test_a_default_transmission_queue(tmp_path: Path) -> None:
    with queue_manager(tmp_path, DefXmitQName="OUT") as manager:
        there = OD(ObjectName="X", ObjectQMgrName="QM3")
        assert reason_of(manager.put1, there, b"") == CMQC.MQRC_UNKNOWN_DEF_XMIT_Q
        manager.define("OUT", Usage=CMQC.MQUS_TRANSMISSION)
        manager.put1(there, b"")
        assert manager.statistics("OUT")[0].messages == 1


def test_segments_through_a_transmission_queue(tmp_path: Path) -> None:
    """Each segment that the queue manager makes has a header of its own."""
    with queue_manager(tmp_path) as manager:
        manager.define("QM2", Usage=CMQC.MQUS_TRANSMISSION, MaxMsgLength=600)
        data = bytes(range(250))
        manager.put1(OD(ObjectName="X", ObjectQMgrName="QM2"), data, md2(MsgFlags=ALLOWED))
        found = b""
        with Queue(manager, "QM2") as queue:
            for _ in range(3):
                body = queue.get()
                mde = structures.decode(MQMDE, body, 428, big=False, ccsid=819)
                assert mde["Offset"] == len(found)
                found += body[500:]
        assert found == data


@each_row("ccsid", [819, 500, 1140])
def test_all_characters_can_be_written(ccsid: int, tmp_path: Path) -> None:
    """1140 has a euro sign where 037 has the currency sign of Latin-1."""
    how: dict[str, Any] = {"big": False, "ccsid": 37 if ccsid == 1140 else ccsid}
    with queue_manager(tmp_path, "Q", CodedCharSetId=ccsid) as manager:
        manager.define("QM2", Usage=CMQC.MQUS_TRANSMISSION)
        for code in range(1, 256, 40):
            name = bytes(range(code, min(code + 40, 256))).ljust(48)
            md = md2(Format=b"\xa4", ReplyToQ=name, GroupId=GROUP_ID, MsgFlags=GROUP)
            manager.put1(OD(ObjectName=name, ObjectQMgrName="QM2"), b"data", md)
            with Queue(manager, "QM2") as queue:
                data = queue.get()
            text = name.decode("latin-1")
            assert structures.decode(MQXQH, data, **how)["RemoteQName"] == text
            assert structures.decode(MQMD1, data, 104, **how)["ReplyToQ"] == text
            assert structures.decode(MQMDE, data, 428, **how)["Format"] == "\xa4       "


@each_row("ccsid", [819, 500, 1140])
def test_all_characters_can_be_written_in_an_mqmde(ccsid: int, tmp_path: Path) -> None:
    with queue_manager(tmp_path, "Q", CodedCharSetId=ccsid) as manager, Queue(manager, "Q", ALL) as queue:
        for code in range(1, 256, 8):
            form = bytes(range(code, min(code + 8, 256))).ljust(8)
            queue.put(b"data", md2(Format=form, GroupId=GROUP_ID, MsgFlags=GROUP))
            extended = MD()
            data = queue.get(None, extended)
            how: dict[str, Any] = {"big": False, "ccsid": 37 if ccsid == 1140 else ccsid}
            assert structures.decode(MQMDE, data, **how)["Format"] == form.decode("latin-1")
            # What a get of version 1 has said a put takes.
            queue.put(data, extended)
            got = md2()
            assert queue.get(None, got) == b"data"
            assert (got.Format, got.GroupId) == (form, GROUP_ID)
