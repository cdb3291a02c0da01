"""What tests of a gateway's queue of IBM MQ's kind share: messages, a log that is written, and what follows it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headwater.fmq.spec import DATETIME, PUBLISH
from headwater.ibmmq.chain import MQDLH
from headwater.ibmmq.header import MQMDE
from headwater_host.capture import RECEIVED
from headwater_host.capture.format import MQTT, UNMARKED
from headwater_host.fmq.values import encode
from headwater_host.gateway.mq import Follower
from headwater_host.gateway.mq_config import MqConfig
from headwater_host.hub import frames
from headwater_host.mq import CMQC, structures
from headwater_host.mq.descriptors import MD
from headwater_host.mq.errors import MQMIError
from headwater_mq.manager import QueueManager
from headwater_mq.options import GMO
from headwater_mq.queue import Queue
from tools.capture_log import LogWriter

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
        self.writer = LogWriter(self.path)
        self.followers: list[Follower] = []
        self.time_ns = time.time_ns()

    def land(
        self,
        frame: bytes,
        protocol: int = MQTT,
        direction: int = RECEIVED,
        version: int = 4,
        mark: int = UNMARKED,
        first_ns: int = 0,
    ) -> int:
        """Record a frame; returns its receive time."""
        self.time_ns += 1000
        self.writer.append(self.time_ns, 1, "test", direction, protocol, version, frame, mark, first_ns)
        return self.time_ns

    def block(self, *payloads: bytes, topic: str = "a/b") -> None:
        """These messages, as a block."""
        for payload in payloads:
            self.land(mqtt(topic, payload))
        self.writer.flush()

    def restart(self) -> None:
        """As when the gateway does."""
        self.writer.close()
        self.writer = LogWriter(self.path)

    def durable(self) -> int:
        return self.writer.log.next_sequence

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

    def followed(self, **more: Any) -> Follower:
        """A follower that has taken everything recorded so far, as far as it can."""
        self.writer.flush()
        follower = self.follow(**more)
        follower.step()
        return follower

    def got(self, queue: str = "EDGE") -> list[tuple[MD, bytes]]:
        """What is in a queue, in its order."""
        with QueueManager("", self.folder / "mq.db", create=False) as manager:
            opened = Queue(manager, queue, CMQC.MQOO_BROWSE)
            return list(browse(opened))

    def data(self) -> list[bytes]:
        return [data for _, data in self.got()]


def browse(queue: Queue) -> Iterator[tuple[MD, bytes]]:
    """What is in a queue, in its order."""
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


@contextmanager
def logging_to(folder: Path) -> Iterator[Log]:
    """A log in this folder, and an end of it and of what follows it."""
    found = Log(folder)
    try:
        yield found
    finally:
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


def take(log: Log, count: int) -> list[bytes]:
    """Get so many messages."""
    with QueueManager("", log.folder / "mq.db", create=False) as manager:
        queue = Queue(manager, "EDGE", CMQC.MQOO_INPUT_SHARED)
        return [queue.get(None, MD(), GMO(Options=CMQC.MQGMO_NO_SYNCPOINT)) for _ in range(count)]
