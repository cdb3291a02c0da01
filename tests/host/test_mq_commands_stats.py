"""``headwater mq stats``, as a user meets it."""

import contextlib
import json
import re
import sqlite3

import pytest

from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import MD
from headwater_host.mq.reassembly.assembler import Assembler
from headwater_host.mq.structures import LAYOUTS, encode
from headwater_mq.manager import QueueManager
from headwater_mq.options import GMO, PMO
from headwater_mq.queue import Queue
from tests.host.mq_run import GROUP, OTHER, Run
from tests.host.mq_segments import cut
from tests.host.set_clocks import SetClocks


def test_stats(mq: Run) -> None:
    mq.ok("put", "-m", "12345")
    mq.ok("put", "-l", "--as-group", data=b"a\nb\n")
    mq.ok("put", "-m", "x", "--group", GROUP, "--seq", 3, "--flags", "LAST_MSG_IN_GROUP")
    mq.ok("put", "-m", "y", "--group", OTHER, "--offset", 10, "--flags", "LAST_SEGMENT")
    mq.ok("put", "-s", "--segment-size", 3, data=b"abcdefg")
    dead = encode(LAYOUTS["MQDLH"], {"Reason": 2053}, big=False, ccsid=819)
    mq.ok("put", "-s", "--format", "MQDEAD", data=dead)
    mq.ok("put", "-n", "--define", queue="EMPTY")
    mq.ok("get", queue="EMPTY")
    (said,) = mq.lines("stats")
    assert said.pop("oldest")[:2] == "20"
    (lacking,) = said["groups"].pop("incomplete")
    (cut,) = said["segmented"].pop("incomplete")
    assert said == {
        "queue": "Q",
        "messages": 9,
        "bytes": 5 + 2 + 1 + 1 + 7 + 172,
        "in_units_of_work": 0,
        "dead_letters": 1,
        "set_aside": {},
        "groups": {"complete": 1},
        "segmented": {"complete": 1},
    }
    assert (lacking["group_id"], lacking["reason"], lacking["bytes"]) == (GROUP, 2241, 1)
    assert lacking["missing"]["messages"] == [[1, 3]]
    assert (cut["group_id"], cut["reason"], cut["missing"]["segments"]) == (OTHER, 2242, {"1": [[0, 10]]})
    empty, full = (json.loads(line) for line in mq.ok("stats", "--json", queue="").splitlines())
    assert (empty["queue"], empty["messages"], empty["oldest"]) == ("EMPTY", 0, None)
    assert (full["queue"], full["messages"]) == ("Q", 9)
    text = mq.ok("stats", queue="").decode().splitlines()
    assert text[0] == "EMPTY: 0 messages, 0 bytes"
    assert re.fullmatch(r"Q: 9 messages, 188 bytes, the oldest from \S+Z, 1 dead letter", text[1])
    assert text[2] == "  groups: 1 complete, 1 incomplete"
    assert text[3] == f"    {GROUP}: missing: messages 1 to 2 (2241 MQRC_INCOMPLETE_GROUP)"
    assert text[4] == "  segmented messages: 1 complete, 1 incomplete"
    assert text[5] == f"    {OTHER}: missing: of message 1 bytes 0 to 9 (2242 MQRC_INCOMPLETE_MSG)"


def test_stats_of_what_is_under_way(mq: Run) -> None:
    """The oldest message, groups whose messages came among others', and what is in somebody's unit of work."""
    clocks = SetClocks()
    clocks.at = 10**18
    with QueueManager(path=mq.store, clocks=clocks) as manager:
        manager.define("Q")
        manager.put1("Q", b"old")
    mq.ok("put", "-m", "1", "--group", GROUP, "--flags", "MSG_IN_GROUP")
    mq.ok("put", "-m", "1", "--group", OTHER, "--flags", "MSG_IN_GROUP")
    mq.ok("put", "-m", "2", "--group", GROUP, "--seq", 2, "--flags", "LAST_MSG_IN_GROUP")
    (said,) = mq.lines("stats")
    assert (said["groups"]["complete"], len(said["groups"]["incomplete"])) == (1, 1)
    assert said["oldest"] == "2001-09-09T01:46:40Z"
    with QueueManager(path=mq.store) as manager:
        assert Queue(manager, "Q").get(None, MD(), GMO(Options=CMQC.MQGMO_SYNCPOINT)) == b"old"
        manager.put1("Q", b"new", MD(), PMO(Options=CMQC.MQPMO_SYNCPOINT))
        (said,) = mq.lines("stats")
        assert (said["messages"], said["in_units_of_work"]) == (3, 2)
        assert said["oldest"] > "2020"
        assert ", 2 in units of work" in mq.ok("stats").decode()
        manager.backout()


