"""The helper that reads the vectors: row by row it reads what is in the file."""

import vectors


def test_rows_are_those_of_the_file() -> None:
    count = 0
    for row in vectors.rows("mqtt", "packets"):
        assert row["name"], row
        assert row["hex"], row
        count += 1
    assert count > 100, count


def test_a_list_that_is_not_there_is_an_error() -> None:
    try:
        for _ in vectors.rows("mqtt", "no such list"):
            raise AssertionError("a row of nothing")
    except ValueError:
        return
    raise AssertionError("no error")
