"""The assembler: its bounds."""

import gc
import random
import sqlite3
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater_host.mq.CMQC import MQRC_OFFSET_ERROR, MQRC_STORAGE_MEDIUM_FULL
from headwater_host.mq.reassembly.assembler import Assembler
from tests.host.mq_assembler import ID, OTHER, TEXT, add, problem, whole
from tests.host.mq_segments import LS, G, S, cut, payload
from tests.rows import each_row


def test_what_has_no_room_is_refused_and_nothing_is_lost(db: sqlite3.Connection) -> None:
    assembler = Assembler(db, room=3000)
    parts = cut(ID, 1, TEXT, 250)
    add(assembler, *parts[:2])
    other = cut(OTHER, 1, bytes(2500), 1250)
    assert add(assembler, other[0]) == []
    for _ in range(2):
        found = problem(add(assembler, other[1]))
        assert (found.kind, found.reason, found.seq) == ("room", MQRC_STORAGE_MEDIUM_FULL, 1)
    assert assembler.held_bytes <= 3000
    # What is there already needs no room.
    assert add(assembler, parts[0]) == []
    assert whole(add(assembler, *parts[2:])).read() == TEXT
    assert whole(add(assembler, other[1])).read() == bytes(2500)
    assert assembler.counts.refused == 2


def test_only_so_many_groups_at_once(db: sqlite3.Connection) -> None:
    assembler = Assembler(db, open_groups=2)
    parts = cut(ID, 1, TEXT, 500)
    assert add(assembler, parts[0], cut(OTHER, 1, TEXT, 500)[0]) == []
    third = cut(b"c" * 24, 1, TEXT, 500)
    assert problem(add(assembler, third[0])).kind == "room"
    whole(add(assembler, parts[1]))
    assert whole(add(assembler, *third)).read() == TEXT


def fragments(count: int) -> list[bytes]:
    """A message in segments of one byte, every other of them."""
    return [payload(ID, 1, k, S, TEXT[k % 1000 : k % 1000 + 1]) for k in range(0, 2 * count, 2)]


def many_groups(count: int) -> list[bytes]:
    return [payload(k.to_bytes(24, "big"), 1, 3, S, b"x") for k in range(1, count)]


def many_messages(count: int) -> list[bytes]:
    return [payload(ID, k, 3, G | S, b"x") for k in range(1, count)]


def one_large_message(count: int) -> list[bytes]:
    return cut(ID, 1, bytes(count * 200), 200)[:-1]


def short_messages(count: int) -> list[bytes]:
    """Each is whole at once, and is remembered."""
    return [payload(k.to_bytes(24, "big"), 1, 0, LS, b"x") for k in range(1, count)]


@each_row("make", [fragments, many_groups, many_messages, one_large_message, short_messages])
def test_the_memory_it_really_takes_is_within_its_bound(
    tmp_path: Path, make: Callable[[int], list[bytes]]
) -> None:
    # Beside what is counted: SQLite's statements, and a call's own lists.
    memory, few = 150_000, 16_000
    payloads = make(1400)
    random.Random(2).shuffle(payloads)
    db = sqlite3.connect(tmp_path / "a.db")
    assembler = Assembler(db, memory=memory)
    for one in payloads[:100]:
        assembler.add("a/topic", one, 1.0)
    assembler.flush()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        most = 0
        for one in payloads[100:]:
            assembler.add("a/topic", one, 1.0)
            counted = assembler.memory_bytes
            assert counted <= memory
            most = max(most, counted)
        assert tracemalloc.get_traced_memory()[1] - before < memory + few
        # Without what Python keeps for the next objects of a kind.
        gc.collect()
        real = tracemalloc.get_traced_memory()[0] - before
        assert real < assembler.memory_bytes + few
    finally:
        tracemalloc.stop()
    assert most > memory // 2
    db.close()


def test_a_message_that_is_larger_than_memory(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "a.db")
    assembler = Assembler(db, memory=64 << 10)
    block = random.Random(4).randbytes(4096)
    count = 1500
    tracemalloc.start()
    try:
        for k in range(count - 1):
            assert assembler.add("t", payload(ID, 1, k * 4096, S, block), 1.0) == []
        one = whole(assembler.add("t", payload(ID, 1, (count - 1) * 4096, LS, block), 1.0))
        assert one.length == count * 4096
        assert all(chunk == block for chunk in one.chunks())
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
    db.close()


class _Older(sqlite3.Connection):
    """As of Python 3.10, which cannot read a part of a value."""

    blobopen = None


