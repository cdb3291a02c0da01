"""What the gateway puts into a local queue of IBM MQ's kind: from a log that is written meanwhile, once each."""

import asyncio
import random
import threading
import time
from dataclasses import replace
from itertools import islice

import pytest

from headwater.fmq.spec import PUBLISH, REGISTER
from headwater.ibmmq.header import MQMDE
from headwater_host.capture import SENT
from headwater_host.capture.format import DUPLICATE, FMQ, ORIGINAL, UNCERTAIN
from headwater_host.exits import CommandError
from headwater_host.fmq.hashes import hash_of
from headwater_host.gateway.mq_service import MqService
from headwater_host.mq import CMQC, structures
from headwater_host.mq.descriptors import MD
from headwater_host.mq.errors import MQMIError
from headwater_mq.manager import QueueManager
from headwater_mq.options import GMO
from headwater_mq.queue import Queue
from tests.host.mq_log import GROUP, Log, browse, cut, dead, fmq, mqtt, segment
from tests.host.set_clocks import DAY, SECOND, SetClocks
from tests.waiting import wait_until

# ---- what is put ----------------------------------------------------------------------------------------------------


def test_topics_that_are_asked_for_go_in_as_they_are(log: Log) -> None:
    log.land(mqtt("a/b", b"one"))
    log.land(mqtt("b/a", b"not this"))
    log.land(mqtt("a", b"two", qos=0))
    log.land(mqtt("a/b", b"sent by us"), direction=SENT)
    log.land(b"\x40\x02\x00\x07")
    log.land(b"\xff\xff\xff")
    log.land(b"\x32\x7fcut short")
    log.writer.flush()
    follower = log.follow(format="MQSTR", ccsid=819)
    assert follower.step() > 0
    (first, one), (_, two) = log.got()
    assert (one, two) == (b"one", b"two")
    assert (first.Format, first.CodedCharSetId, first.Persistence) == (
        b"MQSTR   ",
        819,
        CMQC.MQPER_PERSISTENT,
    )
    assert first.MsgId != CMQC.MQMI_NONE
    assert first.PutDate.isdigit()
    assert first.UserIdentifier.strip()
    status = follower.status()
    assert (status["messages"], status["put"], status["bytes"], status["malformed"]) == (2, 2, 6, 1)
    assert (status["state"], status["blocks_behind"], status["depth"]) == ("following", 0, 2)


def test_segments_in_any_order_become_one_message(log: Log) -> None:
    data = random.Random(1).randbytes(10_000)
    pieces = cut(data, 700)
    random.Random(2).shuffle(pieces)
    # What is sent again because nobody has answered.
    log.block(*pieces[:9])
    follower = log.followed()
    assert log.data() == []
    assert follower.status()["incomplete"] == 1
    log.block(*pieces[5:])
    follower.step()
    ((md, found),) = log.got()
    assert found == data
    assert (md.Format, md.Encoding, md.CodedCharSetId, md.GroupId, md.MsgFlags) == (
        b"MQSTR   ", 273, 1208, CMQC.MQGI_NONE, 0,
    )  # fmt: skip
    assert follower.status()["duplicates"] == 4


def test_a_group_keeps_its_numbers(log: Log) -> None:
    flags = [
        CMQC.MQMF_MSG_IN_GROUP,
        CMQC.MQMF_MSG_IN_GROUP,
        CMQC.MQMF_MSG_IN_GROUP | CMQC.MQMF_LAST_MSG_IN_GROUP,
    ]
    pieces = [piece for n in (2, 0, 1) for piece in cut(b"%d" % n * 50, 30, n + 1, flags=flags[n])]
    log.block(*pieces)
    log.followed()
    assert [(md.MsgSeqNumber, md.MsgFlags, data[:1]) for md, data in log.got()] == [
        (3, 24, b"2"), (1, 8, b"0"), (2, 8, b"1"),
    ]  # fmt: skip
    assert {md.GroupId for md, _ in log.got()} == {GROUP}


@pytest.mark.parametrize("big", [True, False])
def test_without_reassembly_segments_stay_segments(log: Log, big: bool) -> None:
    pieces = [segment(b"x" * 32, 0, big=big), segment(b"end", 32, CMQC.MQMF_LAST_SEGMENT, big=big)]
    log.block(pieces[1], b"plain", pieces[0])
    log.followed(reassemble=False)
    found = [(md.Offset, md.MsgFlags, md.Format, md.Encoding, data) for md, data in log.got()]
    encoding = 273 if big else 546
    assert found == [
        (32, 6, b"MQSTR   ", encoding, b"end"),
        (0, 0, b"        ", CMQC.MQENC_NATIVE, b"plain"),
        (0, 2, b"MQSTR   ", encoding, b"x" * 32),
    ]


