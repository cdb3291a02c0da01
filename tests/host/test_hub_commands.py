"""``headwater hub``: what an operator types."""

import os
import pty
import subprocess
from pathlib import Path

import pytest

from headwater_host.hub.users import Hash
from headwater_host.settings import read_toml
from tests.host.command import HEADWATER, environment, headwater


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


@pytest.mark.parametrize("again, status", [(b"secret", 0), (b"Secret", 2)])
def test_a_password_is_asked_for_twice_and_not_shown(again: bytes, status: int) -> None:
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
        for prompt, answer in ((b"Password: ", b"secret\n"), (b"Again: ", again + b"\n")):
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
        assert b"that was not the same" in errors
    else:
        holds(output, "me", b"secret")


@pytest.mark.parametrize(
    "arguments, data, says",
    [
        (["me"], b"\n", "a password is not empty"),
        (["a\nb"], b"x\n", "a user's name is text of 1 to 256 characters"),
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
