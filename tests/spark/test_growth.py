"""Tables that grow: batches add what is new, once, however a run is interrupted."""

import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headwater_host.capture.readers import list_readers
from headwater_host.cli.main import main
from headwater_spark import batches, delta, run
from headwater_spark.batches import BusyError, writing
from headwater_spark.delta import Change, OldTablesError
from headwater_spark.engine import LocalEngine
from headwater_spark.growth import compact, grow, requarantine
from headwater_spark.pipeline import run_on
from headwater_spark.place import Place
from headwater_spark.table_files import Writer
from headwater_spark.tables import FRAMES, MESSAGES, TABLES, TELEMETRY, Column, Table
from tests.rows import each_row
from tests.spark.logs import BEGIN_NS, InProcess, Rec, assert_same_tables, publish, reading, rows, write_log


def block(start: int, count: int = 4, board: str = "b1") -> list[Rec]:
    return [
        Rec(publish("t", reading(board, 1, seq, load=seq / 8)), at=10 * seq)
        for seq in range(start, start + count)
    ]


def extend(log: Path, *blocks: list[Rec], segment_blocks: int = 2) -> Path:
    return write_log(log, blocks, segment_blocks=segment_blocks)


def seqs(out: Path) -> list[int]:
    return sorted(rows(out, MESSAGES, "seq"))


