"""What the gateway puts into a local queue of IBM MQ's kind: from a log that is written meanwhile, once each."""

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from headwater.fmq.spec import DATETIME, PUBLISH, REGISTER
from headwater.ibmmq.layouts import MQDLH, MQMDE
from headwater_host.capture import RECEIVED, SENT, CaptureWriter
from headwater_host.exits import CommandError
from headwater_host.fmq.hashes import hash_of
from headwater_host.fmq.values import encode
from headwater_host.gateway.landing import FMQ, MQTT
from headwater_host.gateway.mq import Follower
from headwater_host.gateway.mq_config import MqConfig
from headwater_host.gateway.mq_service import MqService
from headwater_host.hub import frames
from headwater_host.ibmmq import CMQC, structures
from headwater_host.ibmmq.errors import MQMIError
from headwater_host.ibmmq.queue.descriptors import GMO, MD
from headwater_host.ibmmq.queue.manager import QueueManager
from headwater_host.ibmmq.queue.queue import Queue

GROUP = bytes(range(24))


def mqtt(topic: str, payload: bytes, qos: int = 1, packet_id: int = 7) -> bytes:
    """A PUBLISH."""
    name = topic.encode()
    body = len(name).to_bytes(2, "big") + name + (packet_id.to_bytes(2, "big") if qos else b"") + payload
    length, size = b"", len(body)
    while True:
        length += bytes([size & 127 | (128 if size > 127 else 0)])
        size >>= 7
        if not size:
            return bytes([0x30 | qos << 1]) + length + body


def fmq(kind: int, topic: Any, payload: bytes = b"", number: int = 1) -> bytes:
    """A frame of FMQ: a PUBLISH, or a REGISTER."""
    time_ns = 1_790_000_000_000_000_000 + number
    message_id = bytes([kind << 4 | 1, 9, 0, DATETIME << 4]) + time_ns.to_bytes(8, "little")
    body = encode(topic) + (encode([]) + payload if kind == PUBLISH else b"")
    return frames.framed(kind << 4 | (2 if kind == PUBLISH else 0), message_id, body)


def segment(
    data: bytes, offset: int = 0, flags: int = CMQC.MQMF_SEGMENT, *, big: bool = True, **more: Any
) -> bytes:
    """A payload with an MQMDE in front, as a board writes it."""
    fields = {
        "Encoding": 273 if big else 546,
        "CodedCharSetId": 1208,
        "Format": "MQSTR   ",
        "GroupId": GROUP,
        "Offset": offset,
        "MsgFlags": flags,
        **more,
    }
    return structures.encode(MQMDE, fields, big=big, ccsid=819) + data


def cut(data: bytes, size: int, seq: int = 1, group: bytes = GROUP, flags: int = 0) -> list[bytes]:
    """A message in segments."""
    pieces = []
    for at in range(0, len(data), size):
        last = CMQC.MQMF_LAST_SEGMENT if at + size >= len(data) else 0
        piece = segment(
            data[at : at + size], at, flags | CMQC.MQMF_SEGMENT | last, GroupId=group, MsgSeqNumber=seq
        )
        pieces.append(piece)
    return pieces


