"""headwater hub with [replication] as processes: promote, rejoin, backup, restore, export."""

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from headwater_host.hub import config as hub_config
from headwater_host.settings import ConfigError
from tests.host.command import HEADWATER, environment
from tests.host.hub_sites import free_ports
from tests.rows import each_row
from tests.waiting import wait_until

CONFIG = """
[storage]
path = "{name}.db"

[replication]
name = "{name}"
leader = "a"

[[hub]]
name = "a"
address = "127.0.0.1:{a}"

[[hub]]
name = "b"
address = "127.0.0.1:{b}"

[[hub]]
name = "c"
address = "127.0.0.1:{c}"

[[listener]]
port = {port}
"""


#: The hub answers when its slaves have connected and confirmed.
PUBLISH = ("-q", "1", "--timeout", "200", "-m")


def headwater(folder: Path, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [*HEADWATER, *words]
    return subprocess.run(
        command, cwd=folder, check=check, capture_output=True, text=True, timeout=200, env=environment()
    )


class Hubs:
    """Three processes."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.ports = dict(zip("abc", free_ports(3), strict=True))
        self.processes: dict[str, subprocess.Popen[str]] = {}
        for name, port in self.ports.items():
            (folder / f"{name}.toml").write_text(CONFIG.format(name=name, port=port, **self.ports))

    def start(self, name: str) -> None:
        command = [*HEADWATER, "hub", "--config", f"{name}.toml"]
        path = self.folder / f"{name}.log"
        began = path.read_text().count("listening") if path.exists() else 0
        with path.open("a") as log:
            self.processes[name] = subprocess.Popen(
                command, cwd=self.folder, stderr=log, env=environment(), text=True
            )
        wait_until(lambda: path.read_text().count("listening") > began)

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        process = self.processes.pop(name)
        process.send_signal(number)
        process.wait(200)

    def publish(self, name: str, text: str) -> None:
        headwater(self.folder, "pub", "-L", f"fmq://127.0.0.1:{self.ports[name]}/t", *PUBLISH, text)

    def exported(self, name: str) -> str:
        return headwater(self.folder, "hub", "export", f"{name}.db").stdout


def test_a_killed_leader_is_replaced_and_returns_as_a_slave(tmp_path: Path) -> None:
    hubs = Hubs(tmp_path)
    try:
        for name in "abc":
            hubs.start(name)
        hubs.publish("a", "one")
        status = json.loads(headwater(tmp_path, "hub", "status", "--json", "b.toml").stdout)
        assert (status["role"], status["epoch"], status["leader"]) == (
            "slave",
            1,
            f"127.0.0.1:{hubs.ports['a']}",
        )
        failed = headwater(tmp_path, "hub", "promote", "--config", "b.toml", check=False)
        assert failed.returncode == 1
        assert "'a' leads epoch 1: stop it first" in failed.stderr
        hubs.stop("a", signal.SIGKILL)
        promoted = headwater(tmp_path, "hub", "promote", "--config", "b.toml").stdout
        found = re.search(r"^([bc]) leads epoch 2$", promoted, re.MULTILINE)
        assert found, promoted
        leader = found[1]
        rejoined = headwater(tmp_path, "hub", "rejoin", "--config", "a.toml", leader).stdout
        assert "lost" in rejoined
        hubs.start("a")
        hubs.publish(leader, "two")
        headwater(tmp_path, "hub", "backup", f"{leader}.db", "copy.db")
        for name in "abc":
            hubs.stop(name)
        texts = [hubs.exported(name) for name in "abc"]
        for payload in ("one", "two"):
            assert all(payload.encode().hex() in text for text in texts)
        headwater(tmp_path, "hub", "restore", "c.db", "copy.db")
        assert b"one".hex() in hubs.exported("c")
    finally:
        for process in hubs.processes.values():
            process.kill()
            process.wait()


@each_row(
    "change, text",
    [
        (('leader = "a"', 'leader = "x"'), "there is no [[hub]] with the name 'x'"),
        (('leader = "a"', 'leader = "a"\nsync = 3'), "'sync' is 3, but the leader of 3 hubs has 2 slaves"),
        (('127.0.0.1:1"', '127.0.0.1"'), "is not HOST:PORT"),
        (('name = "c"', 'name = "b"'), "there is a hub 'b' already"),
        (('path = "a.db"', 'path = "postgresql://x/y"'), "with storage in PostgreSQL needs [cluster]"),
    ],
)
def test_mistakes_in_the_configuration(tmp_path: Path, change: tuple[str, str], text: str) -> None:
    path = tmp_path / "hub.toml"
    good = CONFIG.format(name="a", port=1, a=1, b=2, c=3)
    path.write_text(good)
    found = hub_config.load(path).replication
    assert found is not None
    assert (found.slaves, found.need) == (("b", "c"), 2)
    assert change[0] in good
    path.write_text(good.replace(*change))
    with pytest.raises(ConfigError, match=re.escape(text)):
        hub_config.load(path)
