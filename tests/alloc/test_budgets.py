"""Nothing costs a board more than its budget says (``tools.budgets``)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import budgets
from tools.components.build import Built

UPDATE = "if it is worth it: .venv/bin/python -m tools.budgets --update"


@pytest.fixture(scope="module")
def components() -> Iterator[tuple[Built, Path]]:
    with budgets.components() as made:
        yield made


@pytest.mark.needs_micropython
@pytest.mark.needs_wasm
@pytest.mark.parametrize("part", budgets.PARTS)
def test_part_is_within_its_budget(part: str, components: tuple[Built, Path]) -> None:
    measured = {part: budgets.measure_part(budgets.PARTS[part], *components)}
    assert set(measured[part]) == set(budgets.load().get(part, {})), UPDATE
    found = budgets.above(measured, budgets.load())
    assert not found, "\n".join([*found, UPDATE])


def test_budgets_are_of_parts_that_there_are() -> None:
    assert list(budgets.load()) == list(budgets.PARTS), UPDATE


def test_page_has_the_budgets() -> None:
    page = budgets.DOCS.read_text(encoding="utf-8")
    assert page == budgets.with_table(page, budgets.load()), UPDATE


@pytest.mark.parametrize(
    "value, said",
    [
        (1020, []),
        (500, []),
        (1021, ["part: mpy is 1,021, its budget 1,000 (+2.1%)"]),
    ],
)
def test_a_little_more_passes_and_more_does_not(value: int, said: list[str]) -> None:
    assert budgets.above({"part": {"mpy": value}}, {"part": {"mpy": 1000}}) == said


def test_what_has_no_budget_is_named() -> None:
    assert budgets.above({"part": {"mpy": 7}}, {}) == ["part: mpy has no budget; it is 7"]
