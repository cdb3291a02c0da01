"""Target: an assembler, given any payloads, over commits and crashes.

An input is a byte of options (1: by groups, 2: little memory), and a script of steps (see ``assembly``): segments cut
from one text, some with a byte that contradicts it, any bytes as a payload, times that pass, commits and crashes.
"""

import sqlite3
from typing import Any

from headwater.ibmmq.header import MQMDE
from headwater_host.mq.reassembly.assembler import Assembler
from headwater_host.mq.reassembly.outcomes import Problem, WholeGroup
from headwater_host.mq.structures import encode
from tests.fuzz.script import Script

#: What the messages are cut from. A byte of it may come with its highest bit set.
TEXT = bytes(range(64))
#: The topic of payloads that are made of something else.
STRANGE = "c"
ROOM = 20_000
TIME_OUT = 10.0


def _content(one: Any) -> None:
    """What is handed out was sent, and what is reported is explained."""
    if isinstance(one, Problem):
        assert one.reason and str(one) and one.as_dict()
        assert one.kind != "incomplete" or one.missing
        reach: dict[int, int] = {}
        for seq, at, data in one.pieces():
            assert data and at >= reach.get(seq, 0)
            reach[seq] = at + len(data)
            assert one.topic == STRANGE or bytes(byte & 127 for byte in data) == TEXT[at : at + len(data)]
        return
    messages = list(one.messages()) if isinstance(one, WholeGroup) else [one]
    if isinstance(one, WholeGroup):
        assert [message.seq for message in messages] == list(range(1, one.count + 1))
        assert one.length == sum(message.length for message in messages)
    for message in messages:
        data = message.read()
        assert len(data) == message.length
        if message.topic != STRANGE:
            assert bytes(byte & 127 for byte in data) == TEXT[: len(data)]


def _segment(script: Script) -> bytes:
    """A part of the text, as a segment, or a message that is none; its numbers may be wrong."""
    how, flags = script.byte(), script.byte() & 31
    offset = script.below(64) if flags & 6 else 0
    data = bytearray(TEXT[offset : offset + script.below(24)])
    if how >= 224 and data:
        data[script.below(len(data))] |= 128
    fields = {
        "GroupId": bytes([how & 3]) * 24,
        "MsgSeqNumber": script.below(4 if how & 16 else 5),
        "Offset": -offset if how == 128 else offset,
        "MsgFlags": flags,
        "Encoding": 785 if how == 129 else 273,
        "CodedCharSetId": 1208,
    }
    return encode(MQMDE, fields, big=bool(how & 4), ccsid=500 if how & 8 else 819) + data


def assembly(data: bytes) -> None:
    """It hands out what was sent, stays within its bounds, and at the end holds nothing."""
    script = Script(data)
    options = script.byte()
    memory = 6000 if options & 2 else 1 << 20
    db = sqlite3.connect(":memory:")
    now = saved = 0.0

    def begin() -> Assembler:
        by_group = bool(options & 1)
        return Assembler(
            db, memory=memory, room=ROOM, open_groups=3, timeout=TIME_OUT, groups=by_group, remembered=4
        )

    assembler = begin()
    db.commit()
    while script.more():
        step = script.byte()
        outcomes: list[Any] = []
        if step < 200:
            outcomes = assembler.add("ab"[step & 1], _segment(script), now)
        elif step < 210:
            payload = script.take(script.below(90))
            if step & 1:
                payload = encode(MQMDE, {}, big=True, ccsid=819)[: 12 + script.below(20)] + payload
            outcomes = assembler.add(STRANGE, payload, now)
        elif step < 230:
            now += script.below(12)
            outcomes = list(assembler.expire(now, 1 + script.below(3)))
        elif step < 245:
            assembler.flush()
            db.commit()
            saved = now
        else:
            db.rollback()
            now = saved
            assembler = begin()
        for one in outcomes:
            _content(one)
        assert assembler.memory_bytes <= memory
        assert 0 <= assembler.held_bytes <= ROOM
        assert 0 <= assembler.groups <= 3
    while left := assembler.expire(now + TIME_OUT):
        for one in left:
            _content(one)
    assembler.flush()
    assert (assembler.memory_bytes, assembler.held_bytes, assembler.groups) == (0, 0, 0)
    for table in ("group", "message", "piece"):
        assert db.execute(f"SELECT count(*) FROM assembly_{table}").fetchone() == (0,)
    db.close()
