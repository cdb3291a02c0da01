"""``headwater hub``: what an operator types."""

import asyncio
import os
import pty
import re
import resource
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from headwater_host.hub.users import Hash
from headwater_host.settings import read_toml
from tests.host.command import HEADWATER, Running, environment, headwater, running
from tests.host.hub_client import Peer, until
from tests.rows import each_row


def holds(output: bytes, name: str, password: bytes) -> None:
    (user,) = read_toml(output.decode())["user"]
    assert user["name"] == name
    assert Hash.parse(user["password"]).holds(password)
    assert password not in output


@pytest.mark.parametrize("how", ["file", "stdin", "environment"])
def test_a_user_is_made(tmp_path: Path, how: str) -> None:
    secret = "sécret word".encode()
    if how == "file":
        (tmp_path / "secret").write_bytes(secret + b"\nanother line\n")
        done = headwater("hub", "passwd", "é", "--password-file", tmp_path / "secret")
    elif how == "stdin":
        done = headwater("hub", "passwd", "é", data=secret + b"\nanother line\n")
    else:
        done = headwater("hub", "passwd", "é", HEADWATER_PASSWORD=secret.decode())
    assert done.returncode == 0, done.stderr
    holds(done.stdout, "é", secret)
    # What is printed goes into the file as it is.
    (tmp_path / "hub.toml").write_bytes(done.stdout)
    assert headwater("hub", "check", tmp_path / "hub.toml").returncode == 0


@pytest.mark.parametrize(
    "again, status, says",
    [
        (b"secret\n", 0, b""),
        (b"Secret\n", 2, b"the passwords differ"),
        (b"\x04", 2, b"no password given"),  # Ctrl-D
    ],
)
def test_a_password_is_asked_for_twice_and_not_shown(again: bytes, status: int, says: bytes) -> None:
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [*HEADWATER, "hub", "passwd", "me"],
        stdin=follower,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        errors = b""
        for prompt, answer in ((b"Password: ", b"secret\n"), (b"Again: ", again)):
            # What is typed before the prompt is thrown away.
            while not errors.endswith(prompt):
                more = os.read(process.stderr.fileno(), 100)
                assert more, errors
                errors += more
            os.write(leader, answer)
        output, rest = process.communicate(timeout=60)
        errors += rest
    os.close(follower)
    os.close(leader)
    assert process.returncode == status, errors
    assert b"secret" not in output + errors
    if status:
        assert errors.splitlines()[-1] == b"headwater: " + says
    else:
        holds(output, "me", b"secret")


@each_row(
    "arguments, data, says",
    [
        (["me"], b"\n", "the password is empty"),
        (["a\nb"], b"x\n", "a user name is printable text of 1 to 256 characters"),
        (["me", "--password-file", "/none"], b"", "cannot read /none: No such file"),
    ],
)
def test_what_makes_no_user(arguments: list[str], data: bytes, says: str) -> None:
    done = headwater("hub", "passwd", *arguments, data=data)
    assert done.returncode == 2
    assert not done.stdout
    assert says in done.stderr.decode()


def test_a_file_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "hub.toml"
    path.write_text("[limits]\nage = -1\nfull = 5\n")
    done = headwater("hub", "check", path)
    assert done.returncode == 2
    first, second = done.stderr.decode().splitlines()
    assert first.startswith(f"headwater: {path}, line 2: 'age' in [limits]")
    assert second.startswith(f"{path}, line 3: 'full' in [limits]")


def listening(hub: Running) -> tuple[str, int]:
    """Where a hub listens that was told any port."""
    hub.wait_for("listening on")
    found = re.search(r"listening on (\S+), port (\d+)", hub.errors)
    assert found, hub.errors
    return found[1], int(found[2])


async def _publish(address: tuple[str, int], **who: str) -> None:
    peer = await Peer.login(address, **who)
    await peer.send_message("t", b"1")
    await peer.leave()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_hub_without_configuration(tmp_path: Path, how: signal.Signals) -> None:
    for _ in range(2):
        with running("hub", "--port", 0, directory=tmp_path, cwd=tmp_path) as hub:
            asyncio.run(_publish(listening(hub)))
            assert hub.end(how) == 0
            assert "Traceback" not in hub.errors
    assert (tmp_path / "headwater-hub.db").exists()
    assert not (tmp_path / "headwater-hub.db-wal").exists()


