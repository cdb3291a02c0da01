"""What a journal costs a board's flash is what docs/stores.md says; and between two new files it allocates nothing."""

import inspect

import pytest

from headwater_board.flash import flash_outbox
from tools import flash_wear

Costs = dict[tuple[int, ...], list[float]]


def documented() -> Costs:
    """Erased blocks and milliseconds by program size, QoS, payload, `sync_every` and `limit`."""
    lines = flash_wear.documented().splitlines()
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {
        (*map(int, row[:4]), int(limit)): [float(number) for number in cell.split(",")]
        for row in rows
        for limit, cell in zip(head[4:], row[4:], strict=True)
        if cell != "–"
    }


@pytest.mark.needs_micropython
@pytest.mark.timeout(300)
def test_the_wear_is_what_the_documentation_says() -> None:
    cases = flash_wear.measure()
    assert all(case.clean for case in cases)
    shown = documented()
    for case in cases:
        erased, flash_ms = shown.pop((case.program, case.qos, case.payload, case.sync_every, case.limit))
        # How littlefs spreads what it writes may differ a little between versions of MicroPython.
        assert erased == pytest.approx(case.erased / 1000, abs=0.03), case
        assert flash_ms == pytest.approx(case.flash_ms, abs=2), case
    assert shown == {}
    # The default is the setting that wears the flash of an RP2 board least, for messages of up to 100 bytes.
    default = inspect.signature(flash_outbox).parameters["limit"].default
    for qos, payload in ((1, 40), (1, 100), (2, 100)):
        few = [c for c in cases if c[:3] == (256, qos, payload) and c.sync_every == 1]
        assert min(few, key=lambda case: case.erased).limit == default
        assert min(few, key=lambda case: case.flash_ms).limit == default
