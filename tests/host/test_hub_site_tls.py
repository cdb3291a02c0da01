"""Hubs of [replication] and [cluster] that reach each other over TLS only, with certificates on both sides."""

import asyncio
import json
import re
import signal
from pathlib import Path

import pytest

from headwater_host.client.fmq import Client, ConnectionOptions, Reconnect
from headwater_host.client.route import Tls
from headwater_host.hub import config as hub_config
from headwater_host.hub import users
from headwater_host.hub.cluster import election
from headwater_host.hub.config import ClusterConfig, HubConfig, Listener
from headwater_host.hub.service import Hub
from headwater_host.settings import ConfigError
from tests.certificates import Pki
from tests.cluster.hubs import free_port, leader_of, member_of
from tests.host.command import headwater as command
from tests.host.test_hub_site_commands import CONFIG, PUBLISH, Hubs, headwater
from tests.rows import each_row
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


class TlsHubs(Hubs):
    """Hubs that demand certificates and a password."""

    def __init__(self, folder: Path, pki: Pki):
        super().__init__(folder)
        self.tls = [
            "--cafile",
            str(pki.ca.cert),
            "--cert",
            str(pki.client.cert),
            "--key",
            str(pki.client.key),
        ]
        # A quick hash: password checks have a low priority, and tests may run beside others.
        entry = f'[[user]]\nname = "hubs"\npassword = "{users.hashed(b"secret", ln=4)}"\n'
        for path in folder.glob("*.toml"):
            text = path.read_text()
            text = text.replace(
                'leader = "a"\n',
                f'leader = "a"\nuser = "hubs"\npassword = "secret"\nca = "{pki.ca.cert}"\n'
                f'cert = "{pki.client.cert}"\nkey = "{pki.client.key}"\n',
            )
            listener = f'cert = "{pki.server.cert}"\nkey = "{pki.server.key}"\nclient_ca = "{pki.ca.cert}"\n'
            path.write_text(f"{text}{listener}\n{entry}")

    def publish(self, name: str, text: str) -> None:
        url = f"fmqs://hubs:secret@127.0.0.1:{self.ports[name]}/t"
        headwater(self.folder, "pub", "-L", url, *self.tls, *PUBLISH, text)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()


def test_hubs_replicate_and_are_promoted_over_tls(tmp_path: Path, pki: Pki) -> None:
    hubs = TlsHubs(tmp_path, pki)
    try:
        for name in "abc":
            hubs.start(name)
        hubs.publish("a", "one")
        status = json.loads(headwater(tmp_path, "hub", "status", "--json", "b.toml").stdout)
        assert (status["role"], status["leader"]) == ("slave", f"127.0.0.1:{hubs.ports['a']}")
        hubs.stop("a", signal.SIGKILL)
        promoted = headwater(tmp_path, "hub", "promote", "--config", "b.toml").stdout
        found = re.search(r"^([bc]) leads epoch 2$", promoted, re.MULTILINE)
        assert found, promoted
        assert "lost" in headwater(tmp_path, "hub", "rejoin", "--config", "a.toml", found[1]).stdout
        hubs.start("a")
        hubs.publish(found[1], "two")
        # A hub that does not trust the others' certificates says why.
        slave = next(name for name in "bc" if name != found[1])
        hubs.stop(slave)
        path = tmp_path / f"{slave}.toml"
        path.write_text(path.read_text().replace(f'ca = "{pki.ca.cert}"', f'ca = "{pki.stranger.cert}"', 1))
        hubs.start(slave)
        wait_until(lambda: "CERTIFICATE_VERIFY_FAILED" in hubs.log(slave))
        failed = headwater(tmp_path, "hub", "status", f"{slave}.toml", check=False)
        assert failed.returncode == 1
        assert "certificate is refused" in failed.stderr
    finally:
        for process in hubs.processes.values():
            process.kill()
            process.wait()


@each_row(
    "table, says",
    [
        ('cert = "{cert}"\n', "'cert' in [replication] needs 'ca'"),
        ('ca = "{ca}"\nkey = "{key}"\n', "'key' in [replication] needs 'cert'"),
        ('ca = "/none"\n', "the files of TLS in [replication] cannot be used (/none): No such file"),
        ('ca = "{ca}"\ncert = "{cert}"\nkey = "{other}"\n', "are not certificates and a key that fits"),
    ],
)
def test_mistakes_in_the_files_of_tls(tmp_path: Path, pki: Pki, table: str, says: str) -> None:
    path = tmp_path / "hub.toml"
    files = {"ca": pki.ca.cert, "cert": pki.client.cert, "key": pki.client.key, "other": pki.server.key}
    good = CONFIG.format(name="a", port=1, a=1, b=2, c=3)
    path.write_text(good.replace('leader = "a"\n', 'leader = "a"\n' + table.format(**files)))
    with pytest.raises(ConfigError, match=re.escape(says)):
        hub_config.load(path)


@pytest.mark.needs_postgresql
async def test_a_cluster_over_tls(tmp_path: Path, pki: Pki, database: str) -> None:
    def config(port: int) -> HubConfig:
        listener = Listener("127.0.0.1", port, pki.server.cert, pki.server.key, pki.ca.cert)
        files = {"ca": pki.ca.cert, "cert": pki.client.cert, "key": pki.client.key}
        cluster = ClusterConfig(f"127.0.0.1:{port}", 30.0, "none", **files)
        return HubConfig(storage=database, listeners=(listener,), cluster=cluster)

    ports = [free_port() for _ in range(2)]
    started = [Hub(config(port)) for port in ports]
    tls = Tls(ca=pki.ca.cert, cert=pki.client.cert, key=pki.client.key)
    try:
        for hub in started:
            await hub.start()
        leader = await leader_of(started)
        (other,) = (hub for hub in started if hub is not leader)
        # Hubs elect over TLS, and not without it, nor if they do not trust the certificate.
        at = other.addresses[0]
        context = tls.make_context()
        found = await election.elect(at, ("127.0.0.1", 1), 0, timeout=60, tls=context)
        assert found.leader is not None
        assert found.leader[0] == leader.addresses[0]
        for wrong in (None, Tls(ca=pki.stranger.cert).make_context()):
            assert await election.elect(at, ("127.0.0.1", 1), 0, timeout=60, tls=wrong) == election.Answer()
        text = (
            f'[storage]\npath = "{database}"\n[cluster]\nadvertise = "127.0.0.1:{at[1]}"\nstandby = "none"\n'
            f'ca = "{pki.ca.cert}"\ncert = "{pki.client.cert}"\nkey = "{pki.client.key}"\n'
        )
        (tmp_path / "hub.toml").write_text(text)
        done = await asyncio.to_thread(command, "hub", "status", tmp_path / "hub.toml", "--json")
        status = json.loads(done.stdout)
        assert (status["role"], status["leader"]) == ("follower", member_of(leader).lease.advertise)
        assert status["position"] is not None
        # A client of the leader follows a handover.
        async with Client(
            *leader.addresses[0],
            identifier="p",
            timeout=60,
            tls=tls,
            reconnect=Reconnect(first=0.1, longest=0.5),
            connection=ConnectionOptions(more_servers=[at]),
        ) as client:
            await client.publish("t", b"1", 1)
            done = await asyncio.to_thread(command, "hub", "handover", tmp_path / "hub.toml")
            assert done.stdout.decode() == f"127.0.0.1:{at[1]} leads in epoch 2\n", done.stderr
            await client.publish("t", b"2", 1)
            assert client.server == f"127.0.0.1:{at[1]}"
    finally:
        for hub in reversed(started):
            await hub.stop()
