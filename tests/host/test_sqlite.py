"""The causes of SQLite's errors, by errors that SQLite itself raises."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater_host.sqlite import Cause, cause, one_line


def damaged_page(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE t (a)")
        db.executemany("INSERT INTO t VALUES (?)", [(b"x" * 4000,)] * 10)
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    sqlite3.connect(path).execute("SELECT * FROM t").fetchall()


def damaged_schema(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE t (a)")
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE t (a)", b"CREATE TABLE t (a("))
    sqlite3.connect(path).execute("SELECT * FROM t")


def another_file(path: Path) -> None:
    path.write_text("not a database at all\n" * 300)
    sqlite3.connect(path).execute("SELECT 1 FROM t")


def no_table(path: Path) -> None:
    sqlite3.connect(path).execute("SELECT 1 FROM t")


def no_column(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE t (a)")
    db.execute("SELECT b FROM t")


def text_that_is_not_utf_8(path: Path) -> None:
    sqlite3.connect(path).execute("SELECT CAST(x'ff' AS TEXT)").fetchone()


def no_room(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA max_page_count = 2")
    db.execute("CREATE TABLE t (a)")
    db.execute("INSERT INTO t VALUES (?)", (b"x" * 100_000,))


def another_connection(path: Path) -> None:
    held = sqlite3.connect(path, isolation_level=None)
    held.execute("CREATE TABLE t (a)")
    held.execute("BEGIN EXCLUSIVE")
    try:
        sqlite3.connect(path, timeout=0).execute("SELECT * FROM t")
    finally:
        held.close()


def no_folder(path: Path) -> None:
    sqlite3.connect(path / "nowhere" / "a.db")


def broken_constraint(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE t (a UNIQUE)")
    db.executemany("INSERT INTO t VALUES (?)", [(1,), (1,)])


RAISED: dict[Callable[[Path], None], Cause] = {
    damaged_page: Cause.DAMAGED,
    damaged_schema: Cause.DAMAGED,
    another_file: Cause.NOT_A_DATABASE,
    no_table: Cause.DAMAGED,
    no_column: Cause.DAMAGED,
    text_that_is_not_utf_8: Cause.DAMAGED,
    no_room: Cause.FULL,
    another_connection: Cause.BUSY,
    no_folder: Cause.CANNOT_OPEN,
    broken_constraint: Cause.OTHER,
}


def test_each_error_has_its_cause_with_and_without_a_code(tmp_path: Path) -> None:
    found = {}
    for number, provoke in enumerate(RAISED):
        with pytest.raises(sqlite3.Error) as caught:
            provoke(tmp_path / f"{number}.db")
        error = caught.value
        # As Python 3.10 raises it.
        bare = type(error)(str(error))
        assert not hasattr(bare, "sqlite_errorcode")
        found[provoke.__name__] = cause(error), cause(bare)
    assert found == {provoke.__name__: (wanted, wanted) for provoke, wanted in RAISED.items()}


def test_a_value_of_another_type_is_damage() -> None:
    assert {cause(TypeError()), cause(ValueError())} == {Cause.DAMAGED}
    assert cause(OSError()) is Cause.OTHER


def test_an_error_is_one_line() -> None:
    assert one_line(ValueError("a\n  b\r\nc")) == "a b c"
