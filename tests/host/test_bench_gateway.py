"""The benchmark of the gateway runs, and its subscriber and its tap do what they say."""

import pytest

from tests.host.command import quick_bench
from tools.bench import gateway, report
from tools.bench.gateways.recorder import packet_id_at, packets
from tools.bench.hubs.wires import SIZE

pytestmark = pytest.mark.needs_mosquitto


@pytest.fixture(scope="module")
def figures() -> gateway.Figures:
    found = quick_bench("gateway", gateway.ROWS)
    budgets = {rate: gateway.Budget(**cells) for rate, cells in found.pop("budgets").items()}
    return gateway.Figures(**found, budgets=budgets)


def test_every_row_has_figures(figures: gateway.Figures) -> None:
    assert set(figures.rates) == set(figures.middle) == set(figures.slow) == set(gateway.ROWS)
    for row in gateway.ROWS:
        assert set(figures.rates[row]) == {"0", "1", "2"}
        assert set(figures.middle[row]) == set(figures.slow[row]) == {"1", "2"}
    assert set(figures.budgets) == {str(rate) for rate in gateway.BUDGETS}
    for budget in figures.budgets.values():
        assert len(budget.syncs) == 1
        assert budget.syncs[0] > 0
        assert budget.record[0] > SIZE


def test_tables_have_a_cell_for_every_column(figures: gateway.Figures) -> None:
    bursts, budgets = gateway.tables(figures)
    assert (len(bursts.rows), len(budgets.rows)) == (len(gateway.ROWS), len(gateway.BUDGETS))
    for table in (bursts, budgets):
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert all(f"\n{row[0]} " in report.markdown(table) for row in table.rows)


def test_packets_are_found_and_the_rest_waits() -> None:
    publish = bytes.fromhex("32 86 01 0001 74 0102") + bytes(129)
    data = b"\x20\x02\x00\x00" + publish + b"\x40\x02\x00\x01" + b"\x40\x02"
    found = list(packets(data))
    assert [(head >> 4, end) for head, _, end in found] == [(2, 4), (3, 4 + len(publish)), (4, len(data) - 2)]
    at = packet_id_at(data, found[1][1])
    assert data[at : at + 2] == b"\x01\x02"
