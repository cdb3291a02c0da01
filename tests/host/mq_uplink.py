"""An uplink over a recorded queue manager: the messages it is given, and a run until they have gone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import MD
from headwater_host.mq.uplink import mqi
from headwater_host.mq.uplink.uplink import Uplink, UplinkConfig
from headwater_mq.forward import Forward, LocalQueue
from tests.host.mq_recorder import Queue, Recorder

TO = mqi.Channel("QM1", "EDGE.SVRCONN", "localhost(1414)")
ROOM = LocalQueue("EDGE", "DEAD", 1000, 1 << 20, 64 << 20)
# Units of work are small, so that a handful of messages is several.
PLAIN = UplinkConfig(TO, "IN", batch=3)
RECORDED = UplinkConfig(TO, "IN", "SYNC", batch=3)
#: Two groups, one of segments, and messages of their own between.
GROUP = [b"G" * 24, b"H" * 24]
MESSAGES: list[tuple[dict[str, Any], bytes]] = [
    ({}, b"first"),
    ({"GroupId": GROUP[0], "MsgSeqNumber": 1, "MsgFlags": CMQC.MQMF_MSG_IN_GROUP}, b"one"),
    ({"GroupId": GROUP[0], "MsgSeqNumber": 2, "MsgFlags": CMQC.MQMF_MSG_IN_GROUP}, b"two"),
    ({"GroupId": GROUP[1], "MsgFlags": CMQC.MQMF_SEGMENT}, b"0123456789abcdef"),
    ({"GroupId": GROUP[1], "Offset": 16, "MsgFlags": CMQC.MQMF_LAST_SEGMENT}, b"rest"),
    ({}, b""),
    ({"GroupId": GROUP[0], "MsgSeqNumber": 3, "MsgFlags": CMQC.MQMF_LAST_MSG_IN_GROUP}, b"three"),
    ({}, b"last"),
]  # fmt: skip
DATA = [data for _, data in MESSAGES]


def opened(path: Path, room: LocalQueue = ROOM) -> Forward:
    """What is not to be tested here is that SQLite waits for the disk."""
    outbox = Forward(path, room)
    outbox.file.db.execute("PRAGMA synchronous = OFF")
    return outbox


def fill(outbox: Forward) -> None:
    with outbox.transaction():
        for fields, data in MESSAGES:
            outbox.put(MD(Version=2, **fields), data)


def queues() -> dict[str, Queue]:
    return {"IN": Queue(), "SYNC": Queue()}


def run(
    outbox: Any,
    config: UplinkConfig,
    recorder: Recorder,
    steps: int = 400,
    stop: Callable[[], bool] = lambda: False,
) -> Uplink:
    """Let an uplink work until there is nothing left to do; its pauses take no time."""
    uplink = Uplink(config, outbox)
    with recorder:
        for _ in range(steps):
            uplink.step()
            if stop() or (not outbox.depth() and not outbox.state().pending):
                break
        else:
            raise AssertionError(f"it does not come to an end: {uplink.status()}, {recorder.verbs()[-30:]}")
        uplink._drop()
    assert recorder.misuse == []
    return uplink


def steps(outbox: Any, config: UplinkConfig, recorder: Recorder, count: int) -> Uplink:
    """Let an uplink work for so many steps."""
    uplink = Uplink(config, outbox)
    with recorder:
        for _ in range(count):
            uplink.step()
        uplink._drop()
    return uplink


def arrived(recorder: Recorder) -> list[bytes]:
    return [message.data for message in recorder.queues["IN"].messages]
