"""``headwater pub``, ``sub``, ``rpc`` and ``topic`` against a real hub of FMQ: what they do, and how they end."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headwater_host.cli.main import main
from headwater_host.fmq.plain import from_json, plain
from headwater_host.fmq.values import decode, encode
from headwater_host.hub import users
from tests.certificates import Pki
from tests.host.command import HEADWATER, Running, ended, environment, headwater, hub_at, running
from tests.rows import each_row
from tests.waiting import wait_until
from tools.broker import HOST, free_port

PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with hub_at(tmp_path_factory.mktemp("hub"), "--port", 0) as number:
        yield number


def ok(*arguments: object, data: bytes = b"") -> bytes:
    """What a command prints that ends well and complains of nothing."""
    done = headwater(*arguments, data=data)
    assert (done.returncode, done.stderr) == (0, b""), done
    return done.stdout


def failed(code: int, *arguments: object, **more: Any) -> str:
    """The one line that a command says when it fails with this code."""
    done = headwater(*arguments, **more)
    assert (done.returncode, done.stdout) == (code, b""), done
    assert done.stderr.count(b"\n") == 1, done
    return done.stderr.decode()


def url(port: int, topic: str = "") -> str:
    return f"fmq://{HOST}:{port}/{topic}"


# -- pub and sub -------------------------------------------------------------------------------------------------------


def test_what_is_published_is_printed(port: int, tmp_path: Path) -> None:
    payload = tmp_path / "payload"
    payload.write_bytes(b"\x00\xff\n")
    at = ("-p", port, "--protocol", "fmq")
    reader = ("sub", *at, "-t", "cli/#", "-t", "other", "-T", "cli/out", "-C", 7, "-v", "-d")
    with running(*reader, directory=tmp_path) as sub:
        sub.wait_for("subscribed to 'other'")
        ok("pub", *at, "-t", "cli/a", "-m", "Grüße", "-q", 1)
        ok("pub", *at, "-t", "cli/out", "-m", "left out", "-q", 2)
        ok("pub", "-L", url(port, "cli/a"), "-n", "-q", 2)
        ok("pub", "-h", f"{HOST}:{port}", "--protocol", "fmq", "-t", "cli/a", "-f", payload)
        ok("pub", *at, "-t", "cli/b", "-f", "-", "-q", 1, data=b"in")
        ok("pub", *at, "-t", "other", "-l", "-q", 2, "-M", 1, data=b"1\r\n2\n3")
        assert sub.wait() == 0
        a = b"cli/a "
        assert sub.output == (
            a + "Grüße\n".encode() + a + b"\n" + a + b"\x00\xff\n\ncli/b in\nother 1\nother 2\nother 3\n"
        )
    # Output and errors of what goes on by itself.
    assert "disconnected" in sub.errors


def test_tags_conditions_and_values(port: int) -> None:
    for celsius, tags in [(20, ("--tag", "indoor")), (35, ("--tag", "indoor", "--tag", "x")), (40, ())]:
        topic = url(port, f"room/{celsius}")
        ok("pub", "-L", topic, "--value", json.dumps({"celsius": celsius, "ok": True}), *tags, "-r", "-q", 1)
    ok("pub", "-L", url(port, "room/text"), "-m", "no value", "--tag", "indoor", "-r", "-q", 1)
    at = ("sub", "-L", url(port, "room/#"))
    assert ok(*at, "-C", 1, "--value", "--tag", "indoor", "--condition", "celsius > 30") == (
        b'{"celsius": 35, "ok": true}\n'
    )
    rows = [json.loads(line) for line in ok(*at, "-C", 4, "--json", "--value").splitlines()]
    shown = {row["topic"]: row for row in rows}
    one = shown["room/35"]
    assert one.keys() == {"time_ns", "topic", "qos", "retain", "dup", "id", "tags", "value"}
    assert (one["qos"], one["retain"], one["tags"]) == (1, True, ["indoor", "x"])
    assert one["value"] == {"celsius": 35, "ok": True}
    assert bytes.fromhex(one["id"])[0] >> 4 == 3
    assert shown["room/text"]["payload"] == "no value"
    assert ok(*at, "-C", 1, "--condition", "celsius == 20", "-F", "%t %q%r %m[%P%C] %x %l") == (
        b"room/20 11 0[] " + encode({"celsius": 20, "ok": True}).hex().encode() + b" 18\n"
    )
    kept = ok(*at, "--retained-only", "--remove-retained", "-C", 4, "--value").splitlines()
    assert sorted(kept)[0] == b"no value"
    assert ok(*at, "-W", 0.5) == b""
    assert "column" in failed(1, *at, "--condition", "celsius >")


def test_a_group(port: int, tmp_path: Path) -> None:
    at = ("--protocol", "fmq", "-p", port, "-t", "jobs")
    worker = ("sub", *at, "--group", "workers")
    assert ok(*worker, "-E") == b""
    ok("pub", *at, "-l", "-q", 2, data=b"".join(b"%d\n" % n for n in range(10)))
    assert ok(*worker, "--need-ack", "-C", 4) == b"0\n1\n2\n3\n"
    with running(*worker, "--need-ack", "--window", 2, "-C", 5, directory=tmp_path) as sub:
        assert sub.wait() == 0
        assert sub.output == b"4\n5\n6\n7\n8\n"
    assert ok(*worker, "--need-ack", "-C", 1) == b"9\n"
    with running(*worker, "-d", directory=tmp_path) as sub:
        ok("pub", *at, "-m", "more", "-q", 1)
        sub.wait_for("Message(")
        assert sub.end() == 0
        assert sub.output == b"more\n"
    # Its topic goes, and with it the consumer.
    with running(*worker, "--need-ack", "-d", directory=tmp_path) as sub:
        sub.wait_for("subscribed to 'jobs'")
        ok("topic", "unregister", "-p", port, "jobs")
        assert sub.wait() == 1
        assert "to go on with consuming 'jobs'" in sub.errors


def test_what_was_sent_to_a_consumer_and_not_printed_has_not_failed(tmp_path: Path) -> None:
    """With one try, what counts as one is dead."""
    settings = tmp_path / "hub.toml"
    settings.write_text("[limits]\ntries = 1\n")
    with hub_at(tmp_path, "--config", settings, "--port", 0) as number:
        at = ("--protocol", "fmq", "-p", number)
        topics = ("a", "b", "c", "d")
        for topic in topics:
            ok("pub", *at, "-t", topic, "-m", topic, "-q", 1)
        worker = ("sub", *at, "--group", "g", "--need-ack", "-C", 1, "-W", 60)
        named = [word for topic in topics for word in ("-t", topic)]
        # Whoever reads the output may close it.
        reading, writing = os.pipe()
        os.close(reading)
        command = [*HEADWATER, *map(str, worker[:-4]), *named]
        with os.fdopen(writing, "wb") as out:
            assert (
                subprocess.run(command, stdout=out, env=environment(), check=False, timeout=60).returncode
                == 0
            )
        assert {ok(*worker, *named) for _ in topics} == {b"a\n", b"b\n", b"c\n", b"d\n"}


def test_a_session_is_kept_and_subscriptions_taken_back(port: int) -> None:
    reader = ("sub", "--protocol", "fmq", "-p", port, "-i", "kept", "-c")
    assert ok(*reader, "-t", "back/1", "-t", "back/2", "-E") == b""
    assert ok(*reader, "-U", "back/1", "-E") == b""
    for n in (1, 2):
        ok("pub", "-L", url(port, f"back/{n}"), "-m", n, "-q", 1)
    assert ok(*reader, "-t", "back/3", "-C", 1) == b"2\n"


def test_a_will_and_a_hub_that_restarts(tmp_path: Path) -> None:
    number = free_port()
    with hub_at(tmp_path, "--port", number):
        with running("sub", "-L", url(number, "a"), "--will-topic", "wills", "--will-payload", "gone", "--will-qos", 1,
                     "--will-retain", "-d", directory=tmp_path) as sub:  # fmt: skip
            sub.wait_for("subscribed to")
            assert sub.end(signal.SIGKILL) == -signal.SIGKILL
        assert ok("sub", "-L", url(number, "wills"), "-C", 1) == b"gone\n"
        stays = running("sub", "-L", url(number, "a"), "-C", 1, "-d", directory=tmp_path)
        sub = stays.__enter__()
        sub.wait_for("subscribed to")
    with contextlib.ExitStack() as stack:
        stack.push(stays)
        sub.wait_for("trying again")
        stack.enter_context(hub_at(tmp_path, "--port", number))
        sub.wait_for("connected again")
        ok("pub", "-L", url(number, "a"), "-m", "back", "-q", 1)
        assert sub.wait() == 0
        assert sub.output == b"back\n"
    assert f"{number}" in failed(3, "pub", "-L", url(number, "a"), "-n")


def test_users_and_tls(tmp_path: Path, pki: Pki) -> None:
    number = free_port()
    settings = tmp_path / "hub.toml"
    settings.write_text(
        f'[[listener]]\nport = {number}\ncert = "{pki.server.cert}"\nkey = "{pki.server.key}"\n'
        + users.entry("ann", PASSWORD.encode())
        + '[[rule]]\ntopics = ["secret/#", "$hub/topics"]\ndeny = ["any"]\n[[rule]]\nusers = [""]\ndeny = ["any"]\n'
    )
    secured = ("--cafile", pki.ca.cert)
    with hub_at(tmp_path, "--config", settings):
        at = ("--protocol", "fmq", "-p", number, *secured)
        ann = ("-u", "ann", "--password-file", tmp_path / "password")
        (tmp_path / "password").write_text(PASSWORD + "\n")
        ok("pub", *at, *ann, "-t", "open", "-m", "x", "-q", 1, "-r")
        address = f"fmqs://ann:{PASSWORD.replace(' ', '%20')}@{HOST}:{number}"
        assert ok("sub", "-L", f"{address}/open", *secured, "-C", 1) == b"x\n"
        for words in (("pub", *at, *ann, "-t", "secret/a", "-n", "-q", 1), ("sub", *at, *ann, "-t", "#"),
                      ("topic", "list", *at[2:], *ann), ("pub", *at, "-t", "open", "-n", "-q", 1)):  # fmt: skip
            assert "not authorized (0x87)" in failed(1, *words)
        wrong = failed(1, "sub", *at, "-t", "open", "-u", "ann", HEADWATER_PASSWORD="wrong-secret")
        assert "bad user name or password" in wrong
        assert "wrong-secret" not in wrong
        assert "TLS" in failed(3, "pub", "-L", f"fmqs://{HOST}:{number}/a", "-n")
        assert failed(3, "pub", "-L", f"fmq://{HOST}:{number}/a", "-n", "--timeout", 30)


# -- topics ------------------------------------------------------------------------------------------------------------


def test_topics(tmp_path: Path) -> None:
    with hub_at(tmp_path, "--port", 0) as number:
        at = ("-p", number)
        assert ok("topic", "list", *at) == b""
        assert ok("topic", "register", "b/x", "--queues", 3, *at) == b""
        assert ok("topic", "register", "-L", url(number), "ä y") == b""
        assert ok("topic", "list", *at).decode() == "b/x\nä y\n"
        assert ok("topic", "list", "b/+", "-v", *at) == b"3\t0\t0\tb/x\n"
        (row,) = ok("topic", "list", "--json", "+", *at).splitlines()
        assert json.loads(row) == {"topic": "ä y", "queues": 1, "messages": 0, "bytes": 0}
        assert "(0x" in failed(1, "topic", "register", "b/x", "--queues", 2, *at)
        assert ok("topic", "register", "b/x", "--queues", 4, *at) == b""
        assert ok("topic", "unregister", "b/x", *at) == b""
        assert "there is no topic 'b/x'" in failed(1, "topic", "unregister", "b/x", *at)
        assert ok("topic", "list", *at).decode() == "ä y\n"


# -- rpc ---------------------------------------------------------------------------------------------------------------

SERVER = """
import os, sys
asked = sys.stdin.buffer.read()
if asked == b"fail":
    print("first line", file=sys.stderr)
    print("it went wrong \\N{DEGREE SIGN}\\n", file=sys.stderr)
    sys.exit(3)
