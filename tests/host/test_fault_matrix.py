"""The simulated world: WiFi faults in each state of the machine, a month of them, and the page that shows it."""

from __future__ import annotations

import pytest

from tests.conftest import require
from tools import fault_matrix
from tools.fault_matrix import Row, month, program, simulate

#: The longest times to recover in milliseconds, by fault: a fault that ends while a pause or a time-out of the network
#: runs is over when that is. Each is below a minute.
_LIMITS = {
    "access point off, 1 s": 5_000,
    "DHCP after 12 s": 30_000,  # the address itself takes 12 s, and at the edge of the limit of 15 s a second attempt
    "no DNS, 2 min": 40_000,  # until the interface has restarted: nothing was resolved before
}
_LIMIT = 20_000


@pytest.fixture(scope="module", params=fault_matrix.PORTS)
def rows(request: pytest.FixtureRequest) -> tuple[str, list[Row]]:
    require("micropython")
    return request.param, fault_matrix.matrix(request.param)


def test_a_board_recovers_from_each_fault_in_each_state(rows: tuple[str, list[Row]]) -> None:
    cases = rows[1]
    assert len(cases) == 10 * fault_matrix.FAULTS
    for case in cases:
        where = f"{case['fault']} while {case['state']}"
        assert case["reached"], where
        assert case["recovered"], where
        assert case["ms"] < _LIMITS.get(case["fault"], _LIMIT), (where, case)
        assert case["resets"] == 0, where
        assert case["accepted"] > 20, where
        assert case["lost"] == 0, (where, case)
        assert case["command"], f"{where}: not subscribed"


def test_the_page_shows_these_times(rows: tuple[str, list[Row]]) -> None:
    port, cases = rows
    text = fault_matrix.PAGE.read_text(encoding="utf-8")
    table = {f"matrix-{port}": fault_matrix.matrix_table(cases)}
    assert fault_matrix.renewed(text, table) == text, "python -m tools.fault_matrix --update"


@pytest.mark.parametrize("port", fault_matrix.PORTS)
def test_only_a_limit_that_was_set_resets_the_board(port: str) -> None:
    require("micropython")
    cases = simulate("due", port)
    assert [(case["offline_min"], case["resets"]) for case in cases] == [(0, 0), (5, 1), (20, 0)]


def test_ten_days_of_faults_leave_the_heap_as_it_was() -> None:
    """The page has a month of each port: ``python -m tools.fault_matrix --month 30``."""
    require("micropython")
    found = month("esp32", 10, seed=1)
    assert found["days"] >= 10
    assert found["faults"] > 150
    assert found["connections"] > 100
    assert found["heap_after"] == found["heap_before"] == found["heap_most"]
    assert found["accepted"] > 14_000
    assert (found["lost"], found["resets"]) == (0, 0)


def test_updates_over_the_air_leave_the_heap_as_it_was() -> None:
    """Requests and refused images after each fault; their reports allocate."""
    require("micropython")
    found = month("rp2", 4, 1, "update")
    assert found["faults"] > 40
    assert found["reports"] > 2 * found["faults"]
    assert found["heap_after"] == found["heap_before"] == found["heap_most"]
    assert (found["lost"], found["resets"]) == (0, 0)


@pytest.mark.parametrize("port", fault_matrix.PORTS)
def test_the_program_of_the_comparison_recovers(port: str) -> None:
    require("micropython")
    for fault in (1, 6):
        found = program(port, "headwater", fault, ())
        assert found["online"]
        assert 0 <= found["ms"] < _LIMIT
        assert found["lost"] == 0
        assert found["subscribed"]
        assert not found["command_lost"]


def test_the_simulation_notices_a_board_that_does_not_recover() -> None:
    require("micropython")
    found = simulate("program", "rp2", "gives_up", 1)[0]
    assert found["online"]
    assert found["ms"] < 0
    assert fault_matrix.program_table({"headwater": [found]}).endswith("| never |\n")