def test_a_hub_with_a_file(tmp_path: Path) -> None:
    with socket.socket() as free, socket.socket() as other:
        for each in (free, other):
            each.bind(("127.0.0.1", 0))
        port, metrics = free.getsockname()[1], other.getsockname()[1]
    path = tmp_path / "hub.toml"
    user = headwater("hub", "passwd", "ann", data=b"secret\n").stdout.decode()
    path.write_text(
        f'[storage]\npath = "{tmp_path}/else.db"\n[metrics]\nport = {metrics}\n[[listener]]\nport = {port}\n{user}'
    )
    done = headwater("hub", "--config", path, "--port", "0")
    assert (done.returncode, b"has listeners" in done.stderr) == (2, True)
    with running("hub", "--config", path, "--storage", tmp_path / "hub.db", directory=tmp_path) as hub:
        assert listening(hub) == ("127.0.0.1", port)
        asyncio.run(_publish(("127.0.0.1", port), user="ann", password="secret"))
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        assert 'headwater_hub_messages_received_total{qos="1"} 1' in lines
        assert "headwater_hub_storage_messages 1" in lines
        for url, method, status in (("/", "GET", 404), ("/metrics", "POST", 405)):
            wrong = urllib.request.Request(f"http://127.0.0.1:{metrics}{url}", method=method)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(wrong, timeout=60)
            assert refused.value.code == status
        # Another one cannot have the file, nor a port.
        third = tmp_path / "third.toml"
        table = f"[storage]\npath = '{tmp_path}/third.db'\n[metrics]\nport = {metrics}\n"
        wrong_host = "[[listener]]\nhost = 'a..b'\n[[rule]]\nallow = ['any']\n"
        for text, arguments, says in (
            ("", ("--storage", tmp_path / "hub.db", "--port", "0"), "is in use by another hub"),
            (
                "",
                ("--storage", tmp_path / "third.db", "--port", port),
                f"the hub cannot start: cannot listen on 127.0.0.1, port {port}: Address already in use\n",
            ),
            (table, ("--config", third, "--port", 0), f"cannot listen on 127.0.0.1, port {metrics}: "),
            (table + wrong_host, ("--config", third), "a..b, port 7760: that is no host's name"),
        ):
            third.write_text(text)
            again = headwater("hub", *arguments)
            assert (again.returncode, says in again.stderr.decode()) == (1, True), again.stderr
        assert hub.end() == 0
    assert (tmp_path / "hub.db").exists()
    assert not (tmp_path / "else.db").exists()


def test_a_full_disk_is_said_once_and_so_is_its_end(tmp_path: Path) -> None:
    async def scenario(hub: Running, address: tuple[str, int]) -> None:
        peer = await Peer.login(address)
        pid, hard = hub.process.pid, resource.RLIM_INFINITY
        for n in range(1, 3):
            # The first page of what is written fits, but not all of it.
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (20_000, hard))
            sent = peer.publish("t", bytes(65_536), 1)
            await until(lambda n=n: hub.errors.count("nothing is acknowledged: ") == n)  # type: ignore[misc]
            # Only what would be stored waits.
            await peer.ping()
            assert peer.got == []
            assert hub.errors.count("can be written again") == n - 1
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
            answer = await peer.next()
            assert (answer.id, answer.code) == (sent, 0)
            await until(lambda n=n: hub.errors.count("can be written again") == n)  # type: ignore[misc]
            assert hub.errors.count("nothing is acknowledged: ") == n
        await peer.leave()

    with running("hub", "--storage", tmp_path / "hub.db", "--port", 0, directory=tmp_path) as hub:
        asyncio.run(scenario(hub, listening(hub)))
        assert "logins are refused" not in hub.errors
        assert hub.end() == 0


def test_a_hub_with_a_file_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "hub.toml"
    path.write_text("[limits]\nage = -1\n")
    done = headwater("hub", "--config", path)
    assert done.returncode == 2
    assert f"{path}, line 2: 'age' in [limits]" in done.stderr.decode()
    assert headwater("hub", "--port", "65536").returncode == 2
    (tmp_path / "other.db").write_text("no storage" * 100)
    done = headwater("hub", "--storage", tmp_path / "other.db", "--port", 0)
    assert (done.returncode, b"is no hub's storage" in done.stderr) == (1, True)