def test_an_mqmde_in_ebcdic(log: Log) -> None:
    fields = {"Encoding": 785, "CodedCharSetId": 500, "Format": "MQSTR   ", "GroupId": GROUP, "MsgFlags": 6}
    payload = structures.encode(MQMDE, fields, big=True, ccsid=500) + b"\xc8\xc9"
    log.block(payload)
    for reassemble in (True, False):
        path = log.folder / f"{reassemble}.db"
        log.followed(reassemble=reassemble, file=path)
        with QueueManager("", path, create=False) as manager:
            ((md, data),) = browse(Queue(manager, "EDGE", CMQC.MQOO_BROWSE))
        assert (md.Format, md.Encoding, md.CodedCharSetId, data) == (b"MQSTR   ", 785, 500, b"\xc8\xc9")


def test_what_is_longer_than_a_message_may_be_goes_in_segments(log: Log) -> None:
    data = random.Random(3).randbytes(5000)
    log.block(*cut(data, 999))
    log.followed(message_bytes=2000)
    found = log.got()
    assert [(md.Offset, len(piece), md.MsgFlags) for md, piece in found] == [
        (0, 2000, 2),
        (2000, 2000, 2),
        (4000, 1000, 6),
    ]
    assert b"".join(piece for _, piece in found) == data
    with QueueManager("", log.folder / "mq.db", create=False) as manager:
        queue = Queue(manager, "EDGE", CMQC.MQOO_INPUT_SHARED)
        options = GMO(Version=2, Options=CMQC.MQGMO_COMPLETE_MSG | CMQC.MQGMO_NO_SYNCPOINT, MatchOptions=0)
        assert queue.get(None, MD(Version=2), options) == data


def test_what_is_incomplete_when_reassembly_ends_is_set_aside(log: Log) -> None:
    pieces = [cut(b"x" * 9000, 5000, group=bytes([n]) * 24) for n in range(1, 151)]
    log.block(*(one[0] for one in pieces))
    log.followed()
    log.followers.pop().close()
    log.block(pieces[0][1])
    # More than there is room for now: it is given up nevertheless, and what comes is put.
    follower = log.followed(reassemble=False, bytes=600_000, message_bytes=100_000)
    assert [len(data) for data in log.data()] == [4000]
    status = follower.status()
    assert (status["state"], status["incomplete"], status["problems"]) == (
        "following",
        0,
        {"incomplete": 150},
    )
    assert status["set_aside"] + status["not_set_aside"] == 150
    assert not follower._left


def test_the_dead_letter_queue_says_how_long_its_messages_may_be(log: Log) -> None:
    """Whatever is set aside fits, and can be put there again by who goes by the attributes."""
    path = log.folder / "mq.db"
    # Made by somebody else, for less.
    QueueManager("", path, MaxMsgLength=1000).disconnect()
    log.block(segment(b"a" * 2000, 2000, Encoding=273), segment(b"b" * 2000, 4000, Encoding=546))
    log.block(segment(b"c" * 9000, MsgSeqNumber=0))
    log.followed(message_bytes=2000)
    found = log.got("DEAD")
    # The segments have an MQDLH and an MQMDE in front; what is malformed has an MQDLH in front of all of it.
    assert [len(data) for _, data in found] == [2000 + 244, 9000 + 72 + 172]
    with QueueManager("", path, create=False) as manager:
        of = {name: manager.inquire_queue(name, CMQC.MQIA_MAX_MSG_LENGTH) for name in ("EDGE", "DEAD")}
        assert of == {"EDGE": 2000, "DEAD": 100 << 20}
        assert manager.inquire(CMQC.MQIA_MAX_MSG_LENGTH) == 100 << 20
        for _, data in found:
            manager.put1("DEAD", data, MD(Format=CMQC.MQFMT_DEAD_LETTER_HEADER))
        with pytest.raises(MQMIError, match="2001 bytes; EDGE takes at most 2000"):
            manager.put1("EDGE", bytes(2001))
        assert manager.statistics("DEAD")[0].messages == 4


