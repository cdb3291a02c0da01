"""Keep the logs of Delta tables in directories intact through power cuts.

`deltalake` does not sync what it writes. Each commit is synced before the next step of a batch, so a power cut can tear
only the last ones. `repair` removes those, and the next run commits them again from the batch's documents.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headwater_host.private import sync_directory

#: Folder of a table's log.
FOLDER = "_delta_log"
_LAST = "_last_checkpoint"
_COMMIT = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\.parquet")
# Commits that may follow an intact one without a sync: both of a vacuum, and one more.
_TAIL = 3


def sync(table: Path, versions: Iterable[int]) -> None:
    """Make commits durable."""
    _sync(table / FOLDER, [f"{version:020}.json" for version in versions])


def sync_checkpoint(table: Path, version: int) -> None:
    """Make a checkpoint durable."""
    _sync(table / FOLDER, [f"{version:020}.checkpoint.parquet", _LAST])


def _sync(log: Path, names: Iterable[str]) -> None:
    for name in names:
        fd = os.open(log / name, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    sync_directory(log)


def repair(table: Path, app: str) -> list[str]:
    """Remove a torn checkpoint, and torn commits at the end of a log. Returns their names.

    `app` is the key that marks batches' commits. No other process may write to the table. Raises OSError when a commit
    that is intact follows a torn one.
    """
    log = table / FOLDER
    try:
        names = [path.name for path in log.iterdir()]
    except FileNotFoundError:
        return []
    commits = _versions(names, _COMMIT)
    # A checkpoint is synced before the next commit.
    last = [version for version in _versions(names, _CHECKPOINT) if version >= max(commits, default=0)]
    torn = [name for version in last if _is_torn_parquet(log / (name := f"{version:020}.checkpoint.parquet"))]
    if _LAST in names and (torn or _is_torn_hint(log / _LAST)):
        torn.append(_LAST)
    torn += _torn_commits(log, commits, app)
    for name in torn:
        (log / name).unlink()
    if torn:
        sync_directory(log)
        with suppress(OSError):  # the table was about to be created
            log.rmdir()
    return torn


def _versions(names: Iterable[str], pattern: re.Pattern[str]) -> list[int]:
    return sorted(int(found[1]) for name in names if (found := pattern.fullmatch(name)))


def _torn_commits(log: Path, commits: list[int], app: str) -> list[str]:
    """Return the names of the torn commits and of those after them, the last one first."""
    tail = commits[-_TAIL - 1 :]
    for k, version in enumerate(tail):
        if (k and version != tail[k - 1] + 1) or _is_torn(log / f"{version:020}.json", app):
            lost = [f"{after:020}.json" for after in reversed(tail[k:])]
            for name in lost:
                if not _is_torn(log / name, app) and not _has_only_info(log / name):
                    raise OSError(f"{log / name} follows a commit that is damaged or missing")
            return lost
    return []


def _actions(path: Path) -> list[dict[str, object]]:
    """Return the actions of a commit. Raises ValueError for half a line or NULs."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def _is_torn(path: Path, app: str) -> bool:
    """Return whether a commit lacks actions. Its first one tells which is the last."""
    try:
        actions = _actions(path)
    except ValueError:
        return True
    if not actions:
        return True
    info = actions[0].get("commitInfo")
    if not isinstance(info, dict):
        return False  # of another program
    if app in info:
        return "txn" not in actions[-1]
    return info.get("operation") in ("CREATE TABLE", "ADD COLUMN") and "metaData" not in actions[-1]


def _has_only_info(path: Path) -> bool:
    return all(action.keys() == {"commitInfo"} for action in _actions(path))


def _is_torn_hint(path: Path) -> bool:
    """Return whether the file that names the last checkpoint is damaged, or names one that is missing."""
    try:
        version = int(json.loads(path.read_bytes())["version"])
    except (ValueError, TypeError, LookupError):
        return True
    return not path.with_name(f"{version:020}.checkpoint.parquet").exists()


def _is_torn_parquet(path: Path) -> bool:
    try:
        pq.read_table(path, memory_map=False)
    except (OSError, pa.ArrowException):
        return True
    return False
