"""docs/spark.md has every column of every table, and every option, as the code has them."""

from pathlib import Path

import pytest

from headwater_spark.options import OPTIONS
from headwater_spark.tables import (
    BADBLOCKS,
    DECODED,
    FRAMES,
    LOGICAL_MESSAGES,
    MESSAGES,
    QUARANTINE,
    TELEMETRY,
    Table,
)

TEXT = (Path(__file__).parents[2] / "docs/spark.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "table",
    [FRAMES, DECODED, BADBLOCKS, MESSAGES, LOGICAL_MESSAGES, TELEMETRY, QUARANTINE],
    ids=lambda table: str(table.name),
)
def test_columns(table: Table) -> None:
    types = {column.name: column.type.replace("<", r"\<") for column in table.columns}
    rows = [f"| `{column.name}` | {types[column.name]} | {column.what} |" for column in table.columns]
    heading = f"### `{table.name}`\n\n| column | type | what |\n|---|---|---|\n"
    assert heading + "\n".join(rows) + "\n\n" in TEXT


def test_options() -> None:
    for option in OPTIONS:
        default = "" if option.default is None else option.default
        assert f"| `{option.name}` | {default} | {option.what} |" in TEXT