class Log:
    """A log that is written, and what follows it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.path = folder / "log"
        self.writer = CaptureWriter(self.path)
        self.followers: list[Follower] = []
        self.time_ns = time.time_ns()

    def land(self, frame: bytes, protocol: int = MQTT, direction: int = RECEIVED, version: int = 4) -> None:
        self.time_ns += 1000
        self.writer.append(self.time_ns, 1, "test", direction, protocol, version, frame)

    def block(self, *payloads: bytes, topic: str = "a/b") -> None:
        """These messages, as a block."""
        for payload in payloads:
            self.land(mqtt(topic, payload))
        self.writer.flush()

    def restart(self) -> None:
        """As when the gateway does."""
        self.writer.close()
        self.writer = CaptureWriter(self.path)

    def durable(self) -> int:
        return self.writer._log.next_sequence

    def config(self, **more: Any) -> MqConfig:
        values = {
            "file": self.folder / "mq.db",
            "topics": ("a/#",),
            "queue": "EDGE",
            "dead_letter_queue": "DEAD",
        }
        return MqConfig(**{**values, "start": "beginning", **more})

    def follow(self, **more: Any) -> Follower:
        follower = Follower(self.config(**more), self.path, self.durable)
        follower._forward.file.db.execute("PRAGMA synchronous = OFF")
        self.followers.append(follower)
        return follower

    def got(self, queue: str = "EDGE") -> list[tuple[MD, bytes]]:
        """What is in a queue, in its order."""
        with QueueManager("", self.folder / "mq.db", create=False) as manager:
            opened = Queue(manager, queue, CMQC.MQOO_BROWSE)
            return list(_browse(opened))

    def data(self) -> list[bytes]:
        return [data for _, data in self.got()]


def _browse(queue: Queue) -> Iterator[tuple[MD, bytes]]:
    which = CMQC.MQGMO_BROWSE_FIRST
    while True:
        md = MD(Version=CMQC.MQMD_VERSION_2)
        options = GMO(Options=which | CMQC.MQGMO_NO_WAIT, Version=2, MatchOptions=CMQC.MQMO_NONE)
        try:
            data = queue.get(None, md, options)
        except MQMIError as error:
            if error.reason != CMQC.MQRC_NO_MSG_AVAILABLE:
                raise
            return
        yield md, data
        which = CMQC.MQGMO_BROWSE_NEXT


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    found = Log(tmp_path)
    yield found
    found.writer.close()
    for follower in found.followers:
        follower.close()


def dead(log: Log) -> list[tuple[Any, str, bytes]]:
    """Reason, what for, and the rest, of the dead-letter queue."""
    found = []
    for md, data in log.got("DEAD"):
        assert md.Format == CMQC.MQFMT_DEAD_LETTER_HEADER
        dlh = structures.decode(MQDLH, data, big=False, ccsid=819)
        found.append((dlh["Reason"], str(dlh["DestQName"]).rstrip(), data[172:]))
    return found


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
    follower = log.follow()
    follower.step()
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
    log.follow().step()
    assert [(md.MsgSeqNumber, md.MsgFlags, data[:1]) for md, data in log.got()] == [
        (3, 24, b"2"), (1, 8, b"0"), (2, 8, b"1"),
    ]  # fmt: skip
    assert {md.GroupId for md, _ in log.got()} == {GROUP}


@pytest.mark.parametrize("big", [True, False])
def test_without_reassembly_segments_stay_segments(log: Log, big: bool) -> None:
    pieces = [segment(b"x" * 32, 0, big=big), segment(b"end", 32, CMQC.MQMF_LAST_SEGMENT, big=big)]
    log.block(pieces[1], b"plain", pieces[0])
    log.follow(reassemble=False).step()
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
        follower = log.follow(reassemble=reassemble, file=path)
        follower.step()
        with QueueManager("", path, create=False) as manager:
            ((md, data),) = _browse(Queue(manager, "EDGE", CMQC.MQOO_BROWSE))
        assert (md.Format, md.Encoding, md.CodedCharSetId, data) == (b"MQSTR   ", 785, 500, b"\xc8\xc9")


def test_what_is_longer_than_a_message_may_be_goes_in_segments(log: Log) -> None:
    data = random.Random(3).randbytes(5000)
    log.block(*cut(data, 999))
    log.follow(message_bytes=2000).step()
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
    log.follow().step()
    log.followers.pop().close()
    log.block(pieces[0][1])
    # More than there is room for now: it is given up nevertheless, and what comes is put.
    follower = log.follow(reassemble=False, bytes=600_000, message_bytes=100_000)
    follower.step()
    assert [len(data) for data in log.data()] == [4000]
    status = follower.status()
    assert (status["state"], status["incomplete"], status["problems"]) == (
        "following",
        0,
        {"incomplete": 150},
    )
    assert status["set_aside"] + status["not_set_aside"] == 150
    assert not follower._left


@pytest.mark.parametrize("group", [None, bytes(24), GROUP], ids=["none", "nuls", "its own"])
def test_what_is_no_segment_and_too_long_goes_in_segments(log: Log, group: bytes | None) -> None:
    texts = [random.Random(seed).randbytes(5000) for seed in range(2)]
    for data in texts:
        log.block(data if group is None else segment(data, flags=0, GroupId=group))
    log.follow(message_bytes=2000).step()
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
    follower = log.follow(message_bytes=1024, **bound)
    follower.step()
    assert log.data() == [b"behind it"]
    status = follower.status()
    assert (status["state"], status["problems"], status["not_set_aside"]) == (
        "following",
        {"too large": 1},
        1,
    )


def test_messages_of_fmq(log: Log) -> None:
    log.land(fmq(PUBLISH, "a/1", b"by name", 1), FMQ, version=0)
    log.land(fmq(REGISTER, "a/2"), FMQ, version=0)
    log.land(fmq(PUBLISH, hash_of("a/2"), b"by hash", 2), FMQ, version=0)
    log.land(fmq(PUBLISH, hash_of("nobody/said"), b"unknown", 3), FMQ, version=0)
    log.land(fmq(PUBLISH, "b/1", b"another topic", 4), FMQ, version=0)
    log.land(b"\x32 no frame", FMQ, version=0)
    log.writer.flush()
    follower = log.follow()
    follower.step()
    assert log.data() == [b"by name", b"by hash"]
    assert (follower.status()["unnamed"], follower.status()["malformed"]) == (1, 1)
    # What is not for the queue is not kept.
    log.land(fmq(REGISTER, "b/2"), FMQ, version=0)
    log.writer.flush()
    follower.step()
    assert follower._forward.file.db.execute("SELECT name FROM follow_topics").fetchall() == [("a/2",)]
    # Names are known to the next one, too; and what comes again has the same MsgId.
    log.land(fmq(PUBLISH, hash_of("a/2"), b"by hash", 2), FMQ, version=0)
    log.writer.flush()
    log.follow().step()
    assert [data for _, data in log.got()] == [b"by name", b"by hash", b"by hash"]
    ids = [md.MsgId for md, _ in log.got()]
    assert ids[0] != ids[1] == ids[2]


# ---- what is not ----------------------------------------------------------------------------------------------------


def test_what_stays_incomplete_is_set_aside_with_what_is_missing(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    pieces = cut(b"0123456789" * 10, 20)
    log.block(pieces[0], pieces[2])
    follower = log.follow(timeout=50)
    follower.step()
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


def test_more_groups_than_may_be_open_are_refused(log: Log) -> None:
    pieces = [cut(b"%d" % n * 40, 20, group=bytes([n + 1]) * 24) for n in range(3)]
    log.block(*[first for first, _ in pieces])
    follower = log.follow(open_groups=2)
    follower.step()
    assert (follower.status()["incomplete"], follower.status()["problems"]) == (2, {"room": 1})
    assert [reason for reason, _, _ in dead(log)] == [CMQC.MQRC_STORAGE_MEDIUM_FULL]
    # There is room again when others are whole.
    log.block(pieces[0][1], pieces[1][1], *pieces[2])
    follower.step()
    assert log.data() == [b"0" * 40, b"1" * 40, b"2" * 40]


def test_what_nothing_came_of_while_the_gateway_was_off(log: Log) -> None:
    log.block(cut(b"x" * 40, 20)[0])
    log.follow(timeout=1000).step()
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
    follower = log.follow(reassemble=reassemble)
    follower.step()
    assert log.data() == [b"before", b"behind"]
    assert dead(log) == [(reason, "EDGE", payload)]
    assert follower.status()["set_aside"] == 1


def test_contradicting_segments_are_set_aside_and_stop_nothing(log: Log) -> None:
    log.block(segment(b"0123"), segment(b"0xx3", 0), segment(b"45", 4, CMQC.MQMF_LAST_SEGMENT), b"plain")
    follower = log.follow()
    follower.step()
    assert log.data() == [b"plain"]
    assert follower.status()["problems"] == {"overlap": 1, "late": 1}
    assert [rest[-4:] for _, _, rest in dead(log)][:1] == [b"0123"]


# ---- once each ------------------------------------------------------------------------------------------------------


def _over(left: list[int]) -> bool:
    """SQLite asks this again and again, and stops when it is told to."""
    left[0] -= 1
    return left[0] < 0


def test_stopped_in_the_middle_of_anything(log: Log) -> None:
    """Whatever was not committed has not happened, whatever was is not done again."""
    rng = random.Random(4)
    whole = [rng.randbytes(300) for _ in range(6)]
    pieces = [p for n, data in enumerate(whole) for p in cut(data, 64, group=bytes([n + 1]) * 24)]
    pieces += [b"plain %d" % n for n in range(10)]
    rng.shuffle(pieces)
    for at in range(0, len(pieces), 8):
        log.block(*pieces[at : at + 8])
    deaths = 0
    for step in range(1, 1200, 25):
        left = [step]
        follower = log.follow()
        follower._chunk = 3
        follower._forward.file.db.set_progress_handler(partial(_over, left), 50)
        try:
            follower.step()
        except MQMIError:
            # SQLite was told to stop in the middle.
            deaths += 1
        finally:
            follower._forward.file.db.close()
            log.followers.remove(follower)
    assert deaths > 3
    log.follow().step()
    found = Counter(log.data())
    assert found == Counter([*whole, *(p for p in pieces if p.startswith(b"plain"))])


def test_it_goes_on_where_it_was(log: Log) -> None:
    log.block(b"1", b"2")
    log.follow().step()
    log.block(b"3")
    log.restart()
    log.block(b"4")
    log.follow().step()
    log.follow().step()
    assert log.data() == [b"1", b"2", b"3", b"4"]


def test_what_was_there_before_is_left_out_unless_asked_for(log: Log) -> None:
    log.block(b"old")
    follower = log.follow(start="now")
    follower.step()
    log.block(b"new")
    follower.step()
    log.restart()
    log.block(b"newer")
    log.follow(start="beginning").step()
    assert log.data() == [b"new", b"newer"]


def test_what_is_not_on_disk_is_not_taken(log: Log) -> None:
    log.block(b"1")
    log.block(b"2")
    durable = [1]
    follower = Follower(log.config(), log.path, lambda: durable[0])
    log.followers.append(follower)
    follower.step()
    assert log.data() == [b"1"]
    durable[0] = 2
    follower.step()
    assert log.data() == [b"1", b"2"]


def test_segments_of_the_log_that_are_gone_are_told(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    log.block(b"1")
    follower = log.follow()
    follower.step()
    for payload in (b"2", b"3", b"4"):
        log.restart()
        log.block(payload)
    for path in sorted(log.path.glob("segment-*"))[:3]:
        path.unlink()
    follower.step()
    assert log.data() == [b"1", b"4"]
    assert follower.status()["blocks_missed"] == 2
    assert "2 blocks of the log in front of block 3 are damaged, or gone" in caplog.text


def test_a_segment_that_goes_in_the_middle_of_a_block(log: Log) -> None:
    log.block(b"1", b"2", b"3")
    follower = log.follow(depth=2)
    follower.step()
    log.restart()
    log.block(b"4", b"5")
    min(log.path.glob("segment-*")).unlink()
    assert _take(log, 2) == [b"1", b"2"]
    follower.step()
    assert log.data() == [b"4", b"5"]
    assert follower.status()["blocks_missed"] == 1


def test_a_damaged_block_is_passed_over_and_told(log: Log) -> None:
    for payload in (b"1", b"2", b"3"):
        log.block(payload * 1000)
    (path,) = log.path.glob("segment-*")
    data = bytearray(path.read_bytes())
    data[data.index(b"2" * 1000) + 500] ^= 1
    path.write_bytes(data)
    follower = log.follow()
    follower.step()
    assert [data[:1] for data in log.data()] == [b"1", b"3"]
    assert (follower.status()["damage"], follower.status()["blocks_missed"]) == (1, 1)


def test_a_damaged_end_is_told_once(log: Log) -> None:
    log.block(b"1")
    log.block(b"2" * 1000)
    (path,) = log.path.glob("segment-*")
    data = bytearray(path.read_bytes())
    data[-500] ^= 1
    path.write_bytes(data)
    log.restart()
    follower = log.follow()
    for _ in range(5):
        follower.step()
    assert follower.status()["damage"] == 1
    log.block(b"3")
    follower.step()
    assert log.data() == [b"1", b"3"]
    assert (follower.status()["damage"], follower.status()["blocks_missed"]) == (1, 1)


def test_what_is_not_for_the_queue_does_not_wear_out_the_disk(log: Log) -> None:
    follower = log.follow()
    log.block(b"x", topic="a/b")
    follower.step()
    written = follower._forward.file.db.total_changes
    for _ in range(5):
        log.block(b"x", topic="other")
        follower.step()
    assert follower._forward.file.db.total_changes == written
    assert follower.status()["blocks_behind"] == 0
    # Killed now, it reads them again, to no effect.
    again = log.follow()
    assert again.status()["blocks_behind"] == 5
    again.step()
    assert log.data() == [b"x"]
    # Ended in good order, it does not.
    again.stop()
    again.run()
    assert log.follow().status()["blocks_behind"] == 0


def _replace(log: Log) -> None:
    """Another log in the place of this one."""
    log.writer.close()
    for path in log.path.iterdir():
        path.unlink()
    log.writer = CaptureWriter(log.path)


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_another_log_in_its_place_is_read_from_its_beginning(
    log: Log, caplog: pytest.LogCaptureFixture, blocks: int
) -> None:
    log.block(b"1")
    log.block(b"2")
    log.follow().step()
    _replace(log)
    others = [b"other %d" % n for n in range(blocks)]
    for payload in others:
        log.block(payload)
    follower = log.follow(start="now")
    assert f"blocks up to 2 of another log than this, which has {blocks}" in caplog.text
    follower.step()
    assert log.data() == [b"1", b"2", *others]
    assert follower.status()["blocks_missed"] == 0
    caplog.clear()
    log.follow().step()
    assert (log.data()[2:], caplog.text) == (others, "")


def test_another_log_before_anything_was_read(log: Log) -> None:
    log.block(b"old")
    log.follow(start="now").step()
    _replace(log)
    log.block(b"other 1")
    log.block(b"other 2")
    log.follow(start="now").step()
    assert log.data() == [b"other 1", b"other 2"]


def test_an_older_copy_of_the_log_that_has_grown(log: Log) -> None:
    log.block(b"1")
    (path,) = log.path.glob("segment-*")
    copy = path.read_bytes()
    log.block(b"2")
    log.follow().step()
    _replace(log)
    log.writer.close()
    path.write_bytes(copy)
    log.writer = CaptureWriter(log.path)
    for payload in (b"3", b"4"):
        log.block(payload)
    log.follow().step()
    assert log.data() == [b"1", b"2", b"1", b"3", b"4"]


def test_a_log_that_has_nothing_yet_is_no_other(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        log.follow().step()
    assert "another log" not in caplog.text


def test_removed_segments_do_not_make_it_another_log(log: Log) -> None:
    log.block(b"1")
    log.follow().step()
    log.restart()
    for path in log.path.glob("segment-*"):
        path.unlink()
    log.block(b"2")
    log.restart()
    follower = log.follow()
    follower.step()
    assert log.data() == [b"1", b"2"]
    assert follower.status()["blocks_missed"] == 0


# ---- room -----------------------------------------------------------------------------------------------------------


def _take(log: Log, count: int) -> list[bytes]:
    with QueueManager("", log.folder / "mq.db", create=False) as manager:
        queue = Queue(manager, "EDGE", CMQC.MQOO_INPUT_SHARED)
        return [queue.get(None, MD(), GMO(Options=CMQC.MQGMO_NO_SYNCPOINT)) for _ in range(count)]


@pytest.mark.parametrize(
    "bound", [{"depth": 7}, {"message_bytes": 2000, "bytes": 300_000, "spill": 1 << 16}], ids=str
)
def test_a_full_queue_stops_the_follower_which_catches_up_later(log: Log, bound: dict[str, int]) -> None:
    size = 10 if "depth" in bound else 1500
    payloads = [b"%04d" % n * (size // 4) for n in range(250 if size > 10 else 40)]
    for at in range(0, len(payloads), 9):
        log.block(*payloads[at : at + 9])
    follower = log.follow(**bound)
    taken: list[bytes] = []
    full = 0
    for _ in range(400):
        follower.step()
        status = follower.status()
        if status["blocks_behind"]:
            assert status["state"] == "full"
            full += 1
            assert status["depth"] <= 7 or "depth" not in bound
            size_now = follower._forward.size()
            assert size_now <= 300_000 + (1 << 16) + 8192 or "bytes" not in bound
        elif not status["depth"]:
            break
        taken += _take(log, min(5 if "depth" in bound else 60, status["depth"]))
    assert full >= 2
    assert taken == payloads


def test_a_message_that_is_whole_when_the_queue_is_full(log: Log) -> None:
    """What was handed out, and could not be put, is handed out again."""
    data = bytes(range(100))
    log.block(b"plain", *cut(data, 40), b"behind")
    follower = log.follow(depth=1)
    taken = []
    for _ in range(3):
        follower.step()
        follower.step()
        taken += _take(log, 1)
    assert taken == [b"plain", data, b"behind"]
    assert follower.status()["duplicates"] == 0


def test_a_full_dead_letter_queue_stops_nothing(log: Log) -> None:
    log.block(*[segment(b"x", MsgSeqNumber=0)] * 5, b"plain")
    follower = log.follow(depth=3)
    follower.step()
    assert len(dead(log)) == 3
    assert log.data() == [b"plain"]
    assert follower.status()["not_set_aside"] == 2


def test_problems_do_not_flood_the_log(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    log.block(*[segment(b"x", MsgSeqNumber=0)] * 50)
    follower = log.follow()
    follower.step()
    assert 15 < len(caplog.records) < 30
    assert follower.status()["problems"] == {"number": 50}


def test_a_thread_that_follows(log: Log) -> None:
    follower = log.follow()
    thread = threading.Thread(target=follower.run)
    thread.start()
    try:
        for n in range(5):
            log.block(b"%d" % n)
        deadline = time.monotonic() + 20
        while follower.counts["put"] < 5:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        follower.stop()
        thread.join()
    assert log.data() == [b"%d" % n for n in range(5)]


def test_a_file_has_one_gateway(log: Log) -> None:
    service = MqService(log.config(), log.path, log.durable)
    with pytest.raises(CommandError, match="another gateway fills the queue in"):
        MqService(log.config(), log.path, log.durable)
    asyncio.run(service.stop())
    asyncio.run(MqService(log.config(), log.path, log.durable).stop())


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
    log.follow(memory=1 << 16).step()
    assert log.data() == [data]