@pytest.mark.parametrize("group", [None, bytes(24), GROUP], ids=["none", "nuls", "its own"])
def test_what_is_no_segment_and_too_long_goes_in_segments(log: Log, group: bytes | None) -> None:
    texts = [random.Random(seed).randbytes(5000) for seed in range(2)]
    for data in texts:
        log.block(data if group is None else segment(data, flags=0, GroupId=group))
    log.followed(message_bytes=2000)
    assert [len(piece) for _, piece in log.got()] == [2000, 2000, 1000] * 2
    with QueueManager("", log.folder / "mq.db", create=False) as manager:
        queue = Queue(manager, "EDGE", CMQC.MQOO_INPUT_SHARED)
        options = GMO(Version=2, Options=CMQC.MQGMO_COMPLETE_MSG | CMQC.MQGMO_NO_SYNCPOINT, MatchOptions=0)
        assert [queue.get(None, MD(Version=2), options) for _ in texts] == texts


@pytest.mark.parametrize(
    "bound", [{"depth": 10}, {"bytes": 1 << 20, "spill": 1 << 20}], ids=lambda bound: next(iter(bound))
)
def test_a_message_that_the_queue_can_never_hold_stops_nothing(log: Log, bound: dict[str, int]) -> None:
    data = random.Random(3).randbytes(1_000_000)
    log.block(*cut(data, 60_000), b"behind it")
    follower = log.followed(message_bytes=1024, **bound)
    assert log.data() == [b"behind it"]
    status = follower.status()
    assert (status["state"], status["problems"], status["not_set_aside"]) == (
        "following",
        {"too large": 1},
        1,
    )


def test_messages_of_mqtt_5_0(log: Log) -> None:
    plain, named, nameless = (
        b"\x30\x06\x00\x03a/1\x00",
        b"\x32\x0c\x00\x03a/2\x00\x07\x03\x23\x00\x01b",
        b"\x30\x07\x00\x00\x03\x23\x00\x01c",
    )
    for frame in (plain, named, nameless, b"\x30\x07\x00\x03a/1\x01\x01"):
        log.land(frame, version=5)
    follower = log.followed()
    assert log.data() == [b"", b"b"]
    assert (follower.status()["unnamed"], follower.status()["malformed"]) == (1, 1)


def test_a_proven_duplicate_is_left_out(log: Log) -> None:
    first = log.land(mqtt("a/b", b"one"), mark=ORIGINAL)
    log.land(mqtt("a/b", b"one"), mark=DUPLICATE, first_ns=first)
    log.land(mqtt("a/b", b"one"), mark=UNCERTAIN)
    follower = log.followed()
    log.land(mqtt("a/b", b"one"), mark=DUPLICATE, first_ns=first)
    log.writer.flush()
    follower.step()
    assert log.data() == [b"one", b"one"]
    assert (follower.status()["messages"], follower.status()["duplicates"]) == (2, 2)


def test_a_duplicate_of_what_was_not_read_is_put(log: Log) -> None:
    """Its first receipt is in a damaged block, or an earlier start has read it: then nothing is proven here."""
    gone = log.time_ns
    for _ in range(2):
        log.land(mqtt("a/b", b"one"), mark=DUPLICATE, first_ns=gone)
    follower = log.followed()
    assert log.data() == [b"one"]
    assert follower.status()["duplicates"] == 1


def test_a_duplicate_of_another_packet_id_is_put(log: Log) -> None:
    """Two messages may have the same receive time; the packet id tells which of them the mark names."""
    first = log.land(mqtt("a/b", b"one", packet_id=1), mark=ORIGINAL)
    log.land(mqtt("a/b", b"two", packet_id=2), mark=DUPLICATE, first_ns=first)
    log.land(mqtt("a/b", b"one", packet_id=1), mark=DUPLICATE, first_ns=first)
    follower = log.followed()
    assert log.data() == [b"one", b"two"]
    assert follower.status()["duplicates"] == 1


