"""The command ``headwater`` itself: what it says of itself, and how it ends when it is called wrongly."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from headwater_host.cli import message_format as sequences
from headwater_host.cli import properties
from headwater_host.cli.argument_types import servers
from headwater_host.cli.main import COMMANDS
from tests.host.command import HEADWATER, PACKAGES, ended, environment, headwater
from tests.rows import each_row
from tools import option_tables
from tools.toolchain import ROOT


def test_alone_it_prints_its_help() -> None:
    shown = headwater()
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, headwater("--help").stdout, b"")


def test_help_lists_every_command() -> None:
    shown = headwater("--help")
    assert shown.returncode == 0
    for name, entry in COMMANDS.items():
        assert f"    {name:<9} {entry.help}" in shown.stdout.decode()


@each_row("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(name, "--help") == 0
    assert capsys.readouterr().out.startswith(f"usage: headwater {name} ")


def test_version() -> None:
    shown = headwater("--version")
    assert shown.returncode == 0
    assert shown.stdout.startswith(b"headwater 0.")


_PUB5 = "pub -t a -n -V mqttv5 -D"


@each_row(
    "arguments, says",
    [
        ("sbu", "there is no command 'sbu'; did you mean 'sub'?"),
        ("pubb -t a", "there is no command 'pubb'; did you mean 'pub'?"),
        ("zzz", "there is no command 'zzz'; there are pub, sub, "),
        ("mq gett", "headwater mq: there is no command 'gett'; did you mean 'get'?"),
        ("sub --topicc a", "unrecognized arguments: --topicc a; did you mean '--topic'?"),
        ("pub --protocol fmqq -t a", "did you mean 'fmq'?"),
        ("--verison", "the following arguments are required: COMMAND"),
        ("pub -n", "a topic is required: use -t"),
        ("pub -t a", "one of the arguments -m/--message -f/--file"),
        ("pub -t a -m x -n", "not allowed with argument"),
        ("pub -t 'a/#' -n", "'a/#' is not a topic"),
        ("pub -t '' -n", "'' is not a topic"),
        ("pub -t a -n -q 3", "invalid choice: 3"),
        ("pub -t a -n -p 0", "'0' is not a whole number from 1 to 65535"),
        ("pub -t a -n -p 1883x", "'1883x' is not a whole number"),
        ("pub -t a -n -h ''", "-h/--host: expected HOST or HOST:PORT"),
        ("pub -t a -n -k 65536", "is not a whole number from 0 to 65535"),
        ("pub -t a -n --timeout 0", "'0' is not a number of seconds above 0"),
        ("pub -t a -n --timeout nan", "'nan' is not a number of seconds above 0"),
        ("pub -t a -n -P secret", "a password needs a user name"),
        ("pub -t a -n --will-qos 1", "a will needs --will-topic"),
        ("pub -t a -n --will-topic +", "'+' is not a topic"),
        ("pub -t a -f /nonexistent/x", "cannot read /nonexistent/x: No such file"),
        ("pub -t a -n --password-file /nonexistent", "cannot read /nonexistent"),
        ("pub -t a -n --password-file /dev/null", "its first line must be the password"),
        ("sub", "a topic is required: use -t"),
        ("sub -t 'a#'", "'a#' is not a topic filter"),
        ("sub -t a -C 0", "'0' is not a whole number from 1"),
        ("sub -t a -W -1", "is not a number of seconds above 0"),
        ("sub -t a -c", "--keep-session needs a client identifier"),
        ("sub -t a -v --json", "not allowed with argument"),
        ("capture ls", "required: DIR"),
        ("capture ls /nonexistent", "/nonexistent"),
        ("pub -t a -m x -s", "not allowed with argument"),
        ("pub -t a -n -V 4", "'4' is not one of mqttv31"),
        ("pub -t a -n --repeat 0", "'0' is not a whole number from 1"),
        ("pub -t a -l --repeat 2", "--repeat does not work with -l"),
        ("pub -t a -n --repeat-delay -1", "is not a number of seconds"),
        ("pub -t a -n --drop-oldest 5", "--drop-oldest needs -l or --repeat"),
        ("pub -t a -l --drop-oldest 0", "'0' is not a whole number from 1 to 65280"),
        ("pub -t a -n --segment-size 16", "--segment-size needs -f or -s"),
        ("pub -t a -l --segment-size 16", "--segment-size needs -f or -s"),
        ("pub -t a -s --segment-size 0", "'0' is not a whole number from 16 to 104857520"),
        ("pub -t a -s --segment-size 104857536", "is not a whole number from 16 to 104857520"),
        ("pub -t a -s --segment-size 1000", "'1000' is not a multiple of 16"),
        ("pub -t a -s --segment-size 16 --repeat 2", "--repeat does not work with --segment-size"),
        ("pub -t a -s --segment-size 16 -r", "-r does not work with --segment-size"),
        ("pub -t a -s --segment-size 16 --drop-oldest 5", "--drop-oldest needs -l or"),
        ("pub -t a -s --segment-size 16 --format MQSTRINGS", "is not a Format: at most 8"),
        ("pub -t a -s --segment-size 16 --format 'A$B'", "'A$B' is not a Format: at most 8"),
        ("pub -t a -s --segment-size 16 --ccsid 0", "is not a whole number from 1 to 65535"),
        ("pub -t a -n --format MQSTR", "--encoding need --segment-size"),
        ("sub -t a -h a,", "expected HOST or HOST:PORT"),
        ("sub -t a -h a:0", "expected HOST or HOST:PORT"),
        ("sub -t a -h a:65536", "expected HOST or HOST:PORT"),
        ("sub -t a -h a:x", "expected HOST or HOST:PORT"),
        ("sub -t a -h '[::1'", "expected HOST or HOST:PORT"),
        ("sub -t a -h a:8883,b:1883", "only some servers use port 8883"),
        ("sub -t a -h a:8883,b", "only some servers use port 8883"),
        ("sub -t a -h a,b -L mqtt://c/t", "remove -h and -p"),
        ("pub -t a -n -M 0", "'0' is not a whole number from 1 to 65535"),
        ("pub -t a -n -c", "--keep-session needs a client identifier"),
        ("pub -t a -n -i a -I b", "not allowed with argument"),
        ("pub -t a -n -x 5", "-D and -x need MQTT 5.0"),
        ("pub -t a -n -V 5 -x -2", "'-2' is not a whole number from 0"),
        ("pub -t a -n -V 5 -x 4294967296", "is not a whole number from 0"),
        ("pub -t a -n -V 5 -x -1", "never expires needs a client identifier"),
        (f"{_PUB5} connect session-expiry-interval 5 -x 5", "not both"),
        (f"{_PUB5} disconnect session-expiry-interval 5", "session-expiry-interval needs -c or -x"),
        (f"{_PUB5} will content-type x", "a will needs --will-topic"),
        (f"{_PUB5} bogus content-type x", "'bogus' is not one of connect, publish, disconnect, will"),
        (f"{_PUB5} subscribe user-property a b", "'subscribe' is not one of connect, publish"),
        (f"{_PUB5} publish", "a property is missing; choose from payload-format-indicator, message-"),
        (f"{_PUB5} publish bogus x", "'bogus' is not a property of publish; choose from"),
        (f"{_PUB5} publish content_type x", "'content_type' is not a property of publish"),
        (f"{_PUB5} publish receive-maximum 5", "'receive-maximum' is not a property of publish"),
        (f"{_PUB5} publish topic-alias 5", "'topic-alias' is not a property of publish"),
        (f"{_PUB5} publish subscription-identifier 5", "is not a property of publish"),
        (f"{_PUB5} connect topic-alias-maximum 65536", "topic-alias-maximum cannot have this value"),
        (f"{_PUB5} disconnect server-reference x", "is not a property of disconnect"),
        (f"{_PUB5} publish content-type", "content-type takes one value"),
        (f"{_PUB5} publish content-type x y", "content-type takes one value"),
        (f"{_PUB5} publish user-property x", "user-property takes a name and a value"),
        (f"{_PUB5} publish message-expiry-interval x", "is a whole number"),
        (f"{_PUB5} publish message-expiry-interval -1", "is a whole number"),
        (f"{_PUB5} publish message-expiry-interval 4294967296", "cannot have this value"),
        (f"{_PUB5} publish payload-format-indicator 2", "cannot have this value"),
        (f"{_PUB5} publish response-topic 'a/#'", "cannot have this value"),
        (f"{_PUB5} publish content-type {'x' * 65536}", "cannot have this value"),
        (f"{_PUB5} publish content-type x -D publish content-type y", "is given twice"),
        (f"{_PUB5} connect receive-maximum 0", "cannot have this value"),
        ("pub -t a -n -D publish content-type x", "-D and -x need MQTT 5.0"),
        ("pub -t a -n -o /nonexistent", "cannot read /nonexistent: No such file"),
        ("sub -t a -R --retained-only", "not allowed with argument"),
        ("sub -t a -T 'a#'", "'a#' is not a topic filter"),
        ("sub -U 'a#'", "'a#' is not a topic filter"),
        ("sub -t a --no-local", "need MQTT 5.0"),
        ("sub -t a --retain-as-published", "need MQTT 5.0"),
        ("sub -t a --retain-handling new", "need MQTT 5.0"),
        ("sub -t a --retain-handling 2", "invalid choice: '2'"),
        ("sub -t '$share/a/b' --no-local -V 5", "--no-local does not work with shared"),
        ("sub -t a -D subscribe subscription-identifier 0", "cannot have this value"),
        ("sub -t a -F %p -v", "not allowed with argument"),
        ("sub -t a -F '%t %y'", "'%y' is not a sequence; % is followed by t, p"),
        ("sub -t a -F %", "'%' is not a sequence"),
        ("sub -t a -F %5", "'%5' is not a sequence"),
        ("sub -t a -F 'a\\q'", "is not a sequence; \\ is followed by"),
        ("sub -t a -F 'a\\'", "is not a sequence; \\ is followed by"),
        ("sub -t a -F '@!'", "'@!' is not a sequence; @"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(
    arguments: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = ended(*shlex.split(arguments))
    said = capsys.readouterr()
    assert says in said.err
    assert (code, said.out) == (2, "")
    assert said.err.startswith("headwater")
    assert said.err.count("\n") == 1


def test_a_wrong_command_line_ends_the_process_alike() -> None:
    shown = headwater("pub", "-t", "a/#", "-n")
    assert (shown.returncode, shown.stdout) == (2, b"")
    assert shown.stderr.startswith(b"headwater")
    assert b"'a/#' is not a topic" in shown.stderr
    assert shown.stderr.count(b"\n") == 1


@each_row(
    "text, named",
    [
        ("a", [("a", None)]),
        ("a:1,b,10.0.0.1:65535", [("a", 1), ("b", None), ("10.0.0.1", 65535)]),
        ("a, b", [("a", None), ("b", None)]),
        ("::1,[::1],[fe80::1%eth0]:1884", [("::1", None), ("::1", None), ("fe80::1%eth0", 1884)]),
    ],
)
def test_several_servers(text: str, named: list[tuple[str, int | None]]) -> None:
    assert servers(text) == named


def test_commands_with_one_table_of_options_have_the_same_options() -> None:
    for one, other in option_tables.SAME.items():
        known = option_tables.parsers(other.partition(" ")[0])
        names = {words: set(known[words]._option_string_actions) for words in (one, other)}
        assert names[one] <= names[other]


def test_help_texts_are_short() -> None:
    """At most ten words before the default; the page docs/cli.md has the details."""
    long = []
    for name in COMMANDS:
        for words, parser in option_tables.parsers(name).items():
            for action in (*option_tables.options(parser), *option_tables.options(parser, "connection")):
                text = re.sub(r"; default.*| \((MQTT 5\.0|FMQ|MQTT)\)", "", action.help or "")
                if not 1 <= len(text.split()) <= 10 or text[0].islower():
                    long.append(f"{words}: {action.option_strings or action.dest}: {text!r}")
    assert long == []


def test_the_documentation_has_every_property_and_sequence() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)`[^|]* \| (.*) \|$", text, re.M))
    for packet in properties.PACKETS:
        said = set(re.findall("`([a-z-]+)`", rows[packet]))
        if "publish" in said:
            said = said - {"publish"} | set(properties.names("publish"))
        assert said == set(properties.names(packet))
    assert [letter for letter in sequences.FIELDS if f"`%{letter}`" not in text] == []


@each_row(
    "text, says",
    [
        ("-q 3", "invalid choice: 3"),
        ("secret", "line 1: a line must begin with an option"),
        ("-n\n-D publish content-type 'secret", "line 2: No closing quotation"),
        ("-o {}", "only one options file is allowed"),
        ("\xff", "it is not UTF-8"),
    ],
)
def test_a_wrong_file_of_options(
    tmp_path: Path, text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "options"
    file.write_bytes(text.format(file).encode("latin-1"))
    assert ended("pub", "-t", "a", "-n", "-o", file) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert "secret" not in said


@each_row(
    "arguments, extra",
    [
        (["pipeline", "run", "--capture", ".", "--out", "out"], "spark"),
        (["gateway", "--capture", "log", "--serial", "/dev/null"], "gateway"),
    ],
)
def test_a_missing_extra_is_named(arguments: list[str], extra: str, tmp_path: Path) -> None:
    shown = bare(tmp_path, *arguments)
    assert f"pip install 'headwater[{extra}]'" in shown.stderr
    assert shown.returncode == 2
    assert "Traceback" not in shown.stderr


@each_row("arguments", [[name] for name in COMMANDS] + [["pipeline", "run"]], ids=" ".join)
def test_help_needs_no_extra(arguments: list[str], tmp_path: Path) -> None:
    shown = bare(tmp_path, *arguments, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith(f"usage: headwater {' '.join(arguments)}")


def bare(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as on a machine where only the distribution itself is installed."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfor name in ('pyspark', 'py4j', 'numpy', 'pyarrow', 'serial'):\n    sys.modules[name] = None\n"
    )
    folders = [str(tmp_path), *PACKAGES]
    return subprocess.run(
        [*HEADWATER, *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
        check=False,
        timeout=60,
    )


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    process = subprocess.Popen(
        [*HEADWATER, "inspect", "--hex", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdin
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    process.stdin.write(b"c000" * 100_000)
    process.stdin.close()
    assert process.wait(200) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


def test_a_disk_that_is_full_is_said() -> None:
    with Path("/dev/full").open("wb") as full:
        command = [*HEADWATER, "inspect", "--hex", "c000"]
        shown = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment(), check=False)
    assert shown.stderr == b"headwater: No space left on device\n"
    assert shown.returncode == 1


def test_standard_output_may_be_closed() -> None:
    command = ["sh", "-c", '"$@" >&-', "sh", *HEADWATER, "inspect", "--hex", "c000"]
    shown = subprocess.run(command, stderr=subprocess.PIPE, env=environment(), check=False)
    assert (shown.returncode, shown.stderr) == (0, b"")


def test_output_is_utf_8_whatever_the_terminal_is() -> None:
    command = [*HEADWATER, "inspect", "--json", "--hex", "30040002c3a9"]
    env = environment() | {"PYTHONIOENCODING": "ascii"}
    shown = subprocess.run(command, capture_output=True, env=env, check=True)
    assert json.loads(shown.stdout)["topic"] == "\N{LATIN SMALL LETTER E WITH ACUTE}"


def test_the_installed_command_is_this_one() -> None:
    command = Path(sys.executable).parent / "headwater"
    shown = subprocess.run([command, "--version"], capture_output=True, check=True)
    assert shown.stdout == headwater("--version").stdout
