"""Logical messages: column-wise as by the plain rules, and from any DataFrame."""

import random
import sqlite3
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_host.mq.CMQC import MQRC_INCOMPLETE_MSG
from headwater_host.mq.fields import FAULTS
from headwater_host.mq.reassembly.assembler import Assembler
from headwater_host.mq.reassembly.outcomes import Problem
from headwater_host.mq.reassembly.verdicts import judge
from headwater_spark import assembly
from headwater_spark.assembly import assemble
from headwater_spark.logical import logical_messages
from headwater_spark.sizes import MAX_MESSAGE
from headwater_spark.tables import LOGICAL_MESSAGES
from tests.rows import each_row
from tests.spark.mq_bytes import (
    GROUP,
    LG,
    LS,
    Come,
    G,
    S,
    batches,
    in_order,
    mqmde,
    plain,
    segmented,
    some_groups,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MANY = 1 << 20


def together(come: list[Come], size: int = 5, **options: Any) -> list[dict[str, Any]]:
    """The rows of ``logical_messages``, column-wise."""
    found = []
    for columns in assemble(batches(come, size), **options):
        assert sorted(columns) == sorted(LOGICAL_MESSAGES.names)
        batch = pa.record_batch(
            [columns[f.name].cast(f.type) for f in LOGICAL_MESSAGES.plain], schema=LOGICAL_MESSAGES.plain
        )
        batch.validate(full=True)
        assert batch["time"].cast(pa.int64()).to_pylist() == [
            ns // 1000 for ns in batch["time_ns"].to_pylist()
        ]
        found += batch.to_pylist()
    return in_order(found)


def check(come: list[Come], **options: Any) -> list[dict[str, Any]]:
    found = together(come, **options)
    assert found == plain(come, options.get("max_message", MAX_MESSAGE))
    return found


def at(payloads: list[bytes], topic: str = "t") -> list[Come]:
    """Payloads that come one after the other."""
    return [Come(topic, payload, 1000 * k) for k, payload in enumerate(payloads)]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many segments the groups have that go through the rules one at a time."""
    sizes: list[int] = []

    def noted(segments: Any, *others: Any) -> Any:
        sizes.append(len(segments))
        return judge(segments, *others)

    monkeypatch.setattr(assembly, "judge", noted)
    return sizes


def test_a_message_in_any_order(judged: list[int]) -> None:
    pieces = segmented(b"0123456789", 3, Format="MQHRF2", Encoding=273)
    (row,) = check(at([pieces[2], pieces[0], pieces[3], pieces[1]]))
    assert row == {
        "time_ns": 0,
        "last_ns": 3000,
        "topic": "t",
        "group_id": GROUP,
        "seq": 1,
        "complete": True,
        "payload": b"0123456789",
        "length": 10,
        "format": "MQHRF2",
        "encoding": 273,
        "ccsid": 1208,
        "segments": 4,
        "duplicates": 0,
        "missing": None,
        "reason": None,
        "last_in_group": None,
        "group_complete": None,
        "group_missing": None,
    }
    assert judged == []


def test_a_group_in_any_order(judged: list[int]) -> None:
    pieces = [
        *segmented(b"abcdef", 4, G, seq=1),
        mqmde(b"alone", G, seq=2),
        *segmented(b"last", 2, LG, seq=3),
    ]
    found = check(at(pieces[::-1]))
    assert [
        (row["payload"], row["last_in_group"], row["group_complete"])
        for row in sorted(found, key=lambda row: row["seq"])
    ] == [(b"abcdef", False, True), (b"alone", False, True), (b"last", True, True)]
    assert judged == []


def test_messages_of_no_group_are_rows_by_themselves(judged: list[int]) -> None:
    found = check(at([mqmde(b"a", group=bytes(24)), mqmde(b"a", group=bytes(24)), mqmde(b"", 1, offset=7)]))
    assert [row["payload"] for row in found] == [b"a", b"a", b""]
    assert judged == []


PIECES = segmented(b"abcdefgh", 3)
UNUSUAL = {
    "the last is missing": (PIECES[:2], "of message 1 bytes 6 to its end, which is not known", 2242),
    "the first is missing": (PIECES[1:], "of message 1 bytes 0 to 2", 2242),
    "one is missing": ([PIECES[0], PIECES[2]], "of message 1 bytes 3 to 5", 2242),
    "one comes twice": ([*PIECES, PIECES[1]], None, None),
    "the last comes twice": ([*PIECES, PIECES[2]], None, None),
    "an overlap that agrees": ([*PIECES, mqmde(b"bcd", S, offset=1)], None, None),
    "an overlap that differs": (
        [*PIECES, mqmde(b"bXd", S, offset=1)],
        "segments that differ from byte 2 on",
        2251,
    ),
    "two ends": ([*PIECES, mqmde(b"fghi", LS, offset=5)], "two last segments; one ends at byte 8", 2249),
    "behind the end": ([*PIECES, mqmde(b"i", S, offset=8)], "a segment behind its last, at 8", 2251),
    "a segment and none": (
        [mqmde(b"abc", S | G), mqmde(b"abc", LG)],
        "is a segment and a whole message, at 0",
        2249,
    ),
    "encodings": ([PIECES[0], mqmde(b"d", LS, offset=3, Encoding=273)], "different Encoding, at 3", 2244),
    "ccsids": (
        [PIECES[0], mqmde(b"d", LS, offset=3, CodedCharSetId=37)],
        "different CodedCharSetId, at 3",
        2243,
    ),
}


@each_row("pieces, missing, reason", UNUSUAL.values(), ids=UNUSUAL)
def test_what_is_unusual_goes_through_the_rules(
    pieces: list[bytes], missing: str | None, reason: int | None, judged: list[int]
) -> None:
    judged.clear()
    (row,) = check(at(pieces))
    assert (row["reason"], row["complete"]) == (reason, reason is None)
    assert (row["missing"] is None) if missing is None else row["missing"].endswith(missing)
    assert row["payload"] == (None if reason else b"abcdefgh")
    assert row["duplicates"] == (len(pieces) - len({*pieces}) if reason is None else 0)
    assert judged == [len(pieces)]


def test_a_group_says_what_is_missing(judged: list[int]) -> None:
    pieces = [mqmde(b"1", G), *segmented(b"abcdef", 2, G, seq=4)[:2], mqmde(b"6", LG, seq=6)]
    found = check(at(pieces))
    said = "messages 2 to 3, 5; of message 4 bytes 4 to its end, which is not known"
    assert {row["group_missing"] for row in found} == {said}
    assert [(row["seq"], row["reason"]) for row in found if row["reason"]] == [(4, 2242)]
    assert {row["group_complete"] for row in found} == {False}
    assert judged == [4]


MEMBERS = {
    "a last message that only one segment knows of": [
        [mqmde(b"a", S | LG), mqmde(b"b", LS | G, offset=1), mqmde(b"c", LG, seq=2)],
        "the group has two last messages; one is 2",
    ],
    "two last messages": [
        [*segmented(b"abc", 2, LG), *segmented(b"abc", 2, LG, seq=2)],
        "the group has two last messages; one is 2",
    ],
    "one that is no member": [
        [mqmde(b"a", LG), mqmde(b"b", LS, seq=2)],
        "message 2 is in a group and in none, or others of its GroupId are",
    ],
    "no last message": [
        [mqmde(b"a", G), mqmde(b"b", G, seq=2)],
        "messages 3 to the last, which is not known",
    ],
    "no first message": [[mqmde(b"a", G, seq=2), mqmde(b"b", LG, seq=3)], "messages 1"],
}


@each_row("pieces, said", MEMBERS.values(), ids=MEMBERS)
def test_a_group_that_is_not_whole(pieces: list[bytes], said: str, judged: list[int]) -> None:
    judged.clear()
    found = [row for row in check(at(pieces)) if row["group_complete"] is not None]
    assert {row["group_missing"] for row in found} == {said}
    assert {row["complete"] for row in found} == {True}
    assert judged == [len(pieces)]


def test_of_two_that_are_alike_the_first_says_what_the_data_are() -> None:
    pieces = [mqmde(b"abc", LS, Format=name) for name in ("MQHRF2", "MQSTR", "MQPCF")]
    come = [Come("t", piece, time_ns) for piece, time_ns in zip(pieces, (5, 3, 4), strict=True)]
    assert [(row["format"], row["duplicates"]) for row in check(come)] == [("MQSTR", 2)]


def test_one_group_does_not_spoil_another(judged: list[int]) -> None:
    other = bytes(23) + b"\1"
    come = at([*PIECES[:2], *segmented(b"whole", 2, group=other)])
    assert [(row["group_id"], row["payload"]) for row in check(come)] == [(GROUP, None), (other, b"whole")]
    assert judged == [2]


def test_a_topic_is_part_of_the_name() -> None:
    come = [*at(segmented(b"one", 2), "a"), *at(segmented(b"two", 2), "b")]
    assert [row["payload"] for row in check(come)] == [b"one", b"two"]


def test_what_is_refused_or_has_none_is_passed_over() -> None:
    come = at(
        [
            PIECES[0],
            b"",
            mqmde(b"x", LS, seq=0, Format="MQHRF2"),
            PIECES[1],
            b'{"a": 1}' * 20,
            PIECES[0][:40],
            PIECES[2],
        ]
    )
    for size in (1, 2, 7):
        (row,) = check(come, size=size)
        assert row["payload"] == b"abcdefgh"


def test_a_message_that_is_too_large_says_so(judged: list[int]) -> None:
    names = [bytes([k]) * 24 for k in range(1, 5)]
    usual = [segmented(bytes([k]) * size, 2, group=names[k]) for k, size in enumerate((5, 6, 4))]
    twice = segmented(b"abcdef", 2, group=names[3])
    come = at([*usual[0], *usual[1], *usual[2], *twice, twice[0], mqmde(b"single")])
    found = check(come, max_message=5)
    large = [row for row in found if row["missing"]]
    assert {row["missing"] for row in large} == {"nothing, but its 6 bytes are too large for a row"}
    assert [(row["complete"], row["payload"], row["reason"], row["length"]) for row in large] == [
        (False, None, 2030, 6)
    ] * 3
    assert len(found) == 5
    assert judged == [4]


def test_groups_with_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch, judged: list[int]) -> None:
    monkeypatch.setattr("headwater_spark.segments.hashes", lambda topics, group_id: 0 * group_id[:, 0])
    names = [GROUP, *(GROUP[:at] + b"x" + GROUP[at + 1 :] for at in (0, 8, 16))]
    pieces = [segmented(bytes([65 + k]) * 7, 3, group=name) for k, name in enumerate(names)]
    mixed = [piece for some in zip(*pieces, strict=True) for piece in some]
    found = check([*at(mixed, "a"), *at(mixed[::-1], "b")])
    assert sorted(row["payload"] for row in found) == sorted([bytes([65 + k]) * 7 for k in range(4)] * 2)
    assert judged == []


def test_batches_of_rows_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "_BATCH_ROWS", 3)
    monkeypatch.setattr(assembly, "_BATCH_BYTES", 20)
    come = []
    for k in range(1, 30):
        pieces = segmented(bytes(k), 4, group=bytes([k]) * 24)
        come += at(pieces if k % 3 else [*pieces, pieces[0]])
    sizes = [
        (len(columns["seq"]), sum(map(len, columns["payload"].to_pylist())))
        for columns in assemble(batches(come, 7))
    ]
    assert all(n == 1 or (n <= 3 and size <= 20 + 29) for n, size in sizes)
    assert len(check(come)) == 29


@st.composite
def arrivals(draw: Any) -> list[Come]:
    """Some groups as they are sent, with losses, duplicates, and what does not fit; in some order."""
    sent: list[Come] = []
    for k in range(draw(st.integers(1, 3))):
        more = {"group": bytes([draw(st.integers(1, 2))]) * 24, "big": draw(st.booleans())}
        topic = draw(st.sampled_from(["t", "u"]))
        messages = draw(st.integers(1, 3))
        for seq in range(1, messages + 1):
            flags = draw(st.sampled_from([0, G])) if messages == 1 else LG if seq == messages else G
            data = bytes(draw(st.integers(0, 3)) for _ in range(draw(st.integers(0, 9))))
            pieces = segmented(
                data, draw(st.integers(1, 5)), flags, seq=seq, ccsid=draw(st.sampled_from([819, 500])), **more
            )
            sent += [Come(topic, piece, draw(st.integers(0, 5))) for piece in pieces]
        if k == 0 and draw(st.booleans()):
            flags = draw(st.sampled_from([0, S, LS, G, LG, S | G, LS | LG]))
            numbers = {"seq": draw(st.integers(1, 4)), "offset": draw(st.integers(0, 6))}
            odd = mqmde(draw(st.binary(max_size=3)), flags, **numbers, **more)
            sent.append(Come(topic, odd, 3))
    sent += draw(st.lists(st.sampled_from(sent), max_size=2))
    lost = draw(st.sets(st.integers(0, len(sent) - 1), max_size=2)) if draw(st.booleans()) else set()
    kept = [one for k, one in enumerate(sent) if k not in lost]
    return draw(st.permutations(kept)) if draw(st.booleans()) else kept


@settings(max_examples=200, deadline=None, derandomize=True)
@given(arrivals(), st.integers(1, 9), st.sampled_from([0, 50, MANY]), st.sampled_from([4, MANY]))
def test_the_same_as_the_plain_rules(come: list[Come], size: int, memory: int, max_message: int) -> None:
    check(come, size=size, memory=memory, max_message=max_message)


class Versions(NamedTuple):
    """What is sent under one GroupId, by message and version: the second is of a sender that uses the id again."""

    texts: list[list[bytes]]
    sizes: tuple[int, int]
    grouped: tuple[bool, bool]
    lasts: tuple[int, int]

    def payloads(self) -> list[bytes]:
        found = []
        for seq, versions in enumerate(self.texts, 1):
            for n, text in enumerate(versions):
                flags = (LG if seq == self.lasts[n] else G) if self.grouped[n] else 0
                found += segmented(text, self.sizes[n], flags, seq=seq)
        return found


def versions(*sizes: Any) -> Any:
    texts = st.text("ab", max_size=7).map(str.encode)
    return st.builds(
        Versions,
        st.lists(st.lists(texts, min_size=1, max_size=2), min_size=1, max_size=3),
        st.tuples(*sizes) if sizes else st.sampled_from([(1, 1), (3, 3), (16, 16)]),
        st.sampled_from([(False, False), (True, True), (True, True), (True, False)]),
        st.tuples(st.integers(2, 3), st.integers(2, 3)),
    )


def contradictions(come: list[Come]) -> "tuple[set[int], bool]":
    """Messages that contradict themselves, by the rows of Spark, and whether their group does."""
    rows = together(come)
    wrong = {one["seq"] for one in rows if one["reason"] not in (None, MQRC_INCOMPLETE_MSG)}
    said = [one["group_missing"] or "" for one in rows]
    return wrong, any("the group has" in one or "in none" in one for one in said)


def problems(come: list[Come], **options: Any) -> list[Problem]:
    """What the assembler reports."""
    with closing(sqlite3.connect(":memory:")) as db:
        assembler = Assembler(db, **options)
        outcomes = [one for k, what in enumerate(come) for one in assembler.add(what.topic, what.payload, k)]
    return [one for one in outcomes if isinstance(one, Problem)]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(versions(), st.randoms(use_true_random=False), st.sampled_from([1, 1 << 20]), st.booleans())
def test_the_assembler_says_the_same_in_any_order(
    what: Versions, chance: random.Random, memory: int, by_group: bool
) -> None:
    """Also of a contradiction that comes behind a message that was whole, and was handed out."""
    payloads = what.payloads()
    payloads += chance.choices(payloads, k=3)
    expected = contradictions(at(payloads))
    for _ in range(4):
        chance.shuffle(payloads)
        come = at(payloads)
        assert contradictions(come) == expected
        wrong, of_group = expected
        found = [one for one in problems(come, memory=memory, groups=by_group) if one.kind != "late"]
        assert {one.kind for one in found} <= set(FAULTS)
        if of_group or (by_group and any(what.grouped)):
            assert bool(found) == (of_group or bool(wrong))
        else:
            assert {one.seq for one in found} == wrong


@settings(max_examples=200, deadline=None, derandomize=True)
@given(versions(st.integers(1, 5), st.integers(1, 5)), st.randoms(use_true_random=False), st.booleans())
def test_nothing_that_differs_is_taken_for_a_duplicate(
    what: Versions, chance: random.Random, by_group: bool
) -> None:
    """However it is cut: what cannot be compared any more is reported as late."""
    payloads = what.payloads()
    wrong, of_group = contradictions(at(payloads))
    for _ in range(4):
        chance.shuffle(payloads)
        found = problems(at(payloads), groups=by_group)
        assert found or not (wrong or of_group)
        if not (wrong or of_group):
            assert {one.kind for one in found} <= {"late"}


def test_a_message_larger_than_memory() -> None:
    chunk, count = bytes(range(256)) * 256, 200

    def segments(group: bytes) -> Iterator[Any]:
        for k in range(count):
            flags = LS if k == count - 1 else S
            payload = mqmde(chunk, flags, offset=k * len(chunk), group=group)
            yield from batches([Come("t", payload, k)], 1)

    tracemalloc.start()
    try:
        before = pa.total_allocated_bytes()
        (columns,) = assemble(segments(GROUP), max_message=MANY, memory=MANY)
        peak = tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - before
    finally:
        tracemalloc.stop()
    assert columns["length"].to_pylist() == [count * len(chunk)]
    assert columns["reason"].to_pylist() == [2030]
    assert peak < 4 * MANY
    (columns,) = assemble(segments(GROUP), memory=MANY)
    assert columns["payload"][0].as_py() == chunk * count


@pytest.mark.needs_java
@pytest.mark.parametrize("partitions, batch", [(None, 10_000), (3, 7)])
def test_any_frame(partitions: int | None, batch: int, spark: "SparkSession") -> None:
    come = some_groups()
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", batch)
    try:
        frame = spark.createDataFrame(
            [(one.payload, one.topic, one.time_ns, "more") for one in come],
            "payload binary, topic string, time_ns long, other string",
        ).repartition(4)
        found = logical_messages(frame, partitions=partitions)
        assert (
            found.schema.simpleString()
            == f"struct<{LOGICAL_MESSAGES.ddl.replace(' ', ':').replace(',:', ',').replace('long', 'bigint')}>"
        )
        wanted = plain(come, MAX_MESSAGE)
        got = [row.asDict() for row in found.collect()]
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    for row in got:
        row["group_id"] = bytes(row["group_id"])
        row["payload"] = None if row["payload"] is None else bytes(row["payload"])
    assert in_order(got) == wanted
    assert len(wanted) > 410


@pytest.mark.needs_java
def test_nulls_in_a_frame(spark: "SparkSession") -> None:
    """No topic is one topic, however many tasks there are; no payload is no segment."""
    rows = [
        (payload, None if k % 2 else "", None if k == 1 else k + 1)
        for k, payload in enumerate(segmented(b"abcdefghij", 2))
    ]
    frame = spark.createDataFrame(
        [*rows, (None, None, None), (None, "t", 1), (b"", None, None)],
        "payload binary, topic string, time_ns long",
    )
    (found,) = logical_messages(frame, partitions=16).collect()
    assert (found.complete, found.payload, found.topic) == (True, b"abcdefghij", "")
    assert (found.time_ns, found.last_ns, found.segments) == (0, 5, 5)
    assert logical_messages(frame.where("payload is null")).count() == 0


@pytest.mark.needs_java
def test_a_frame_that_lacks_a_column(spark: "SparkSession") -> None:
    frame = spark.createDataFrame([], "payload string, topic string, time_ns long")
    with pytest.raises(ValueError, match="column 'payload' must be binary, not string"):
        logical_messages(frame)
    with pytest.raises(ValueError, match="column 'time_ns' must be bigint, not missing"):
        logical_messages(frame.selectExpr("binary(payload) payload", "topic"))
    whole = frame.selectExpr("binary(payload) payload", "topic", "time_ns")
    for wrong in (-1, 0, 1 << 31):
        with pytest.raises(ValueError, match="below 2 GiB"):
            logical_messages(whole, max_message=wrong)
    with pytest.raises(ValueError, match="partitions must be at least 1"):
        logical_messages(whole, partitions=0)