if asked == b"quiet":
    sys.exit(4)
if asked == b"die":
    os.kill(os.getpid(), 15)
if asked == b"much":
    sys.stdout.buffer.write(bytes((15 << 20) + 1))
sys.stdout.buffer.write(os.environ["HEADWATER_TOPIC"].encode() + b":" + asked + b"\\0\\xff")
"""


@contextlib.contextmanager
def serving(port: int, directory: Path, topic: str, *words: object) -> Iterator[Running]:
    with running("rpc", "serve", "-p", port, "-d", topic, *words, directory=directory) as process:
        process.wait_for("serving")
        yield process


def test_calls(port: int, tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    with serving(port, tmp_path, "cmd/+", "--", sys.executable, program) as server:
        call = ("rpc", "call", "-p", port)
        assert ok(*call, "cmd/a", "x\ty") == b"cmd/a:x\ty\0\xff\n"
        assert ok(*call, "cmd/b", "-N") == b"cmd/b:\0\xff"
        assert ok(*call, "cmd/b", "-f", "-", data=b"\n\0") == b"cmd/b:\n\0\0\xff\n"
        for asked, says in [
            ("fail", "unspecified error (0x80): it went wrong \N{DEGREE SIGN}"),
            ("quiet", "exit code 4"),
            ("die", "signal 15"),
            ("much", "(0x95): the result is longer than"),
        ]:
            assert says in failed(1, *call, "cmd/a", asked)
        assert "no matching subscribers (0x10): there is no responder for 'cmd/a/b'" in failed(
            1, *call, "cmd/a/b"
        )
        assert "first line\nit went wrong" in server.errors
        assert server.end() == 0
    assert "there is no responder for 'cmd/a'" in failed(1, *call, "cmd/a")


def test_calls_at_a_time_with_values(port: int, tmp_path: Path) -> None:
    program = "import json, sys; print(json.dumps({'sum': sum(json.load(sys.stdin))}))"
    words = ("--value", "-C", 4, "-j", 1, "--", sys.executable, "-c", program)
    with serving(port, tmp_path, "sum", *words) as server:
        call = ("rpc", "call", "-L", url(port), "sum")
        assert ok(*call, "[1, 2.5]", "--value") == b'{"sum": 3.5}\n'
        assert ok(*call, "[1]") == encode({"sum": 1}) + b"\n"
        assert "TypeError" in failed(1, *call, '["a"]', "--value")
        assert ok(*call, "[]", "--value") == b'{"sum": 0}\n'
        assert server.wait() == 0
    with serving(port, tmp_path, "none", "--value", "-C", 1, "--", "echo", "no", "json"):
        assert "the output of the command is not JSON" in failed(1, "rpc", "call", "-p", port, "none")
    gone = tmp_path / "gone"
    gone.touch(0o700)
    with serving(port, tmp_path, "none", "-C", 1, "--", gone):
        gone.unlink()
        assert f"cannot run '{gone}'" in failed(1, "rpc", "call", "-p", port, "none")


def is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_commands_that_take_too_long(port: int, tmp_path: Path) -> None:
    """They are killed with all that they have started; so are those that run when ``serve`` ends."""
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho $$ >>{tmp_path}/groups\nsleep 1000 & sleep 1000\n")
    program.chmod(0o700)
    with serving(port, tmp_path, "slow", "-W", 0.5, "--", program):
        assert "(0x83): the command took too long" in failed(1, "rpc", "call", "-p", port, "slow")
    with serving(port, tmp_path, "slow", "--", program) as server:
        assert "the server did not answer in time" in failed(4, "rpc", "call", "-p", port, "-W", 0.5, "slow")
        groups = tmp_path / "groups"
        before = groups.read_text().count("\n") if groups.exists() else 0
        with running("rpc", "call", "-p", port, "slow", directory=tmp_path):
            wait_until(lambda: groups.exists() and groups.read_text().count("\n") > before)
            assert server.end() == 0
    for group in map(int, groups.read_text().split()):
        wait_until(partial(is_gone, group))


# -- JSON --------------------------------------------------------------------------------------------------------------


@each_row(
    "text",
    [
        "null",
        "true",
        "-1",
        "18446744073709551615",
        "1.5",
        '"ä\\u0000"',
        "[]",
        '{"a": [1, {"b": null}], "": 2.0}',
    ],
)
def test_json_there_and_back(text: str) -> None:
    assert plain(decode(from_json(text))) == json.loads(text)


@each_row(
    "text", ["", "{", "nan", "NaN", "[Infinity]", "1e999", "1 2", "'a'", '"\\ud800"', "[" * 100 + "]" * 100,
             "[" * 100000, "9" * 5000],
    ids=["empty", "open", "nan", "NaN", "inf", "huge", "two", "quotes", "half", "deep", "deeper", "long"],
)  # fmt: skip
def test_what_is_no_value(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(text)
    assert main(["pub", "--protocol", "fmq", "-t", "a", "--value", text]) == 2
    said = capsys.readouterr()
    assert "the value is not JSON: " in said.err
    assert said.err.count("\n") == 1


# -- wrong command lines -----------------------------------------------------------------------------------------------

_PUB = ["pub", "--protocol", "fmq", "-t", "a", "-n"]
_SUB = ["sub", "--protocol", "fmq", "-t", "a"]


@each_row(
    "arguments, says",
    [
        ([*_PUB, "-V", "5"], "-V is an option of MQTT"),
        ([*_PUB, "-V", "3.1.1"], "-V is an option of MQTT"),
        ([*_PUB, "-x", "0"], "-x is an option of MQTT"),
        ([*_PUB, "-D", "publish", "content-type", "x"], "-D is an option of MQTT"),
        ([*_SUB, "-q", "0"], "-q is an option of MQTT"),
        ([*_SUB, "--no-local"], "--no-local is an option of MQTT"),
        ([*_SUB, "--retain-as-published"], "--retain-as-published is an option of MQTT"),
        ([*_SUB, "--retain-handling", "always"], "--retain-handling is an option of MQTT"),
        (["pub", "-t", "a", "-n", "--tag", "x"], "--tag needs --protocol fmq"),
        (["pub", "-t", "a", "--value", "1"], "--value needs --protocol fmq"),
        (["sub", "-t", "a", "--value"], "--value needs --protocol fmq"),
        (["sub", "-t", "a", "--group", "g"], "--group needs --protocol fmq"),
        (["sub", "-t", "a", "--condition", "x"], "--condition needs --protocol fmq"),
        (["sub", "-t", "a", "--need-ack"], "--need-ack needs --protocol fmq"),
        ([*_PUB, "-L", "mqtt://h/a"], "-L contradicts --protocol fmq"),
        ([*_PUB, "-L", "ws://h/a"], "-L contradicts --protocol"),
        (
            ["pub", "--protocol", "mqtt", "-L", "fmqs://h/a", "-n"],
            "-L contradicts --protocol mqtt",
        ),
        (["pub", "--protocol", "amqp", "-t", "a", "-n"], "invalid choice: 'amqp'"),
        (["pub", "-L", "fmq://h:0/a", "-n"], "expected SCHEME://"),
        ([*_PUB, "--value", "1"], "not allowed with argument"),
        (["pub", "-L", "fmq://h/", "-n"], "a topic is required: use -t"),
        ([*_PUB, "-P", "secret"], "a password needs a user name"),
        ([*_PUB, "-c"], "--keep-session needs a client identifier"),
        ([*_PUB, "-h", "a:7761,b"], "only some servers use port 7761"),
        ([*_PUB, "--insecure"], "--insecure needs TLS"),
        ([*_PUB, "--will-qos", "1"], "a will needs --will-topic"),
        ([*_SUB, "--need-ack"], "--need-ack needs --group"),
        ([*_SUB, "--group", "g", "--window", "5"], "--window needs --need-ack"),
        ([*_SUB, "--group", "g", "--need-ack", "--window", "201"], "is not a whole number from 1 to 200"),
        ([*_SUB, "--group", "g", "-C", "1"], "--group with -C needs --need-ack"),
        ([*_SUB, "--group", "g", "--retained-only"], "--retained-only does not work with --group"),
        (["rpc"], "required: COMMAND"),
        (["rpc", "dial"], "there is no command 'dial'"),
        (["rpc", "call"], "required: TOPIC"),
        (["rpc", "call", "a/+"], "'a/+' is not a topic"),
        (["rpc", "call", "a", "x", "-f", "y"], "not allowed with argument"),
        (["rpc", "call", "a", "-f", "/nonexistent/x"], "cannot read /nonexistent/x"),
        (["rpc", "call", "a", "{", "--value"], "the value is not JSON"),
        (["rpc", "call", "a", "", "--value", "-f", "/dev/null"], "not allowed with argument"),
        (["rpc", "call", "a", "--value", "-f", "/dev/null"], "the value is not JSON"),
        (["rpc", "call", "a", "-W", "0"], "is not a number of seconds above 0"),
        (
            ["rpc", "call", "a", "-V", "5"],
            "headwater rpc call: unrecognized arguments: -V 5 (see headwater rpc call --help)",
        ),
        (["rpc", "call", "a", "-L", "fmq://h/b"], "give the topic as an argument"),
        (["rpc", "call", "a", "-L", "mqtt://h"], "-L contradicts --protocol"),
        (["rpc", "serve", "a"], "required: COMMAND"),
        (
            ["rpc", "serve", "a", "--", "/nonexistent/command"],
            "command not found: '/nonexistent/command'",
        ),
        (["rpc", "serve", "a#", "--", "cat"], "'a#' is not a topic filter"),
        (["rpc", "serve", "a", "-j", "0", "--", "cat"], "'0' is not a whole number from 1 to 1000"),
        (["topic"], "required: COMMAND"),
        (["topic", "rename", "a"], "there is no command 'rename'"),
        (["topic", "list", "a#"], "'a#' is not a topic filter"),
        (["topic", "list", "-v", "--json"], "not allowed with argument"),
        (["topic", "register", "a/#"], "'a/#' is not a topic"),
        (["topic", "register", "a", "--queues", "0"], "'0' is not a whole number from 1 to 65536"),
        (["topic", "unregister"], "required: TOPIC"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = ended(*arguments)
    said = capsys.readouterr()
    assert says in said.err
    assert (code, said.out) == (2, "")
    assert said.err.startswith("headwater")
    assert said.err.count("\n") == 1


_WORDS = [
    "--protocol", "fmq", "mqtt", "-t", "a", "a/#", "$hub/topics", "", "\0", "\udcff", "ä" * 300, "x" * 70000, "-", "--",
    "-q", "-1", "1", "2", "65536", "9" * 30, "-C", "-W", "0.1", "nan", "1e400", "--value", "{}", "[" * 3000, "-m", "-n",
    "--tag", "--group", "--need-ack", "--window", "--condition", "a &&", "-i", "-c", "-I", "-u", "-P", "-k",
    "--timeout", "--reconnect", "0", "--no-reconnect", "--will-topic", "--will-payload", "--will-qos",
    "--will-retain", "-r", "--json", "-v", "-F", "%t %%", "-E", "-U", "-T", "-R", "-N", "--quiet",
    "--repeat", "--cafile", "/dev/null", "--segment-size", "16", "--format",
    "--insecure", "-x", "-D", "publish", "--jobs", "-j", "--queues", "--file", "/nonexistent", "echo", "-o", "-L",
    "fmqs://u:p@127.0.0.1:1/t", "fmq://[::1]:1", "mqtt://h",
]  # fmt: skip
_COMMANDS: list[list[str]] = [
    ["pub"], ["sub"], ["rpc", "call"], ["rpc", "serve"], ["topic", "list"], ["topic", "register"],
    ["topic", "unregister"],
]  # fmt: skip


def test_words_in_any_order_end_in_an_exit_code_of_the_table(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever stands there, nothing listens on the port: it is wrong, or there is no connection."""
    chance = random.Random(20261121)
    monkeypatch.setattr("sys.stdin", None)
    number = str(free_port())
    seen: dict[object, int] = {}
    for _ in range(1500):
        command = chance.choice(_COMMANDS)
        words = [chance.choice(_WORDS) for _ in range(chance.randrange(8))]
        plausible = (
            ["--protocol", "fmq", "-t", "a", "-n"] if command == ["pub"] and chance.random() < 0.5 else []
        )
        code = ended(*command, *plausible, "-h", f"127.0.0.1:{number}", "--timeout", "30", *words)
        said = capfd.readouterr()
        seen[code] = seen.get(code, 0) + 1
        assert code in (1, 2, 3, 4), (command, words, said)
        assert "Traceback" not in said.err, (command, words)
        assert said.out == "", (command, words)
    assert seen[2] > 500
    assert seen[3] > 50
