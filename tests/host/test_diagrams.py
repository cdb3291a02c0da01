"""The drawings in the documentation are those of the tables."""

from pathlib import Path

import pytest

from headwater import connection as transitions
from tools import diagrams
from tools.toolchain import ROOT


def test_documents_show_the_tables() -> None:
    assert diagrams.outdated() == [], "run: python -m tools.diagrams"


def test_every_drawing_is_shown() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")]
    missing = [
        name for name in diagrams.DRAWINGS if not any(f"<!-- drawn: {name} -->" in text for text in texts)
    ]
    assert not missing


def test_a_change_of_the_tables_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    table = bytearray(transitions.NEXT)
    table[transitions.IDLE * transitions.EVENTS + transitions.OPEN] = transitions.ERROR
    monkeypatch.setattr(transitions, "NEXT", bytes(table))
    assert [path.name for path in diagrams.outdated()] == ["mqtt-session.md"]


def test_names_that_do_not_fit_their_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "ONLINE", 3)
    with pytest.raises(ValueError, match="ONLINE"):
        diagrams.mqtt_connection()


def test_drawing_changes_nothing_else(tmp_path: Path) -> None:
    text = "before\n<!-- drawn: mqtt-packets -->\nold\n<!-- end -->\nbehind <!-- end -->\n"
    (tmp_path / "a.md").write_text(text)
    assert diagrams.outdated(tmp_path) == [tmp_path / "a.md"]
    drawn = diagrams.redrawn(text)
    assert drawn.startswith("before\n<!-- drawn: mqtt-packets -->\n| packet |")
    assert drawn.endswith(" |\n<!-- end -->\nbehind <!-- end -->\n")
    assert diagrams.redrawn(drawn) == drawn