def test_messages_of_fmq(log: Log) -> None:
    log.land(fmq(PUBLISH, "a/1", b"by name", 1), FMQ, version=0)
    log.land(fmq(REGISTER, "a/2"), FMQ, version=0)
    log.land(fmq(PUBLISH, hash_of("a/2"), b"by hash", 2), FMQ, version=0)
    log.land(fmq(PUBLISH, hash_of("nobody/said"), b"unknown", 3), FMQ, version=0)
    log.land(fmq(PUBLISH, "b/1", b"another topic", 4), FMQ, version=0)
    log.land(b"\x32 no frame", FMQ, version=0)
    follower = log.followed()
    assert log.data() == [b"by name", b"by hash"]
    assert (follower.status()["unnamed"], follower.status()["malformed"]) == (1, 1)
    # What is not for the queue is not kept.
    log.land(fmq(REGISTER, "b/2"), FMQ, version=0)
    log.writer.flush()
    follower.step()
    assert follower._forward.file.db.execute("SELECT name FROM follow_topics").fetchall() == [("a/2",)]
    # Names are known to the next one, too; and what comes again has the same MsgId.
    log.land(fmq(PUBLISH, hash_of("a/2"), b"by hash", 2), FMQ, version=0)
    log.followed()
    assert [data for _, data in log.got()] == [b"by name", b"by hash", b"by hash"]
    ids = [md.MsgId for md, _ in log.got()]
    assert ids[0] != ids[1] == ids[2]


# ---- what is not ----------------------------------------------------------------------------------------------------


