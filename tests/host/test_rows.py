"""``each_row`` runs every row and names the failing ones."""

import asyncio
from pathlib import Path

import pytest

from tests.rows import each_row


def test_every_failing_row_is_named(tmp_path: Path) -> None:
    seen = []

    @each_row("number, word", [(1, "one"), (2, "two"), (3, "three"), (4, "four")], ids=["a", "b", "c", "d"])
    def check(number: int, word: str, tmp_path: Path) -> None:
        """Documented."""
        seen.append((number, word, tmp_path.name))
        assert number % 2, f"{word} is even"
        if number == 3:
            pytest.fail("three fails as pytest's own")

    with pytest.raises(pytest.fail.Exception) as caught:
        check(tmp_path=tmp_path)
    assert seen == [(1, "one", "0"), (2, "two", "1"), (3, "three", "2"), (4, "four", "3")]
    text = str(caught.value)
    assert text.startswith("3 of 4 rows failed")
    assert all(f"row {name}:" in text for name in "bcd")
    assert "row a:" not in text
    assert "two is even" in text
    assert "three fails as pytest's own" in text
    assert check.__doc__ == "Documented."


def test_rows_with_one_label_are_told_apart_by_number() -> None:
    @each_row("number", [1, 2, 3], ids=["same", "same", "other"])
    def check(number: int) -> None:
        assert number == 1

    with pytest.raises(pytest.fail.Exception) as caught:
        check()
    text = str(caught.value)
    assert "row 1 (same):" in text
    assert "row 2 (other):" in text


@each_row("number", [1, 2])
def test_one_argument_needs_no_tuples(number: int) -> None:
    assert number in (1, 2)


async def test_each_row_of_a_coroutine_function_is_awaited() -> None:
    loop = asyncio.get_running_loop()

    @each_row("number", [1, 2, 3])
    async def check(number: int) -> None:
        await asyncio.sleep(0)
        assert number != 2
        assert asyncio.get_running_loop() is loop

    with pytest.raises(pytest.fail.Exception, match="1 of 3 rows failed"):
        await check()
