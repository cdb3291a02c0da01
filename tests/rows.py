"""One test item for a table of alike rows: each row runs, and every failing row is reported by its name."""

import contextlib
import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest


def each_row(
    names: str, table: Iterable[Any], ids: "Callable[[Any], str] | Iterable[Any] | None" = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test for each row, with the arguments of ``pytest.mark.parametrize``.

    If labels are not unique, each gets the row's number, from 0. Fixtures are shared by the rows, except
    ``tmp_path``: each row has a folder of its own. The rows of a coroutine function share its event loop.
    """
    arguments = re.split(r", *", names)
    rows = list(table)
    if callable(ids):
        labels = [ids(row) for row in rows]
    else:
        labels = [repr(row)[:100] for row in rows] if ids is None else [str(label) for label in ids]
    assert rows
    assert len(labels) == len(rows)
    if len(set(labels)) < len(labels):
        labels = [f"{number} ({label})" for number, label in enumerate(labels)]

    def each(fixtures: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        for number, (label, row) in enumerate(zip(labels, rows, strict=True)):
            values = fixtures | dict(zip(arguments, row if len(arguments) > 1 else (row,), strict=True))
            if isinstance(folder := fixtures.get("tmp_path"), Path):
                values["tmp_path"] = folder / str(number)
                values["tmp_path"].mkdir()
            yield label, values

    @contextlib.contextmanager
    def noted(failed: list[str], label: str) -> Iterator[None]:
        try:
            yield
        except (Exception, pytest.fail.Exception):
            failed.append(f"row {label}:\n{traceback.format_exc()}")

    def report(failed: list[str]) -> None:
        if failed:
            pytest.fail(f"{len(failed)} of {len(rows)} rows failed\n" + "\n".join(failed), pytrace=False)

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        def run(**fixtures: Any) -> None:
            failed: list[str] = []
            for label, values in each(fixtures):
                with noted(failed, label):
                    test(**values)
            report(failed)

        async def run_async(**fixtures: Any) -> None:
            failed: list[str] = []
            for label, values in each(fixtures):
                with noted(failed, label):
                    await test(**values)
            report(failed)

        runner: Callable[..., Any] = run_async if inspect.iscoroutinefunction(test) else run
        signature = inspect.signature(test)
        given = [one for name, one in signature.parameters.items() if name not in arguments]
        runner.__name__, runner.__doc__, runner.__module__ = test.__name__, test.__doc__, test.__module__
        runner.__signature__ = signature.replace(parameters=given)  # type: ignore[attr-defined]
        return runner

    return decorate
