"""The table [cluster] of a hub's file: every key is checked."""

from pathlib import Path

import pytest

from headwater_host.hub.config import ClusterConfig, load
from headwater_host.settings import ConfigError

URL = '[storage]\npath = "postgresql://db/hub"\n'


def write(folder: Path, text: str) -> Path:
    file = folder / "hub.toml"
    file.write_text(text)
    return file


def test_defaults_and_given_values(tmp_path: Path) -> None:
    found = load(write(tmp_path, f'{URL}[cluster]\nadvertise = "10.0.0.1:7760"\n'))
    assert found.storage == "postgresql://db/hub"
    assert found.cluster == ClusterConfig("10.0.0.1:7760", 5.0, "required")
    given = '[cluster]\nadvertise = "[fd00::1]:7761"\nlease = 12\nstandby = "none"\n'
    assert load(write(tmp_path, URL + given)).cluster == ClusterConfig("[fd00::1]:7761", 12.0, "none")
    assert load(write(tmp_path, URL)).cluster is None


@pytest.mark.parametrize(
    "storage, table, says",
    [
        (URL, "", "line 3: 'advertise' in [cluster] is missing"),
        (URL, 'advertise = "host"', "line 4: 'advertise' in [cluster]"),
        (URL, 'advertise = "host:0"', "'host:0' is not HOST:PORT"),
        (URL, 'advertise = "host:99999"', "is not HOST:PORT"),
        (URL, 'advertise = "a b:1"', "is not HOST:PORT"),
        (
            URL,
            'advertise = "h:1"\nlease = 0',
            "line 5: 'lease' in [cluster] is a number of seconds, 1 to 3600, not 0",
        ),
        (URL, 'advertise = "h:1"\nlease = true', "'lease' in [cluster] is a number of seconds"),
        (URL, 'advertise = "h:1"\nstandby = "maybe"', "'standby' in [cluster]"),
        (URL, 'advertise = "h:1"\nleas = 1', "there is no key 'leas' in [cluster]"),
        ("", 'advertise = "h:1"', "[cluster] needs storage in PostgreSQL"),
        ('[storage]\npath = "hub.db"\n', 'advertise = "h:1"', "[cluster] needs storage in PostgreSQL"),
    ],
)
def test_a_mistake_says_what_and_where(tmp_path: Path, storage: str, table: str, says: str) -> None:
    with pytest.raises(ConfigError) as mistake:
        load(write(tmp_path, f"{storage}[cluster]\n{table}\n"))
    assert says in str(mistake.value)