def test_stats_of_what_contradicts_itself(mq: Run) -> None:
    for text in ("ab", "xyz"):
        mq.ok("put", "-m", text, "--group", GROUP, "--flags", "LAST_SEGMENT")
    (said,) = mq.lines("stats")
    (one,) = said["segmented"]["incomplete"]
    assert one["fault"]["kind"] == "ends"
    mq.ok("browse", "--complete")
    mq("get", "--complete")
    (said,) = mq.lines("stats")
    assert said["messages"] + sum(said["set_aside"].values()) == 2
    if said["set_aside"]:
        assert "set aside" in mq.ok("stats").decode()


@pytest.mark.parametrize("damage", ["md = x'00'", "md = printf('%364d', 0)", "body = 'text'", "crc = 0"])
def test_stats_of_what_is_damaged(damage: str, mq: Run) -> None:
    """Bytes that were not written so, and that nobody has come upon yet."""
    mq.ok("put", "-m", "abcd", "--group", GROUP, "--flags", "SEGMENT")
    # Whether these overlap in contradiction can only be said by who reads both.
    mq.ok("put", "-m", "cdef", "--group", GROUP, "--flags", "LAST_SEGMENT", "--offset", 2)
    mq.ok("put", "-m", "x", "--group", OTHER, "--flags", "LAST_MSG_IN_GROUP")
    with contextlib.closing(sqlite3.connect(mq.store)) as db, db:
        db.execute(f"UPDATE messages SET {damage} WHERE id = 1")
    (said,) = mq.lines("stats")
    (damaged,) = said["segmented"]["incomplete"]
    assert (damaged["group_id"], damaged["reason"]) == (GROUP, CMQC.MQRC_OBJECT_DAMAGED)
    assert (said["messages"], said["groups"]["complete"]) == (3, 1)
    line = f"    {GROUP}: a message is damaged (2101 MQRC_OBJECT_DAMAGED)"
    assert line in mq.ok("stats").decode().splitlines()


def test_stats_of_what_a_gateway_has_not_put_together(mq: Run) -> None:
    mq.ok("put", "-m", "x")
    before = mq.ok("stats", queue="")
    group, other = bytes.fromhex(GROUP), bytes.fromhex(OTHER)
    with contextlib.closing(sqlite3.connect(mq.store)) as db:
        assembler = Assembler(db)
        assembler.flush()
        db.commit()
        assert mq.ok("stats", queue="") == before
        assembler.add("a/b", cut(group, 3, b"123", 9, grouped=True)[0], 1.0)
        assembler.add("c", cut(other, 1, b"12345", 2)[1], 2.0)
        assembler.flush()
        db.commit()
        file = list(db.iterdump())
        assert mq.ok("stats") == before
        assert mq.ok("stats", queue="").removeprefix(before).decode().splitlines() == [
            "in reassembly, incomplete: 2",
            f"    a/b, GroupId {GROUP}: incomplete, missing: messages 1 to 2, 4 to the last, which is not known "
            "(2241 MQRC_INCOMPLETE_GROUP)",
            f"    c, GroupId {OTHER}: incomplete, missing: of message 1 bytes 0 to 1, 4 to its end, which is not known "
            "(2242 MQRC_INCOMPLETE_MSG)",
        ]
        queue, held = map(json.loads, mq.ok("stats", "--json", queue="").splitlines())
        assert (queue["queue"], [one["group_id"] for one in held["reassembly"]]) == ("Q", [GROUP, OTHER])
        # What was looked at is still there, and goes on.
        assert [row for row in db.iterdump() if "assembly" in row] == [
            row for row in file if "assembly" in row
        ]


def test_a_queue_that_is_deleted_meanwhile(mq: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    mq.ok("put", "-m", "x")
    mq.ok("put", "-m", "y", "--define", queue="R")
    queues = QueueManager.queues

    def then_one_is_deleted(self: QueueManager) -> object:
        found = queues(self)
        with QueueManager(path=mq.store) as other:
            other.delete("Q", purge=True)
        return found

    monkeypatch.setattr(QueueManager, "queues", then_one_is_deleted)
    assert json.loads(mq.ok("stats", "--json", queue=""))["queue"] == "R"
