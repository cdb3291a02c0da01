"""Files of version 1 that earlier code wrote, kept as SQL: the queue manager and the gateway read them."""

import sqlite3
from pathlib import Path

import pytest

from headwater.ibmmq.chain import MQXQH
from headwater_host.mq import CMQC, structures
from headwater_host.mq.descriptors import MD
from headwater_host.mq.errors import MQMIError
from headwater_mq.manager import QueueManager
from headwater_mq.options import GMO
from headwater_mq.queue import Queue
from tests.host.mq_log import cut, logging_to
from tests.host.set_clocks import SetClocks

FORMATS = Path(__file__).parent / "formats"
INPUT = CMQC.MQOO_INPUT_SHARED
YEAR = 365 * 86400 * 10


def restored(name: str, path: Path, **changed: object) -> None:
    """Make the file ``path`` from its SQL; ``changed``: text -> text in it."""
    text = (FORMATS / name).read_text()
    for was, now in changed.items():
        assert was in text
        text = text.replace(was, str(now))
    db = sqlite3.connect(path)
    db.executescript(text)
    db.close()


def test_a_file_of_queues_of_version_1(tmp_path: Path) -> None:
    restored("mq-queue-1.dump", tmp_path / "queues.db")
    with QueueManager("QM1", tmp_path / "queues.db", create=False, clocks=SetClocks()) as manager:
        assert manager.attributes.MaxUncommittedMsgs == 50
        assert list(manager.queues()) == ["Q", "THERE", "XMIT"]
        (q,) = manager.statistics("Q")
        # What a killed connection had put is gone, what it had got is back.
        assert (q.messages, q.uncommitted_puts, q.uncommitted_gets, q.set_aside, q.depth) == (7, 0, 0, 1, 8)
        assert [(reason, data) for reason, _, data in manager.set_aside("Q")] == [(2251, b"set aside")]

        queue = Queue(manager, "Q", INPUT)
        md = MD()
        assert queue.get(None, md) == b"high"
        assert (md.MsgId, md.Priority, md.BackoutCount) == (b"H" * 24, 7, 1)
        md = MD()
        assert queue.get(None, md) == b"low"
        assert (md.MsgId, md.CorrelId, md.Format) == (b"L" * 24, b"C" * 24, CMQC.MQFMT_STRING)
        found = []
        options = CMQC.MQGMO_LOGICAL_ORDER | CMQC.MQGMO_COMPLETE_MSG | CMQC.MQGMO_ALL_MSGS_AVAILABLE
        for _ in range(4):
            md = MD(Version=2)
            data = queue.get(None, md, GMO(Version=2, Options=options, MatchOptions=CMQC.MQMO_NONE))
            found.append((data, md.GroupId[:1], md.MsgSeqNumber))
            if data == b"a year":
                assert 0 < md.Expiry <= YEAR
        assert found == [
            (b"one", b"G", 1),
            (b"two", b"G", 2),
            (b"sixteen bytes... end", b"S", 1),
            (b"a year", b"\0", 1),
        ]

        md = MD()
        data = Queue(manager, "XMIT", INPUT).get(None, md)
        assert md.Format == CMQC.MQFMT_XMIT_Q_HEADER
        header = structures.decode(MQXQH, data, big=False, ccsid=819)
        assert [str(header[name]).rstrip() for name in ("RemoteQName", "RemoteQMgrName")] == ["IN", "QM2"]
        assert data.endswith(b"to QM2")
        # Ids go on behind those of the file.
        md = MD()
        manager.put1("Q", b"new", md)
        assert int.from_bytes(md.MsgId[16:], "big") & 0xFFFFFFFF == 8193


def test_a_file_of_a_gateway_of_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How far the log was read, incomplete and finished messages, and the uplink's record."""
    # No time has passed since the file was written: its incomplete messages may still be completed.
    monkeypatch.setattr("headwater_mq.queue_file.MACHINE", SetClocks())
    with logging_to(tmp_path) as log:
        pieces = cut(b"0123456789abcdef" * 3, 16)
        doubled, finished = cut(b"x" * 32, 16, group=b"D" * 24), cut(b"y" * 32, 16, group=b"E" * 24)
        log.block(b"first", pieces[2])
        log.block(b"second", pieces[0], doubled[0], *finished)
        (segment,) = log.path.glob("*.hwc")
        place = {
            "segment-00000000000000000000-aa18f866e80a1d1b.hwc',856": f"{segment.name}',{segment.stat().st_size}"
        }
        restored("mq-gateway-1.dump", tmp_path / "mq.db", **place)
        follower = log.follow()
        follower.step()
        # Nothing is read twice.
        assert (follower.status()["messages"], follower.status()["depth"]) == (0, 3)
        state = follower._forward.state()
        assert (state.identity[:2], state.number, state.pending) == (b"\x82\xc2", 4, (1,))
        log.block(pieces[1], finished[0], doubled[1])
        follower.step()
        status = follower.status()
        assert (status["put"], status["duplicates"], status["incomplete"]) == (2, 1, 0)
        assert (status["problems"], status["damage"]) == ({}, 0)
        follower.close()
        assert log.data() == [b"first", b"second", b"y" * 32, b"0123456789abcdef" * 3, b"x" * 32]


def test_a_file_of_a_newer_version_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "queues.db"
    restored("mq-queue-1.dump", path, **{"user_version = 1": "user_version = 2"})
    before = path.read_bytes()
    with pytest.raises(MQMIError, match="is of version 2; this program knows version 1") as caught:
        QueueManager("QM1", path)
    assert caught.value.reason == CMQC.MQRC_Q_MGR_NOT_AVAILABLE
    assert path.read_bytes() == before
