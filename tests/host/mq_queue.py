"""What tests of the local queue manager share."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import MD
from headwater_host.mq.errors import MQMIError
from headwater_mq.manager import QueueManager
from headwater_mq.options import GMO, PMO
from headwater_mq.queue import Queue

ALL = CMQC.MQOO_OUTPUT | CMQC.MQOO_INPUT_SHARED | CMQC.MQOO_BROWSE | CMQC.MQOO_INQUIRE
GROUP_ID = bytes(range(1, 25))

#: Flags, for short.
ALLOWED, SEG, LAST_SEG, GROUP, LAST = 1, 2, 4, 8, 16
#: Options, and the completion code of a warning.
ORDERED = CMQC.MQPMO_LOGICAL_ORDER
LOGICAL = CMQC.MQGMO_LOGICAL_ORDER
COMPLETE = CMQC.MQGMO_COMPLETE_MSG
ALL_MSGS = CMQC.MQGMO_ALL_MSGS_AVAILABLE
ALL_SEGS = CMQC.MQGMO_ALL_SEGMENTS_AVAILABLE
WARNING = CMQC.MQCC_WARNING


@contextmanager
def queue_manager(path: Path, *queues: str, **options: Any) -> Iterator[QueueManager]:
    with QueueManager("QM1", path / "queues.db", **({"keeps_over": "process"} | options)) as manager:
        for name in queues:
            manager.define(name)
        yield manager


def program(script: str, *arguments: object) -> "subprocess.Popen[str]":
    """Start a Python program with these arguments and pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )


def md2(**fields: Any) -> MD:
    """A descriptor of version 2."""
    return MD(Version=CMQC.MQMD_VERSION_2, **fields)


def gmo2(options: int = 0, **fields: Any) -> GMO:
    return GMO(Version=CMQC.MQGMO_VERSION_2, Options=options, **({"MatchOptions": CMQC.MQMO_NONE} | fields))


def sync() -> PMO:
    return PMO(Options=CMQC.MQPMO_SYNCPOINT)


def reason_of(call: Any, *args: Any, comp: int = CMQC.MQCC_FAILED, **named: Any) -> int:
    """The reason that a call gives when it fails (or, ``comp`` 1, warns)."""
    with pytest.raises(MQMIError) as caught:
        call(*args, **named)
    assert caught.value.comp == comp, caught.value
    return caught.value.reason


def attempt(call: Any, *args: Any) -> Any:
    """What a call returns, or the MQMIError that it raises."""
    try:
        return call(*args)
    except MQMIError as error:
        return error


def empty(queue: Queue, options: int = 0) -> bool:
    return reason_of(queue.get, None, MD(), gmo2(options)) == CMQC.MQRC_NO_MSG_AVAILABLE


def segments(data: bytes, size: int, *, flags: int = 0, **fields: Any) -> list[tuple[MD, bytes]]:
    """A logical message in segments of ``size`` bytes."""
    found = []
    for at in range(0, len(data), size):
        last = LAST_SEG if at + size >= len(data) else 0
        found.append((md2(Offset=at, MsgFlags=flags | SEG | last, **fields), data[at : at + size]))
    return found


def ordered(options: int = 0) -> PMO:
    """Put in logical order."""
    return PMO(Options=ORDERED | options)
