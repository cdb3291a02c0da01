"""Each defect of replication is found, and nothing without one.

With times: ``python -m tests.host.hub_slave_mutants``.
"""

import pytest

from tests.host import hub_slave_mutants
from tests.host.hub_slave_mutants import MUTANTS, SCENARIOS


@pytest.mark.parametrize("name", MUTANTS)
def test_a_defect_of_replication_is_found(name: str) -> None:
    assert hub_slave_mutants.find(name)


@pytest.mark.parametrize(
    "scenario", [one for one in SCENARIOS if one.__module__ == hub_slave_mutants.__name__]
)
def test_a_scenario_passes_without_a_defect(scenario: hub_slave_mutants.Scenario) -> None:
    assert not hub_slave_mutants.run(scenario)
