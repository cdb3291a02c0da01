"""What a journal costs a board's flash is what docs/stores.md says; and between two new files it allocates nothing."""

import inspect

import pytest

from headwater_board.flash import flash_outbox
from tools import flash_wear


def cells(row: str) -> list[float]:
    return [float(cell.strip().replace(",", "")) for cell in row.strip("|\n").split("|")]


@pytest.mark.needs_micropython
@pytest.mark.timeout(300)
def test_the_wear_is_what_the_documentation_says() -> None:
    cases = flash_wear.measure()
    assert all(case.clean for case in cases)
    rows = [cells(row) for row in flash_wear.documented().splitlines()[2:]]
    assert [row[:5] for row in rows] == [list(case[:5]) for case in cases]
    for case, row in zip(cases, rows, strict=True):
        # How littlefs spreads what it writes may differ a little between versions of MicroPython.
        assert row[5] == pytest.approx(case.rewritten, abs=3), case
        assert row[6] == pytest.approx(case.erased / 1000, abs=0.03), case
        assert row[7] == pytest.approx(case.programmed / 1000, abs=30), case
        assert row[8] == pytest.approx(case.flash_ms, abs=2), case
    # The default is the setting that wears the flash of an RP2 board least, for messages of up to 100 bytes.
    default = inspect.signature(flash_outbox).parameters["limit"].default
    for qos, payload in ((1, 40), (1, 100), (2, 100)):
        few = [c for c in cases if c[:3] == (256, qos, payload) and c.sync_every == 1]
        assert min(few, key=lambda case: case.erased).limit == default
        assert min(few, key=lambda case: case.flash_ms).limit == default
