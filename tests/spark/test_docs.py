"""docs/spark.md shows every table and option of the code; `test_diagrams.py` compares their text."""

from headwater_spark.tables import DERIVED, TABLES, VIEWS
from tools.diagrams import DRAWINGS
from tools.toolchain import ROOT

TEXT = (ROOT / "docs/spark.md").read_text(encoding="utf-8")


def test_every_table_has_a_section_with_its_columns() -> None:
    for name in {table.name for table in (*TABLES, *DERIVED)} | set(VIEWS):
        section = TEXT.partition(f"\n### `{name}`\n")[2].partition("\n##")[0]
        assert f"<!-- drawn: spark-{name.replace('_', '-')} -->\n" in section, name


def test_every_column_is_in_a_drawing() -> None:
    for table in (*TABLES, *DERIVED, *VIEWS.values()):
        drawing = DRAWINGS[f"spark-{table.name.replace('_', '-')}"]()
        if table.name == "decoded":
            drawing += DRAWINGS["spark-frames"]()
        for column in table.columns:
            assert f"\n{column.name} " in drawing, (table.name, column.name)
