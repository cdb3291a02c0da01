"""Runs alike rows in one test, and reports every row that fails: for MicroPython, which has no pytest."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


def report(error: Exception) -> None:
    """Print the traceback."""
    if hasattr(sys, "print_exception"):
        sys.print_exception(error)
    else:
        import traceback

        traceback.print_exception(error)


def each(rows: "Iterable[Any]", run: "Callable[..., object]") -> None:
    """Call ``run(*row)`` for each row, or ``run(row)`` if it is no tuple; the row's first value names it."""
    failed = []
    for row in rows:
        values = row if isinstance(row, tuple) else (row,)
        try:
            run(*values)
        except Exception as error:
            failed.append(values[0])
            print("row failed:", values[0])
            report(error)
    assert not failed, failed
