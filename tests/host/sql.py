"""SQLite files that tests make, change and look into beside the program that owns them."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any


def execute(path: Path, *statements: str, values: Sequence[object] = ()) -> list[Any]:
    """Run statements in one transaction: the rows of the last one. ``values`` are its parameters."""
    rows: list[Any] = []
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            rows = db.execute(statement, values if statement is statements[-1] else ()).fetchall()
    return rows


def restored(path: Path, dump: Path) -> Path:
    """Make a file of its dump."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript(dump.read_text())
    return path
