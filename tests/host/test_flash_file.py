"""A board's journal file, where the power was cut between the steps of its replacement."""

from pathlib import Path

from headwater_board.flash import FlashFile


def test_a_successor_whose_journal_was_removed_takes_its_place(tmp_path: Path) -> None:
    """FAT cannot rename over a file: the old one is removed first."""
    (tmp_path / "a.hwj.new").write_bytes(b"successor")
    file = FlashFile(str(tmp_path / "a.hwj"))
    assert file.load() == b"successor"
    file.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.hwj"]
