"""The same log in one batch and in many: equal tables, whatever a batch has to find in earlier ones."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_host.capture.format import DUPLICATE, ORIGINAL
from headwater_host.fmq.hashes import hash_of
from headwater_spark import known
from headwater_spark.growth import grow
from headwater_spark.tables import DERIVED, LOGICAL_MESSAGES, MESSAGES, TABLES, TELEMETRY
from tests.spark import test_logical_pipeline, test_messages, test_pipeline, test_pipeline_fmq
from tests.spark.fmq_bytes import fmq_publish
from tests.spark.logs import InProcess, Rec, publish, reading, rows, write_log
from tests.spark.test_pipeline_fmq import fmq, ident

DAY = 86_400_000


def grown(folder: Path, cuts: Sequence[Sequence[Sequence[Rec]]], horizon_ns: int = 7 * DAY * 10**6) -> Path:
    """Write a log, each item of `cuts` with some blocks; a batch after each. Compare with one batch of the log."""
    log, many, one = folder / "log", folder / "many", folder / "one"
    for blocks in cuts:
        write_log(log, blocks, segment_blocks=3)
        grow(InProcess(), [log], many, partition_bytes=2000, horizon_ns=horizon_ns)
    grow(InProcess(), [log], one, partition_bytes=1 << 30, horizon_ns=horizon_ns)
    for table in (*TABLES, *DERIVED):
        assert rows(many, table) == rows(one, table), table.name
    return many


def cut(records: Sequence[Rec], batches: int, seed: int, per_block: int = 7) -> list[list[Sequence[Rec]]]:
    """Cut records into blocks, and those into batches, at random places."""
    blocks = [records[at : at + per_block] for at in range(0, len(records), per_block)]
    places = sorted(random.Random(seed).sample(range(1, len(blocks)), min(batches, len(blocks)) - 1))
    return [blocks[start:end] for start, end in zip([0, *places], [*places, len(blocks)], strict=True)]


@pytest.mark.parametrize("seed", range(2))
def test_boards_marks_and_trouble(tmp_path: Path, seed: int) -> None:
    out = grown(tmp_path, cut(test_pipeline.records(), 5, seed))
    assert max(rows(out, MESSAGES, "copies")) == 2


@pytest.mark.parametrize("seed", range(2))
def test_fmq(tmp_path: Path, seed: int) -> None:
    grown(tmp_path, cut(test_pipeline_fmq.records(), 5, seed))


@pytest.mark.parametrize("seed", range(2))
def test_groups_that_go_on(tmp_path: Path, seed: int) -> None:
    out = grown(tmp_path, cut(test_logical_pipeline.records(), 4, seed, 90))
    assert sum(rows(out, LOGICAL_MESSAGES, "duplicates")) > 0


@settings(max_examples=12, deadline=None)
@given(st.lists(st.lists(test_messages.records, min_size=1, max_size=5), min_size=2, max_size=6))
def test_anything(tmp_path_factory: pytest.TempPathFactory, blocks: list[list[Rec]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known, "MERGED", 2)
        grown(tmp_path_factory.mktemp("cut"), [[block] for block in blocks])


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), min_size=2, max_size=12), st.booleans())
def test_the_horizon_is_measured_in_the_log(
    tmp_path_factory: pytest.TempPathFactory, some: list[tuple[int, int]], marks: bool
) -> None:
    """Also if clocks step back and forth."""
    records: list[Rec] = []
    seen: dict[int, int] = {}
    for seq, day in some:
        at = day * DAY // 4 + seq
        if not marks:
            records.append(Rec(publish("t", reading("b", 1, seq)), at=at))
            continue
        first = seen.setdefault(seq, at)
        mark = ORIGINAL if first == at else DUPLICATE
        records.append(Rec(publish("t", f"{seq}", qos=1, packet_id=seq + 1), at=at, mark=mark, first=first))
    grown(tmp_path_factory.mktemp("horizon"), [[[rec]] for rec in records], horizon_ns=2 * DAY * 10**6)


def test_a_hash_that_a_later_batch_names(tmp_path: Path) -> None:
    name_of = hash_of("plant/1")
    records = [
        fmq(fmq_publish(name_of, {"a": 1}, ident(0)), 1),
        fmq(fmq_publish("plant/2", {"a": 2}, ident(1)), 2),
        fmq(fmq_publish("plant/1", {"a": 3}, ident(2)), 3),
        fmq(fmq_publish(name_of, {"a": 4}, ident(3)), 4),
    ]
    out = grown(tmp_path, [[[rec]] for rec in records])
    assert sorted(rows(out, TELEMETRY, "topic")) == ["plant/1"] * 3 + ["plant/2"]


def test_many_batches_leave_few_files_of_state(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    for seq in range(40):
        write_log(log, [[Rec(publish("t", reading("b", 1, seq // 2)), at=seq)]])
        grow(InProcess(), [log], out)
    assert sorted(rows(out, MESSAGES, "seq", "copies")) == [(seq, 2) for seq in range(20)]
    # Sixteen batches with their two documents, and what they refer to.
    assert len(list((out / "_batches").iterdir())) < 16 * 4 + 20
