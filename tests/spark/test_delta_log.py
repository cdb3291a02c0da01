"""Delta logs in directories: what a power cut tears is removed, and the batch is committed again."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater_spark import delta, delta_log
from headwater_spark.batches import Batches
from headwater_spark.engine import LocalEngine
from headwater_spark.growth import compact, grow
from headwater_spark.place import Place
from headwater_spark.tables import DERIVED, MESSAGES, TABLES
from tests.spark.logs import InProcess, assert_same_tables, rows
from tests.spark.test_growth import block, extend

ALL = (*TABLES, *DERIVED)


def log_dir(out: Path, name: str) -> Path:
    return out / name / delta_log.FOLDER


def last_commit(out: Path, name: str) -> Path:
    return max(log_dir(out, name).glob("[0-9]*[0-9].json"))


def cut(length: Callable[[bytes], int]) -> Callable[[Path], None]:
    def tear(path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[: length(data)])

    return tear


def nul(start: Callable[[bytes], int]) -> Callable[[Path], None]:
    def tear(path: Path) -> None:
        data = path.read_bytes()
        at = start(data)
        path.write_bytes(data[:at] + bytes(len(data) - at))

    return tear


def lines(count: int, more: int = 0) -> Callable[[bytes], int]:
    """The length of some lines; with -1 more, without the last newline."""
    return lambda data: sum(map(len, data.splitlines(keepends=True)[:count])) + more


#: What a file has after a power cut.
DAMAGE = {
    "empty": cut(lambda data: 0),
    "a byte": cut(lambda data: 1),
    "half a line": cut(lambda data: len(data.splitlines()[0]) // 2),
    "a line without its newline": cut(lines(1, -1)),
    "a line": cut(lines(1)),
    "a line and a half": cut(lines(1, 20)),
    "all but the last line": cut(lambda data: data.rindex(b"\n") + 1),
    "all but a byte": cut(lambda data: len(data) - 1),
    "zeros": nul(lambda data: 0),
    "a line and zeros": nul(lines(1)),
    "zeros from the middle": nul(lambda data: len(data) // 2),
    "missing": Path.unlink,
}


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of three batches, the last of which changes stored rows, and what they become with one more."""
    folder = tmp_path_factory.mktemp("grown")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta, "CHECKPOINT_EVERY", 3)
        for k in range(3):
            grow(InProcess(), [extend(folder / "log", block(3 * k))], folder / "out")
        shutil.copytree(folder / "out", folder / "whole")
        grow(InProcess(), [extend(folder / "log", block(9))], folder / "whole")
    return folder


def damaged(grown: Path, folder: Path, tear: Callable[[Path], None], *, checkpoints: bool) -> Path:
    shutil.copytree(grown / "out", folder)
    for table in ALL:
        if not checkpoints:
            for path in log_dir(folder, table.name).glob("*checkpoint*"):
                path.unlink()
        tear(last_commit(folder, table.name))
    return folder


