"""docs/serial-link.md says what the tables of the link say."""

import re

from headwater.link import frames, link
from tools.toolchain import ROOT

TEXT = (ROOT / "docs" / "serial-link.md").read_text(encoding="utf-8")
STATES = ("IDLE", "OPENING", "HALF", "UP", "CLOSING", "ENDED")


def rows(first: str) -> list[list[str]]:
    """The cells of the table whose head begins with ``first``, without the line below the head."""
    lines = TEXT.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"| {first} |"))
    table = []
    for line in lines[at:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return [table[0], *table[2:]]


def test_states_are_those_of_the_table() -> None:
    head, *table = rows("state")
    assert len(head) == link.EVENTS + 1
    for number, name in enumerate(head[1:]):
        assert getattr(link, name) == number
    assert [row[0] for row in table] == list(STATES)
    for state, row in enumerate(table):
        assert getattr(link, row[0]) == state
        for event, cell in enumerate(row[1:]):
            following = link.NEXT[state * link.EVENTS + event]
            assert STATES[following] == (cell or row[0]), (row[0], head[event + 1])


def test_every_event_is_explained() -> None:
    explained = [name for row in rows("event")[1:] for name in row[0].split(", ")]
    assert explained == rows("state")[0][1:]


def test_types_and_specials_are_those_of_the_code() -> None:
    for row in rows("type")[1:]:
        number, name = row[0].split()
        assert getattr(frames, name) == int(number)
    assert len(rows("type")) - 1 == frames.RESET + 1
    line = next(line for line in TEXT.splitlines() if line.startswith("special"))
    assert bytes(int(byte, 16) for byte in re.findall("0x..", line)) == frames.SPECIALS[1:]


def test_times_are_the_defaults() -> None:
    defaults = link.Link.__init__.__kwdefaults__
    named = dict(re.findall(r"`(\w+_ms)` \((\d+)\)", TEXT))
    assert {name: int(value) for name, value in named.items()} == defaults