def test_what_stays_incomplete_is_set_aside_with_what_is_missing(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    pieces = cut(b"0123456789" * 10, 20)
    log.block(pieces[0], pieces[2])
    follower = log.followed(timeout=50)
    follower._expire(time.time() + 49)
    assert follower.status()["problems"] == {}
    follower._expire(time.time() + 60)
    assert follower.status()["problems"] == {"incomplete": 1}
    assert "missing: of message 1 bytes 20 to 39" in caplog.text
    assert log.data() == []
    assert [(reason, queue, rest[72:]) for reason, queue, rest in dead(log)] == [
        (CMQC.MQRC_INCOMPLETE_MSG, "EDGE", b"01234567890123456789"),
        (CMQC.MQRC_INCOMPLETE_MSG, "EDGE", b"01234567890123456789"),
    ]
    mdes = [structures.decode(MQMDE, rest, big=False, ccsid=819) for _, _, rest in dead(log)]
    assert [(mde["GroupId"], mde["Offset"]) for mde in mdes] == [(GROUP, 0), (GROUP, 40)]


def test_what_stays_incomplete_is_reported_after_the_clock_went_back(log: Log) -> None:
    log.block(cut(b"x" * 40, 20)[0])
    follower = log.followed(timeout=50)
    now = time.time()
    follower._expire(now + 10)
    # The time-out begins anew.
    follower._expire(now - 5000)
    follower._expire(now - 4960)
    assert follower.status()["problems"] == {}
    follower._expire(now - 4949)
    assert follower.status()["problems"] == {"incomplete": 1}


def test_a_clock_that_is_set_gives_nothing_up(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also over a restart of the gateway: only time that has passed counts."""
    clocks = SetClocks()
    monkeypatch.setattr("headwater_mq.queue_file.MACHINE", clocks)
    monkeypatch.setattr(time, "time", lambda: clocks.at / 1e9)
    log.block(cut(b"x" * 40, 20)[0])
    follower = log.followed(timeout=3600)
    for step in (8 * DAY, -16 * DAY):
        clocks.step(step)
        follower = log.follow(timeout=3600)
        for _ in range(3):
            follower.step()
            clocks.go(2 * SECOND)
        assert (follower.status()["problems"], follower.status()["incomplete"]) == ({}, 1)
    clocks.go(3600 * SECOND)
    follower.step()
    assert follower.status()["problems"] == {"incomplete": 1}


def test_what_an_earlier_program_holds_has_its_whole_time_out(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = SetClocks()
    monkeypatch.setattr("headwater_mq.queue_file.MACHINE", clocks)
    log.block(cut(b"x" * 40, 20)[0])
    follower = log.followed(timeout=3600)
    with follower._forward.transaction() as db:
        db.execute("DELETE FROM about WHERE name = 'age'")
        db.execute("UPDATE assembly_group SET touched = 1.0")
    follower.close()
    follower = log.followed(timeout=3600)
    assert follower.status()["problems"] == {}
    clocks.go(3601 * SECOND)
    follower.step()
    assert follower.status()["problems"] == {"incomplete": 1}


def test_more_groups_than_may_be_open_are_refused(log: Log) -> None:
    pieces = [cut(b"%d" % n * 40, 20, group=bytes([n + 1]) * 24) for n in range(3)]
    log.block(*[first for first, _ in pieces])
    follower = log.followed(open_groups=2)
    assert (follower.status()["incomplete"], follower.status()["problems"]) == (2, {"room": 1})
    assert [reason for reason, _, _ in dead(log)] == [CMQC.MQRC_STORAGE_MEDIUM_FULL]
    # There is room again when others are whole.
    log.block(pieces[0][1], pieces[1][1], *pieces[2])
    follower.step()
    assert log.data() == [b"0" * 40, b"1" * 40, b"2" * 40]


def test_what_nothing_came_of_while_the_gateway_was_off(log: Log) -> None:
    log.block(cut(b"x" * 40, 20)[0])
    log.followed(timeout=1000)
    again = log.follow(timeout=1000)
    again._expire(time.time() + 2000)
    assert again.status()["problems"] == {"incomplete": 1}


_WRONG = {
    "short": (segment(b"x")[:40], CMQC.MQRC_MDE_ERROR),
    "flags": (segment(b"x", flags=0x40 | 2), CMQC.MQRC_MSG_FLAGS_ERROR),
    "number": (segment(b"x", MsgSeqNumber=0), CMQC.MQRC_MSG_SEQ_NUMBER_ERROR),
    "offset": (segment(b"x", -1), CMQC.MQRC_OFFSET_ERROR),
    "empty": (segment(b""), CMQC.MQRC_SEGMENT_LENGTH_ZERO),
}


@pytest.mark.parametrize("reassemble", [True, False])
@pytest.mark.parametrize("name", _WRONG)
def test_a_wrong_mqmde_is_set_aside_as_it_came(log: Log, name: str, reassemble: bool) -> None:
    payload, reason = _WRONG[name]
    log.block(b"before", payload, b"behind")
    follower = log.followed(reassemble=reassemble)
    assert log.data() == [b"before", b"behind"]
    assert dead(log) == [(reason, "EDGE", payload)]
    assert follower.status()["set_aside"] == 1


def test_contradicting_segments_are_set_aside_and_stop_nothing(log: Log) -> None:
    log.block(segment(b"0123"), segment(b"0xx3", 0), segment(b"45", 4, CMQC.MQMF_LAST_SEGMENT), b"plain")
    follower = log.followed()
    assert log.data() == [b"plain"]
    assert follower.status()["problems"] == {"overlap": 1, "late": 1}
    assert [rest[-4:] for _, _, rest in dead(log)][:1] == [b"0123"]


# ---- as a whole -----------------------------------------------------------------------------------------------------


def test_a_thread_that_follows(log: Log) -> None:
    follower = log.follow()
    thread = threading.Thread(target=follower.run)
    thread.start()
    try:
        for n in range(5):
            log.block(b"%d" % n)
        wait_until(lambda: follower.counts["put"] >= 5)
    finally:
        follower.stop()
        thread.join()
    assert log.data() == [b"%d" % n for n in range(5)]


def test_a_file_has_one_gateway(log: Log) -> None:
    service = MqService(log.config(), log.path, log.durable)
    with pytest.raises(CommandError, match="another gateway fills the queue in"):
        MqService(log.config(), log.path, log.durable)
    link = log.folder / "link.db"
    link.symlink_to(log.config().file)
    with pytest.raises(CommandError, match="another gateway fills the queue in"):
        MqService(replace(log.config(), file=link), log.path, log.durable)
    asyncio.run(service.stop())
    asyncio.run(MqService(log.config(), log.path, log.durable).stop())


def test_nobody_deletes_the_queues_of_a_gateway(log: Log) -> None:
    log.block(b"one")
    follower = log.followed()
    config = log.config()
    with QueueManager(path=config.file) as manager:
        for name in (config.queue, config.dead_letter_queue):
            with pytest.raises(MQMIError, match="MQRC_OBJECT_IN_USE"):
                manager.delete(name, purge=True)
        with Queue(manager, config.queue, CMQC.MQOO_INPUT_EXCLUSIVE) as queue:
            assert queue.get() == b"one"
        log.block(b"two")
        follower.step()
        assert log.data() == [b"two"]
        follower.close()
        manager.delete(config.queue, purge=True)


def test_a_file_of_something_else_is_refused(log: Log) -> None:
    (log.folder / "mq.db").write_text("no queue at all, but a text that is long enough to be read" * 20)
    with pytest.raises(MQMIError):
        log.follow()


def test_big_and_slow_does_not_grow(log: Log) -> None:
    """A message of many segments passes through little memory."""
    data = random.Random(6).randbytes(2 << 20)
    pieces = cut(data, 4000)
    random.Random(7).shuffle(pieces)
    for at in range(0, len(pieces), 100):
        log.block(*islice(pieces, at, at + 100))
    log.followed(memory=1 << 16)
    assert log.data() == [data]
