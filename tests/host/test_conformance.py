"""``docs/conformance.md`` has each of the standards' statements once, and names tests that there are."""

import ast
import re
from collections import Counter
from functools import cache

import pytest

from tools.toolchain import ROOT

TESTS = ROOT / "tests"
PAGE = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")

#: How many statements each section of a standard has, in the numbers of its appendix B; they count from 1.
STATEMENTS = {
    "MQTT 3.1.1": """
        1.5.3:3 2.2.2:2 2.3.1:7
        3.1.0:2 3.1.2:24 3.1.3:11 3.1.4:5 3.2.0:1 3.2.2:6 3.3.1:12 3.3.2:3 3.3.4:1 3.3.5:2 3.6.1:1
        3.8.1:1 3.8.3:4 3.8.4:6 3.9.3:2 3.10.1:1 3.10.3:2 3.10.4:6 3.12.4:1 3.14.1:1 3.14.4:3
        4.1.0:2 4.3.1:1 4.3.2:2 4.3.3:2 4.4.0:1 4.5.0:2 4.6.0:6 4.7.1:3 4.7.2:1 4.7.3:4 4.8.0:2
        6.0.0:4 7.0.0:2 7.1.1:1 7.1.2:1
    """,
    "MQTT 5.0": """
        1.5.4:3 1.5.5:1 1.5.7:1 2.1.3:1 2.2.1:6 2.2.2:1
        3.1.0:2 3.1.2:30 3.1.3:12 3.1.4:6 3.2.0:2 3.2.2:22 3.3.1:13 3.3.2:20 3.3.4:10
        3.4.2:3 3.5.2:3 3.6.1:1 3.6.2:3 3.7.2:3 3.8.1:1 3.8.3:5 3.8.4:8 3.9.2:2 3.9.3:2
        3.10.1:1 3.10.3:2 3.10.4:6 3.11.2:2 3.11.3:2 3.12.4:1 3.14.0:1 3.14.1:1 3.14.2:4 3.14.4:3 3.15.1:1 3.15.2:3
        4.1.0:2 4.2.0:1 4.3.1:1 4.3.2:5 4.3.3:13 4.4.0:2 4.5.0:2 4.6.0:6 4.7.0:1 4.7.1:2 4.7.2:1 4.7.3:4
        4.8.2:6 4.9.0:3 4.12.0:7 4.12.1:2 4.13.1:1 4.13.2:1
        6.0.0:4
    """,
}
#: What a section counts and does not have.
MISSING = {"MQTT 3.1.1": set[str](), "MQTT 5.0": {"2.2.1-1"}}
TOTAL = {"MQTT 3.1.1": 141, "MQTT 5.0": 251}

ROW = re.compile(r"^\| ?([^|]*?) ?\| ?([^|]*?) ?\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
NUMBERS = re.compile(r"(?:([\d.]+))?-(\d+)(?: to -(\d+))?")


def rows() -> list[tuple[str, ...]]:
    """The cells of the page's tables: statements of 3.1.1, statements of 5.0, requirement, tests."""
    return [row for row in ROW.findall(PAGE) if NUMBERS.search(row[0] + row[1])]


def numbers(text: str) -> list[str]:
    """The statements that a text such as ``3.1.2-1, -5 to -8; 3.1.3-2`` names."""
    found = []
    section = ""
    for new, first, last in NUMBERS.findall(text):
        section = new or section
        found += [f"{section}-{n}" for n in range(int(first), int(last or first) + 1)]
    return found


def listed(text: str) -> list[str]:
    """The statements of the lists, whose lines end with the subject in parentheses."""
    lines = (line.partition(" (")[0] for line in text.splitlines() if line.startswith("- "))
    return [number for line in lines for number in numbers(line)]


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize("version", STATEMENTS)
def test_each_statement_stands_there_once(version: str) -> None:
    sections = [entry.split(":") for entry in STATEMENTS[version].split()]
    there_are = {f"{section}-{n}" for section, count in sections for n in range(1, int(count) + 1)}
    there_are -= MISSING[version]
    assert len(there_are) == TOTAL[version]
    column = list(STATEMENTS).index(version)
    other = PAGE.partition(f"\n### {version}\n")[2].partition("\n### ")[0]
    said = Counter([number for row in rows() for number in numbers(row[column])] + listed(other))
    assert [number for number, times in said.items() if times > 1] == []
    assert there_are - set(said) == set()
    assert set(said) - there_are == set()


def test_each_row_names_tests_that_there_are_or_says_why_not() -> None:
    # A row that is not read as one would be a statement that nobody looks at.
    assert len(rows()) == sum(
        re.match(r"\|[^|]*-\d|\| \|[^|]*-\d", line) is not None for line in PAGE.splitlines()
    )
    for *statements, what, proof in rows():
        named = TEST.findall(proof)
        assert what.strip(), statements
        assert named or re.fullmatch(r"cannot be tested: .{10,}", proof), statements
        assert len(named) == proof.count("::"), statements
        for file, name in named:
            assert (TESTS / file).is_file(), (statements, file)
            assert name in names_in(file), (statements, file, name)


def test_lists_are_read_as_they_are_meant() -> None:
    assert listed("- 3.1.2-1, -5 to -7; 3.10.4-2 (of 9.9.9-9 things)\ntext 1.1.1-1\n- 4.0.0-3") == (
        ["3.1.2-1", "3.1.2-5", "3.1.2-6", "3.1.2-7", "3.10.4-2", "4.0.0-3"]
    )