@each_row("factory", [sqlite3.Connection, _Older])
def test_a_stored_piece_is_compared_in_slices(factory: type[sqlite3.Connection], tmp_path: Path) -> None:
    """What comes again is left out, whatever differs is found, and neither takes the memory of what is there."""
    size = 4 << 20
    data = random.Random(5).randbytes(size)
    db = sqlite3.connect(tmp_path / "a.db", factory=factory)
    assembler = Assembler(db, memory=64 << 10, remembered=5)
    add(assembler, *(payload(bytes([n]) * 24, 1, 100, S, data) for n in range(1, 8)))
    # From before the piece to behind it, the same, and parts of it.
    same = [(100, data), (100, data[:-1]), (101, data[1:]), (100 + 70_000, data[70_000:-70_000])]
    # In the first slice, in the middle, and the very last byte, of the piece and of a part of it.
    others = [(at, bytearray(data)) for at in (0, 70_000, size // 2, size - 1)]
    for at, other in others:
        other[at] ^= 1
    payloads = [payload(b"\1" * 24, 1, offset, S, part) for offset, part in same]
    wrong = [payload(bytes([n]) * 24, 1, 100, S, bytes(other)) for n, (_, other) in enumerate(others, 2)]
    wrong.append(payload(b"\6" * 24, 1, 100 + size - 16, S, data[-16:-1] + b"?" + b"behind it"))
    assembler.flush()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for one in payloads:
            assert assembler.add("t", one, 1.0) == []
        faults = [problem(assembler.add("t", one, 1.0)) for one in wrong]
        assert tracemalloc.get_traced_memory()[1] - before < size // 4
    finally:
        tracemalloc.stop()
    assert assembler.counts.duplicates == len(payloads)
    assert [(one.kind, one.reason) for one in faults] == [("overlap", MQRC_OFFSET_ERROR)] * 5
    assert [one.text.split()[-2] for one in faults] == [
        str(100 + at) for at in (0, 70_000, size // 2, size - 1, size - 1)
    ]
    # The one that came again is whole with what was missing of it.
    assert assembler.add("t", payload(b"\1" * 24, 1, 100 + size - 16, LS, data[-16:] + b"behind"), 1.0) == []
    message = whole(assembler.add("t", payload(b"\1" * 24, 1, 0, S, bytes(100)), 1.0))
    assert message.read() == bytes(100) + data + b"behind"
    db.close()


def test_a_payload_that_is_larger_than_memory(db: sqlite3.Connection) -> None:
    assembler = Assembler(db, memory=4000)
    parts = cut(ID, 1, bytes(30_000), 10_000)
    for one in parts[:2]:
        assert add(assembler, one) == []
        assert assembler.memory_bytes <= 4000
    assert whole(add(assembler, parts[2])).length == 30_000


@pytest.mark.parametrize("topic", ["t", "a/longer/topic" * 100])
@pytest.mark.parametrize("memory", [0, 1999, 2003])
def test_less_memory_than_is_known_of_one_message(db: sqlite3.Connection, memory: int, topic: str) -> None:
    """That stays, and nothing else: neither bytes nor another message, of this GroupId or of others."""
    assembler = Assembler(db, memory=memory)
    ids = ID, OTHER
    parts = [
        (seq, part) for ident in ids for seq in (1, 2) for part in cut(ident, seq, TEXT, 300, grouped=True)
    ]
    random.Random(6).shuffle(parts)
    found = []
    for _, part in parts:
        found += assembler.add(topic, part, 1.0)
        assert assembler.memory_bytes <= 2000 + 4 * len(topic)
    assert assembler.memory_bytes == 2000 + 4 * len(topic)
    assert assembler.counts.whole == len(found) == 4
    assembler.flush()


def test_a_message_has_only_so_many_pieces_in_memory(db: sqlite3.Connection) -> None:
    assembler = Assembler(db)
    parts = fragments(4100)
    add(assembler, *parts[:4096])
    assert db.execute("SELECT count(*) FROM assembly_piece").fetchone() == (0,)
    add(assembler, *parts[4096:])
    assert db.execute("SELECT count(*) FROM assembly_piece").fetchone() == (4097,)


@pytest.mark.parametrize("memory", [3000, 1 << 20])
def test_one_piece_takes_the_place_of_those_it_has_all_bytes_of(db: sqlite3.Connection, memory: int) -> None:
    assembler = Assembler(db, memory=memory)
    add(assembler, *(payload(ID, 1, k, S, TEXT[k : k + 1]) for k in range(1, 900, 2)))
    add(assembler, payload(ID, 1, 0, S, TEXT[:899]))
    assert assembler.held_bytes == 900 + 64 * 3
    # Also when it brings nothing new: or it would be compared with each of them as often as it came.
    assert add(assembler, payload(ID, 1, 0, S, TEXT[:900])) == []
    assert assembler.counts.duplicates == 1
    assert assembler.held_bytes == 900 + 64 * 2
    assert whole(add(assembler, payload(ID, 1, 890, LS, TEXT[890:]))).read() == TEXT
    assembler.flush()
    assert (assembler.memory_bytes, assembler.held_bytes) == (0, 0)