def test_a_batch_adds_what_is_new(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    engine = InProcess()
    first = grow(engine, [extend(log, block(0), block(4))], out)
    assert (first.batch, first.rows["messages"]) == (1, 8)
    second = grow(engine, [extend(log, block(8))], out)
    assert (second.batch, second.rows["messages"]) == (2, 4)
    assert seqs(out) == list(range(12))
    run_on(InProcess(), log, tmp_path / "whole")
    assert_same_tables(out, tmp_path / "whole")


def test_nothing_new_is_no_batch(tmp_path: Path) -> None:
    log, out = extend(tmp_path / "log", block(0)), tmp_path / "out"
    grow(InProcess(), [log], out)
    versions = {table.name: delta.live(out, table).version for table in TABLES}
    again = grow(InProcess(), [log], out)
    assert (again.batch, again.rows["frames"]) == (1, 0)
    assert {table.name: delta.live(out, table).version for table in TABLES} == versions


def test_rows_of_removed_segments_stay(tmp_path: Path) -> None:
    log, out = extend(tmp_path / "log", block(0), block(4), segment_blocks=1), tmp_path / "out"
    grow(InProcess(), [log], out)
    for path in log.glob("segment-*.hwc"):
        path.unlink()
    grow(InProcess(), [extend(log, block(8))], out)
    assert seqs(out) == list(range(12))


def test_a_value_whose_type_changes_over_batches(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    for seq, value in enumerate([21.5, "hot", True]):
        grow(InProcess(), [extend(log, [Rec(publish("t", reading("b1", 1, seq, state=value)), at=seq)])], out)
    compact(InProcess(), out)
    assert rows(out, TELEMETRY, "seq", "metric", "value_double", "value_string") == [
        (0, "state", 21.5, None),
        (1, "state", None, "hot"),
        (2, "state", 1.0, None),
    ]


def test_pandas_reads_the_tables(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    for start in (0, 4):
        grow(InProcess(), [extend(log, block(start))], out)
    frame = DeltaTable(out / "messages").to_pandas()
    names = ["topic", "board", "boot", "seq", "time_ns", "payload", "copies"]
    found = sorted(frame[names].itertuples(index=False, name=None), key=repr)
    assert found == rows(out, MESSAGES, *names)
    assert len(found) == 8
    assert (frame["time"].astype("int64") == frame["time_ns"] // 1000).all()


def test_retention_learns_what_the_tables_have(tmp_path: Path) -> None:
    log, out = extend(tmp_path / "log", block(0), block(4)), tmp_path / "out"
    grow(InProcess(), [log], out)
    (name,) = list_readers(log)
    assert name.startswith("tables-")
    assert list_readers(log) == {name: 2}
    grow(InProcess(), [extend(log, block(8))], out)
    assert list_readers(log) == {name: 3}


def test_positions_that_cannot_be_saved_for_retention_are_reported(tmp_path: Path) -> None:
    """The batch is in the tables all the same, and the next one saves the position."""
    log, out = extend(tmp_path / "log", block(0)), tmp_path / "out"
    (log / "readers").write_text("in the place of the directory")
    said: list[str] = []
    grow(InProcess(), [log], out, say=said.append)
    (line,) = (line for line in said if "retention" in line)
    assert line.startswith(f"{log}: cannot save the position for retention: {log}/readers")
    assert seqs(out) == list(range(4))
    (log / "readers").unlink()
    grow(InProcess(), [extend(log, block(4))], out, say=said.append)
    assert list(list_readers(log).values()) == [2]
    assert seqs(out) == list(range(8))


def test_a_batch_of_a_query_is_taken_once_and_ends_where_it_should(tmp_path: Path) -> None:
    log, out = extend(tmp_path / "log", block(0), block(4), block(8), segment_blocks=1), tmp_path / "out"
    from headwater_host.capture.log_id import log_id
    from headwater_host.capture.manifest import read_manifest
    from headwater_spark.positions import Position

    ends = [
        {log_id(log): Position(entry.file, entry.bytes, entry.next_sequence)}
        for entry in read_manifest(log).entries.values()
    ]
    for number, end in enumerate(ends):
        for _ in range(2):
            grow(InProcess(), [log], out, upto=end, batch_id=("q", number))
            assert seqs(out) == list(range(4 * number + 4))
    grow(InProcess(), [log], out, upto=ends[0], batch_id=("q", 1))
    assert seqs(out) == list(range(12))


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    log = extend(tmp_path / "log", block(0))
    with writing(tmp_path / "out"), pytest.raises(BusyError, match="another pipeline is writing"):
        grow(InProcess(), [log], tmp_path / "out")


def test_tables_of_an_earlier_version_are_named(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / ".runs/000001/messages").mkdir(parents=True)
    (out / "current").symlink_to(".runs/000001")
    (out / "messages").symlink_to("current/messages")
    with pytest.raises(FileExistsError, match="made by an earlier version of headwater: choose another"):
        grow(InProcess(), [extend(tmp_path / "log", block(0))], out)


def test_tables_without_their_positions_are_an_error(tmp_path: Path) -> None:
    """A new batch 1 would find its own commit in the tables, and add nothing."""
    log, out = write_log(tmp_path / "log", [[Rec(publish("t", "x"))]]), tmp_path / "out"
    grow(InProcess(), [log], out)
    shutil.rmtree(out / "_batches")
    write_log(log, [[Rec(publish("t", "y"), at=1)]])
    for action in (
        lambda: grow(InProcess(), [log], out),
        lambda: compact(InProcess(), out),
    ):
        with pytest.raises(OldTablesError, match="has tables, but not their positions"):
            action()


@each_row("name", ["messages", "quarantine", "device_health"])
def test_a_table_that_was_removed_is_not_made_again(name: str, tmp_path: Path) -> None:
    """Without rows, it would look as if nothing had been in it."""
    log, out = (
        write_log(tmp_path / name / "log", [[Rec(publish("t", "x")), Rec(b"\xf0")]]),
        tmp_path / name / "out",
    )
    grow(InProcess(), [log], out)
    (out / name).rename(tmp_path / f"{name}.away")
    write_log(log, [[Rec(publish("t", "y"), at=1)]])
    for action in (
        lambda: grow(InProcess(), [log], out),
        lambda: compact(InProcess(), out),
        lambda: requarantine(InProcess(), out),
    ):
        with pytest.raises(
            OldTablesError, match=f"{name} is missing, but earlier runs have written to it: restore"
        ):
            action()
    assert not (out / name).exists()
    (tmp_path / f"{name}.away").rename(out / name)
    assert grow(InProcess(), [log], out).rows["messages"] == 1


def test_a_table_without_rows_is_made_again(tmp_path: Path) -> None:
    """As one of a later version is, and one whose first commit a power cut has torn."""
    log, out = write_log(tmp_path / "log", [[Rec(publish("t", "x"))]]), tmp_path / "out"
    grow(InProcess(), [log], out)
    shutil.rmtree(out / "logical_messages")
    write_log(log, [[Rec(publish("t", "y"), at=1)]])
    grow(InProcess(), [log], out)
    assert (out / "logical_messages").exists()


@each_row("content", [None, "garbage"])
def test_a_missing_or_damaged_table_is_named(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    grow(InProcess(), [write_log(tmp_path / "log", [[Rec(publish("t", "x"))]])], out)
    if content is None:
        shutil.rmtree(out / "messages")
    else:
        (out / "messages/_delta_log/00000000000000000000.json").write_text(content)
    for command in (["compact", "--out"], ["requarantine", "--out"], ["report", "--tables"]):
        assert main(["pipeline", *command, str(out)]) == 1
        err = capsys.readouterr().err
        assert "messages" in err or "Json error" in err
        assert "Traceback" not in err
        assert err.count("\n") == 1


def test_every_row_has_the_date_of_its_time(tmp_path: Path) -> None:
    day = 86_400_000
    records = [Rec(publish("t", f"{k}"), at=k * day // 2) for k in range(9)]
    log, out = extend(tmp_path / "log", records), tmp_path / "out"
    grow(InProcess(), [log], out)
    for table in (FRAMES, MESSAGES):
        found = delta.dataset(out, table.name).to_table(["time", "date"]).to_pylist()
        assert len(found) == 9
        assert all(row["date"] == row["time"].date() for row in found)
        assert len(delta.live(out, table).files) == 5


#: Where a run may be killed: before the call of a function, and after it.
POINTS: tuple[tuple[Any, str], ...] = (
    (batches.Batches, "plan"),
    (batches.Batches, "list_files"),
    (delta.Tables, "commit"),
    (run, "save_reader"),
)


class KilledError(BaseException):
    """In place of a kill: nothing in the pipeline catches it."""


@contextmanager
def killing(at: int, *, after: bool) -> Iterator[list[int]]:
    """Kill at a point: the n-th call of all these functions, before it or after it. Yields the number of kills."""
    calls, kills = [0], [0]
    with pytest.MonkeyPatch.context() as patch:
        for where, name in POINTS:
            original = getattr(where, name)

            def step(*args: Any, _original: Any = original, **more: Any) -> Any:
                calls[0] += 1
                kills[0] += calls[0] == at
                if calls[0] == at and not after:
                    raise KilledError
                result = _original(*args, **more)
                if calls[0] == at:
                    raise KilledError
                return result

            patch.setattr(where, name, step)
        with suppress(KilledError):
            yield kills


def test_a_run_killed_at_any_point_is_completed_by_the_next(tmp_path: Path) -> None:
    """The log grows between the crash and the next run, and the interrupted batch takes what it had planned."""
    whole = [block(0), block(4), block(8)]
    for one in whole:
        extend(tmp_path / "whole/log", one)
    run_on(InProcess(), tmp_path / "whole/log", tmp_path / "whole/out")
    points = 2 + 5 + 1  # five tables have rows
    for at in range(1, points + 1):
        for after in (False, True):
            folder = tmp_path / f"{at}-{after}"
            log, out = folder / "log", folder / "out"
            grow(InProcess(), [extend(log, whole[0])], out)
            extend(log, whole[1])
            with killing(at, after=after) as killed:
                grow(InProcess(), [log], out)
            assert killed == [1]
            extend(log, whole[2])
            result = grow(InProcess(), [log], out)
            assert result.batch == (2 if (at, after) == (1, False) else 3)
            assert_same_tables(out, tmp_path / "whole/out")
            assert not (out / "_work").exists()
    with killing(points + 1, after=False) as killed:
        run_on(InProcess(), tmp_path / "whole/log", tmp_path / "not killed")
    assert killed == [0]


def test_the_same_batch_by_two_processes_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that stands still between its plan and its files, while another completes its batch."""
    log, out = extend(tmp_path / "log", block(0), block(4)), tmp_path / "out"
    original = batches.Batches.list_files

    def slow(self: Any, number: int, files: Any) -> Any:
        monkeypatch.setattr(batches.Batches, "list_files", original)
        (out / ".lock").unlink()  # as on another machine
        grow(InProcess(), [log], out)
        return original(self, number, files)

    monkeypatch.setattr(batches.Batches, "list_files", slow)
    grow(InProcess(), [log], out)
    assert seqs(out) == list(range(8))
    assert len(list((out / "_batches").glob("*.plan"))) == 1
    assert len(list((out / "_batches").glob("*.files"))) == 1
    assert json.loads((out / "_batches/000001.plan").read_text())["number"] == 1


def small_batches(log: Path, out: Path, count: int = 6) -> None:
    for k in range(count):
        grow(InProcess(), [extend(log, block(4 * k))], out)


def test_compaction_merges_files_and_changes_no_row(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    small_batches(log, out)
    before = {table.name: rows(out, table) for table in TABLES}
    version = delta.live(out, MESSAGES).version
    found = compact(LocalEngine(), out)
    assert (found.before["messages"], found.after["messages"]) == (6, 1)
    assert {table.name: rows(out, table) for table in TABLES} == before
    (merged,) = delta.live(out, MESSAGES).files
    assert (merged.rows, merged.first_ns, merged.last_ns) == (24, BEGIN_NS, BEGIN_NS + 230 * 10**6)
    # A query that began before reads the version from before.
    assert delta.dataset(out, "messages", version).count_rows() == 24
    assert found.removed == 0
    grow(InProcess(), [extend(log, block(22, 4))], out)
    assert sorted(rows(out, MESSAGES, "seq", "copies")) == [
        (seq, 2 if seq in (22, 23) else 1) for seq in range(26)
    ]
    assert compact(LocalEngine(), out, target_bytes=1).after["messages"] == 2


def test_old_files_and_those_of_crashed_runs_are_removed(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    small_batches(log, out, 3)
    orphan = out / "messages/date=2026-09-21/000009-000000-ffffffff-0.parquet"
    orphan.write_bytes(b"PAR1")
    os.utime(orphan, (1, 1))
    assert compact(LocalEngine(), out).removed == 1
    assert not orphan.exists()
    for path in (out / "messages").rglob("*.parquet"):
        os.utime(path, (1, 1))
    # Replaced files stay as long as their removal is young.
    assert compact(LocalEngine(), out).removed == 0
    before = delta.dataset(out, "messages", 3)
    assert (len(before.files), before.count_rows()) == (3, 12)
    assert seqs(out) == list(range(12))


def test_a_compaction_killed_at_any_point_is_completed_by_the_next_run(tmp_path: Path) -> None:
    small_batches(tmp_path / "whole/log", tmp_path / "whole/out", 3)
    points = 2 + 3  # three tables have rows
    for at in range(1, points + 1):
        for after in (False, True):
            folder = tmp_path / f"{at}-{after}"
            shutil.copytree(tmp_path / "whole", folder)
            log, out = folder / "log", folder / "out"
            with killing(at, after=after) as killed:
                compact(LocalEngine(), out)
            assert killed == [1]
            assert_same_tables(out, tmp_path / "whole/out")
            grow(InProcess(), [extend(log, block(12))], out)
            assert seqs(out) == list(range(16))
            assert len(delta.live(out, MESSAGES).files) == (4 if (at, after) == (1, False) else 2)


def test_compaction_leaves_an_interrupted_batch_to_the_pipeline(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    small_batches(log, out, 3)
    extend(log, block(12))
    with killing(2, after=False):
        grow(InProcess(), [log], out)
    with pytest.raises(BusyError, match="batch 4 was interrupted: run the pipeline"):
        compact(LocalEngine(), out)
    grow(InProcess(), [log], out)
    assert compact(LocalEngine(), out).after["messages"] == 1
    assert seqs(out) == list(range(16))


def as_of_another_version(out: Path, table: Table) -> None:
    """Make the table `messages` that a version with this description would have made."""
    found = delta.dataset(out, MESSAGES.name).to_table()
    shutil.rmtree(out / MESSAGES.name)
    tables = delta.Tables(Place.at(out))
    tables.create(table)
    with Writer(table, Place.at(out), "000001-other") as writer:
        some = {name: found[name] for name in found.schema.names}
        some["later"] = pa.nulls(len(found), pa.int64())
        columns = {
            f.name: some[f.name].cast(f.type).combine_chunks() for f in table.plain if f.name != "later"
        }
        columns |= {"later": some["later"]}
        for f in table.arrow:
            if pa.types.is_dictionary(f.type):
                columns[f.name] = columns[f.name].dictionary_encode()
        writer.write(columns)
    tables.commit(table, 1, Change(writer.files), {})


@pytest.mark.parametrize("compacted", [False, True])
def test_tables_of_versions_with_other_columns_grow(tmp_path: Path, compacted: bool) -> None:
    """A column of an older version is missing, and a newer version has added one."""
    log, out = tmp_path / "log", tmp_path / "out"
    grow(InProcess(), [extend(log, block(0))], out)
    columns = tuple(one for one in MESSAGES.columns if one.name not in ("mark", "content_type"))
    as_of_another_version(
        out, MESSAGES._replace(columns=(*columns, Column("later", "long", "of a newer version")))
    )
    grow(InProcess(), [extend(log, block(2))], out)
    if compacted:
        assert compact(LocalEngine(), out).after["messages"] == 1
    found = delta.dataset(out, "messages").to_table().sort_by("seq").to_pylist()
    assert [(row["seq"], row["copies"], row["mark"], row["later"]) for row in found] == [
        (0, 1, None, None),
        (1, 1, None, None),
        (2, 2, None, None),
        (3, 2, None, None),
        (4, 1, 0, None),
        (5, 1, 0, None),
    ]


def test_a_column_with_another_type_is_an_error(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    columns = tuple(one._replace(type="int") if one.name == "seq" else one for one in MESSAGES.columns)
    delta.Tables(Place.at(out)).create(MESSAGES._replace(columns=columns))
    with pytest.raises(FileExistsError, match=r"column seq of .*messages has another type"):
        grow(InProcess(), [extend(log, block(0))], out)


def test_readers_are_never_disturbed(tmp_path: Path) -> None:
    """A reader in a loop sees whole batches only, during batches and compaction."""
    log, out = tmp_path / "log", tmp_path / "out"
    small_batches(log, out, 1)
    stop = threading.Event()
    seen: list[list[int]] = []

    def read() -> None:
        while not stop.is_set():
            seen.append(seqs(out))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for k in range(1, 7):
            grow(InProcess(), [extend(log, block(4 * k))], out)
            if k % 2:
                compact(LocalEngine(), out)
    finally:
        stop.set()
        reader.join()
    seen.append(seqs(out))
    assert all(found == list(range(len(found))) and len(found) % 4 == 0 for found in seen)
    assert [len(found) for found in seen] == sorted(len(found) for found in seen)
    assert seen[-1] == list(range(28))


def test_the_commands_of_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    small_batches(log, out, 3)
    assert main(["pipeline", "files", str(out / "messages")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert main(["pipeline", "compact", "--out", str(out)]) == 0
    assert re.search(r"messages +3 +1$", capsys.readouterr().out, re.MULTILINE)
    assert main(["pipeline", "files", str(out / "messages")]) == 0
    (path,) = capsys.readouterr().out.splitlines()
    assert pq.ParquetFile(path).metadata.num_rows == 12
    assert main(["pipeline", "files", str(out)]) == 2
    assert "is not a table" in capsys.readouterr().err
    assert main(["pipeline", "compact", "--out", str(tmp_path / "nowhere")]) == 2
    (tmp_path / "empty").mkdir()
    assert main(["pipeline", "compact", "--out", str(tmp_path / "empty")]) == 1
    assert "has no tables" in capsys.readouterr().err


def test_settings_that_change_between_batches_are_reported_once(tmp_path: Path) -> None:
    """Duplicates are found by identity and within the horizon."""
    log, out = tmp_path / "log", tmp_path / "out"

    def said(number: int, **settings: Any) -> list[str]:
        lines: list[str] = []
        grow(InProcess(), [extend(log, block(4 * number))], out, say=lines.append, **settings)
        return [line for line in lines if line.startswith("warning: ")]

    changed = "changed since batch {}: duplicates of messages that the tables have may be stored"
    other = {"board": "field:id", "boot": "value:0"}
    assert said(0) == []
    assert said(1, identity=other) == [f"warning: the sources of the identity {changed.format(1)}"]
    assert said(2, identity=dict(reversed(other.items()))) == []
    assert said(3, identity=other, horizon_ns=10**9) == [f"warning: the horizon {changed.format(3)}"]
    assert said(4, identity=other, horizon_ns=10**9) == []