@pytest.mark.parametrize("tear", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_torn_commit_is_made_again(tear: Callable[[Path], None], grown: Path, tmp_path: Path) -> None:
    out = damaged(grown, tmp_path / "out", tear, checkpoints=False)
    lost = [last_commit(grown / "out", table.name).relative_to(grown / "out") for table in ALL]
    said: list[str] = []
    grow(InProcess(), [grown / "log"], out, say=said.append)
    assert_same_tables(out, grown / "whole")
    assert all((out / path).exists() for path in lost)
    if tear is not Path.unlink:
        assert len([text for text in said if "which a power cut has damaged" in text]) == len(ALL)


@pytest.mark.parametrize("name", [name for name in DAMAGE if "line" not in name])
@pytest.mark.parametrize("which", ["*.checkpoint.parquet", "_last_checkpoint", "*checkpoint*"])
def test_a_torn_checkpoint_is_removed(name: str, which: str, grown: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(grown / "out", out)
    found = [path for table in ALL for path in log_dir(out, table.name).glob(which)]
    assert found
    for path in found:
        DAMAGE[name](path)
    grow(InProcess(), [grown / "log"], out)
    assert_same_tables(out, grown / "whole")


@pytest.mark.parametrize("name", ["empty", "half a line", "a line", "all but the last line", "zeros"])
def test_a_table_whose_creation_was_torn_is_created_again(name: str, grown: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for table in ALL:
        delta.Tables(Place.at(out)).create(table)
        DAMAGE[name](last_commit(out, table.name))
    grow(InProcess(), [grown / "log"], out)
    assert_same_tables(out, grown / "whole")


@pytest.mark.parametrize("name", ["empty", "zeros", "half a line"])
@pytest.mark.parametrize("back", [1, 2])
def test_a_torn_vacuum(name: str, back: int, grown: Path, tmp_path: Path) -> None:
    """A vacuum has two commits without actions, which are not synced between."""
    out = tmp_path / "out"
    shutil.copytree(grown / "out", out)
    for path in out.rglob("*checkpoint*"):
        path.unlink()
    orphan = out / "messages/date=2026-09-21/000009-000000-ffffffff-0.parquet"
    orphan.write_bytes(b"PAR1")
    os.utime(orphan, (1, 1))
    compact(LocalEngine(), out)
    commits = sorted(log_dir(out, "messages").glob("[0-9]*[0-9].json"))
    assert "VACUUM" in commits[-back].read_text()
    DAMAGE[name](commits[-back])
    grow(InProcess(), [grown / "log"], out)
    assert_same_tables(out, grown / "whole")


def test_damage_before_an_intact_commit_is_an_error(grown: Path, tmp_path: Path) -> None:
    """Such as a bad disk: nothing is removed."""
    out = tmp_path / "out"
    shutil.copytree(grown / "out", out)
    for path in out.rglob("*checkpoint*"):
        path.unlink()
    commits = sorted(log_dir(out, "messages").glob("*.json"))
    commits[-2].write_bytes(b"")
    before = sorted(path.name for path in log_dir(out, "messages").iterdir())
    with pytest.raises(OSError, match="follows a commit that is damaged or missing"):
        grow(InProcess(), [grown / "log"], out)
    assert sorted(path.name for path in log_dir(out, "messages").iterdir()) == before


def test_commits_of_other_programs_stay(grown: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(grown / "out", out)
    delta.open_table(Place.at(out) / "messages").alter.set_table_properties({"delta.appendOnly": "false"})
    version = delta.live(out, MESSAGES).version
    assert delta.Tables(Place.at(out)).repair(ALL) == []
    assert delta.live(out, MESSAGES).version == version


def test_files_are_synced_before_they_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data files and their folders before the list of files, each commit before the next table's."""
    out = tmp_path / "out"
    grow(InProcess(), [extend(tmp_path / "log", block(0))], out)
    synced: set[str] = set()
    fsync, list_files, commit = os.fsync, Batches.list_files, delta.Tables.commit

    def recording(fd: int) -> None:
        fsync(fd)
        name = str(Path(f"/proc/self/fd/{fd}").readlink())
        synced.add(
            name.rpartition("/")[0] + "/" + Path(name).name.lstrip(".").removesuffix(f".{os.getpid()}")
        )

    def listing(self: Batches, number: int, files: Any) -> Any:
        for name, change in files.changes.items():
            for file in change.add:
                path = out / name / file.path
                assert {str(path), str(path.parent)} <= synced, path
        return list_files(self, number, files)

    def committing(self: delta.Tables, table: Any, *rest: Any, **more: Any) -> None:
        commit(self, table, *rest, **more)
        path = last_commit(out, table.name)
        assert json.loads(path.read_text().splitlines()[-1])["txn"]["version"] == 2
        assert {str(path), str(path.parent)} <= synced

    monkeypatch.setattr(os, "fsync", recording)
    monkeypatch.setattr(Batches, "list_files", listing)
    monkeypatch.setattr(delta.Tables, "commit", committing)
    grow(InProcess(), [extend(tmp_path / "log", block(4))], out)
    assert sorted(rows(out, MESSAGES, "seq")) == list(range(8))
