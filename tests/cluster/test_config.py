"""The table [cluster] of a hub's file: every key is checked."""

from pathlib import Path

import pytest

from headwater_host.hub.config import ClusterConfig, HubConfig, load, with_options
from headwater_host.settings import ConfigError
from tests.host.command import headwater_here

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


def test_options_override_the_table(tmp_path: Path) -> None:
    config = load(write(tmp_path, f'{URL}[cluster]\nadvertise = "h:1"\nlease = 7\n'))
    assert with_options(config, None, {"lease": 9.0}).cluster == ClusterConfig("h:1", 9.0, "required")
    found = with_options(HubConfig(), "postgresql://db/hub", {"advertise": "h:2", "standby": "none"})
    assert (found.storage, found.cluster) == ("postgresql://db/hub", ClusterConfig("h:2", 5.0, "none"))
    assert with_options(config, None, {}) == config


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--advertise", "h"], b"--advertise: 'h' is not HOST:PORT"),
        (["--advertise", "h:0"], b"'h:0' is not HOST:PORT"),
        (["--lease", "0.5"], b"--lease: '0.5' is not a number of seconds, 1 to 3600"),
        (["--lease", "long"], b"--lease: 'long' is not a number of seconds"),
        (["--standby", "maybe"], b'--standby: \'maybe\' is not "required" or "none"'),
        (["--lease", "2.5"], b"--lease needs --advertise, or [cluster] in the configuration file"),
        (["--standby", "none"], b"--standby needs --advertise"),
        (["--advertise", "h:1"], b"a cluster needs storage in PostgreSQL, not in the file headwater-hub.db"),
        (["--advertise", "h:1", "--storage", "x.db"], b"not in the file x.db: --storage postgresql://..."),
    ],
)
def test_a_wrong_option_says_what_is_wrong(arguments: list[str], says: bytes) -> None:
    done = headwater_here("hub", *arguments)
    assert done.returncode == 2
    assert says in done.stderr


REPLICATION = """
[replication]
name = "a"
leader = "a"
{sync}
[[hub]]
name = "a"
address = "h:1"
[[hub]]
name = "c"
address = "h:3"
"""


def test_a_cluster_with_slaves(tmp_path: Path) -> None:
    found = load(
        write(tmp_path, URL + '[cluster]\nadvertise = "h:1"\n' + REPLICATION.format(sync="sync = 0"))
    )
    assert found.cluster is not None
    assert found.replication is not None
    assert (found.replication.slaves, found.replication.need) == (("c",), 0)
    site = load(write(tmp_path, REPLICATION.format(sync="")))
    assert with_options(site, tmp_path / "other.db", {}).storage == tmp_path / "other.db"
    with pytest.raises(ConfigError, match=r"with storage in PostgreSQL needs \[cluster\]"):
        with_options(site, "postgresql://db/hub", {})
    with pytest.raises(ConfigError, match=r"confirm nothing: set 'sync' in \[replication\] to 0"):
        with_options(site, "postgresql://db/hub", {"advertise": "h:1"})
    with pytest.raises(ConfigError, match="a cluster needs storage in PostgreSQL"):
        with_options(found, tmp_path / "other.db", {})


@pytest.mark.parametrize(
    "text, says",
    [
        (URL + '[cluster]\nadvertise = "h:1"\n' + REPLICATION.format(sync=""), "confirm nothing: set 'sync'"),
        (URL + '[cluster]\nadvertise = "h:1"\n' + REPLICATION.format(sync="sync = 1"), "confirm nothing"),
        (URL + REPLICATION.format(sync="sync = 0"), "needs [cluster]"),
    ],
)
def test_mistakes_of_a_cluster_with_slaves(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as mistake:
        load(write(tmp_path, text))
    assert says in str(mistake.value)
