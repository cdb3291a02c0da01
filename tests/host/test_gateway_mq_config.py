"""The tables [mq] and [mq.uplink] of a gateway's file: what they say, and that every mistake is told with its line."""

import dataclasses
from pathlib import Path

import pytest

from headwater_host.gateway import config as gateway_config
from headwater_host.gateway.mq_config import MqConfig, load
from headwater_host.mq.uplink.mqi import Channel
from headwater_host.mq.uplink.uplink import UplinkConfig
from headwater_host.settings import ConfigError
from tests.rows import each_row

WHOLE = """\
capture = "log"
[[broker]]
host = "localhost"
topics = ["a/#"]
[mq]
file = "mq.db"
topics = ["a/#", "b/+/c"]
queue = "EDGE.OUT"
dead_letter_queue = "EDGE.DEAD"
format = "MQSTR"
ccsid = 819
start = "beginning"
reassemble = false
memory = "1 MiB"
spill = "2 GiB"
timeout = 60
open_groups = 70
depth = 5000
message_bytes = "1 MiB"
bytes = "64 MiB"
[mq.uplink]
queue_manager = "QM1"
channel = "HEADWATER.SVRCONN"
connection = "mq1.example(1414),mq2.example(1414)"
user = "edge"
password_file = "secret"
cipher = "ANY_TLS12_OR_HIGHER"
key_repository = "/var/mqm/ssl/key.kdb"
certificate_label = "edge"
peer_name = "CN=mq*,O=Example"
heartbeat = 10
queue = "PLANT.IN"
record_queue = "HEADWATER.SYNC"
batch = 20
batch_bytes = "1 MiB"
idle = 10
"""
CONFIG = MqConfig(
    Path("mq.db"),
    ("a/#", "b/+/c"),
    "EDGE.OUT",
    "EDGE.DEAD",
    "MQSTR",
    819,
    "beginning",
    False,
    1 << 20,
    2 << 30,
    60.0,
    70,
    5000,
    1 << 20,
    64 << 20,
    UplinkConfig(
        Channel(
            "QM1",
            "HEADWATER.SVRCONN",
            "mq1.example(1414),mq2.example(1414)",
            "edge",
            b"hush",
            "ANY_TLS12_OR_HIGHER",
            "/var/mqm/ssl/key.kdb",
            "edge",
            "CN=mq*,O=Example",
            10,
        ),
        "PLANT.IN",
        "HEADWATER.SYNC",
        20,
        1 << 20,
        10.0,
    ),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("secret").write_text("hush\n")
    Path("long").write_text("x" * 257)
    return tmp_path


def test_a_file_with_everything(folder: Path) -> None:
    path = folder / "gateway.toml"
    path.write_text(WHOLE)
    assert gateway_config.load(path).mq == CONFIG
    assert load(path) == CONFIG
    assert "hush" not in repr(CONFIG)


def test_what_is_left_out_has_defaults(folder: Path) -> None:
    path = folder / "gateway.toml"
    path.write_text('[mq]\nfile = "mq.db"\ntopics = ["#"]\n')
    assert load(path) == MqConfig(Path("mq.db"), ("#",))
    path.write_text('capture = "log"\n')
    assert gateway_config.load(path).mq is None
    with pytest.raises(ConfigError, match=r"there is no table \[mq\]"):
        load(path)


@each_row(
    "before, after, line, says",
    [
        ('file = "mq.db"\n', "", 5, "'file' in [mq] is missing: a file"),
        ('topics = ["a/#", "b/+/c"]', "topics = []", 7, "is a list of topic filters, not []"),
        ('topics = ["a/#", "b/+/c"]', 'topics = ["a#"]', 7, "'a#' is not a topic filter"),
        ('topics = ["a/#", "b/+/c"]', 'topics = ["a", "a"]', 7, "the topic 'a' is named twice"),
        ("EDGE.OUT", "EDGE OUT", 8, "'queue' in [mq] is a queue's name"),
        ("EDGE.OUT", "E" * 49, 8, "'queue' in [mq] is a queue's name"),
        ("EDGE.DEAD", "EDGE.OUT", 9, "'dead_letter_queue' in [mq] is 'queue' as well"),
        ('"MQSTR"', '"MQSTRINGS"', 10, "'format' in [mq] is at most 8 characters"),
        ("ccsid = 819", "ccsid = 0", 11, "'ccsid' in [mq]"),
        ('"beginning"', '"yesterday"', 12, "'start' in [mq] is \"now\" or \"beginning\", not 'yesterday'"),
        ("reassemble = false", "reassemble = 0", 13, "'reassemble' in [mq] is true or false"),
        ('memory = "1 MiB"', 'memory = "1 MB"', 14, "'memory' in [mq] is a number of bytes"),
        ("timeout = 60", "timeout = 0", 16, "'timeout' in [mq] is a number of seconds"),
        ("open_groups = 70", "open_groups = 0", 17, "'open_groups' in [mq] is a whole number from 1"),
        ("depth = 5000", "depth = 1000000000", 18, "'depth' in [mq]"),
        # With an MQDLH and an MQMDE in front, in the dead-letter queue, it would have a byte more than 100 MiB.
        ('message_bytes = "1 MiB"', "message_bytes = 104857357", 19, "from 1024 to 104857356, "),
        ('bytes = "64 MiB"', "bytes = 2000000", 19, "'message_bytes' in [mq] is more than half of 'bytes'"),
        ('bytes = "64 MiB"', "bytes = 70000", 20, "'bytes' in [mq] is a number of bytes from 1048576 to "),
        ("file = ", "fiel = ", 6, "there is no key 'fiel' in [mq]; there are file, "),
        ("queue_manager = ", "qmgr = ", 22, "there is no key 'qmgr' in [mq.uplink]; there are "),
        ('queue_manager = "QM1"\n', "", 21, "'queue_manager' in [mq.uplink] is missing"),
        ("HEADWATER.SVRCONN", "HEADWATER.SVRCONN.TOO", 23, "'channel' in [mq.uplink] is a server-connection"),
        ("(1414),mq2", ":1414,mq2(", 24, "'connection' in [mq.uplink] is \"HOST(PORT)\""),
        ("mq2.example(1414)", "mq2.example(65536)", 24, "'connection' in [mq.uplink]"),
        ("mq1.example(1414)", "mq1.example(0)", 24, "'connection' in [mq.uplink]"),
        ('"secret"', '"long"', 26, "the password in long is longer than 256 bytes"),
        ('user = "edge"\n', "", 25, "'password_file' in [mq.uplink] needs 'user'"),
        ('password_file = "secret"\n', "", 25, "'user' in [mq.uplink] needs 'password_file'"),
        ('"secret"', '"nowhere"', 26, "cannot read the password in nowhere"),
        ('cipher = "ANY_TLS12_OR_HIGHER"\n', "", 27, "'key_repository' in [mq.uplink] needs 'cipher'"),
        ("PLANT.IN", "HEADWATER.SYNC", 33, "'record_queue' in [mq.uplink] is 'queue' as well"),
        ("batch = 20", "batch = 0", 34, "'batch' in [mq.uplink]"),
        ("idle = 10", "idle = true", 36, "'idle' in [mq.uplink] is a number of seconds"),
    ],
)
def test_an_error_says_what_and_where(folder: Path, before: str, after: str, line: int, says: str) -> None:
    assert before in WHOLE
    path = folder / "gateway.toml"
    path.write_text(WHOLE.replace(before, after, 1))
    with pytest.raises(ConfigError) as caught:
        gateway_config.load(path)
    said = str(caught.value)
    assert says in said
    assert f"line {line}:" in said
    assert "hush" not in said


@each_row(
    "text, says",
    [
        ("mq = 1\n", "line 1: 'mq' is a table: [mq]"),
        (
            '[mq]\nfile = "f"\ntopics = ["#"]\nuplink = 1\n',
            "line 4: 'uplink' in [mq] is a table: [mq.uplink]",
        ),
    ],
)
def test_what_is_no_table(folder: Path, text: str, says: str) -> None:
    path = folder / "gateway.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert says in str(caught.value)


@each_row("name", ["gateway.md", "ibm-mq-uplink.md"])
def test_what_the_pages_show_is_right_and_has_every_key(folder: Path, name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / name).read_text()
    (shown,) = [
        part.partition("```")[0] for part in page.split("```toml\n") if "[mq]\n" in part.partition("```")[0]
    ]
    text = shown.replace("/etc/headwater/mq-password", "secret")
    path = folder / "gateway.toml"
    path.write_text(text)
    assert load(path).topics == ("plant/#",)
    # What is commented out is right as well.
    text = "\n".join(line.removeprefix("# ") if " = " in line else line for line in text.splitlines())
    path.write_text(text)
    found = load(path)
    table, fields = ("[mq]", MqConfig) if name == "gateway.md" else ("[mq.uplink]", UplinkConfig)
    part = text.partition(table + "\n")[2]
    keys = {line.partition(" = ")[0] for line in part.splitlines() if " = " in line}
    wanted = {field.name for field in dataclasses.fields(fields)} - {"uplink", "channel"}
    if fields is UplinkConfig:
        wanted |= {field.name for field in dataclasses.fields(Channel)} - {"password"} | {
            "channel",
            "password_file",
        }
    else:
        # The values shown are the defaults, but where there are none.
        assert found == MqConfig(found.file, found.topics, format="MQSTR")
    assert keys == wanted
