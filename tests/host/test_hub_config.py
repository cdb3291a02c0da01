"""The hub's configuration: every key is checked, all mistakes have their lines, and the page says what is true."""

import contextlib
import re
import sys
import tempfile
from dataclasses import fields
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_host.hub import config
from headwater_host.hub.access import ANY, Rule
from headwater_host.hub.config import ClientLimits, HubConfig, Listener, load
from headwater_host.hub.storage import Limits
from headwater_host.hub.users import Hash
from headwater_host.settings import ConfigError
from tests.certificates import Pki
from tests.rows import each_row
from tools.toolchain import ROOT

# Of "secret". Tests are named after it, so it must not be another one in each process.
HASH = "$scrypt$ln=4,r=1,p=1$KIxKbkpzw+LI0rkzDmc6EA$xWz8SYDqaP9ydelgXRf0xa0Zyxq7plvKquIJotKvkGE"
WHOLE = f"""\
auto_register = false
[storage]
path = "/var/lib/hub.db"
[limits]
topic_bytes = "256 MiB"
bytes = 1000
age = 0
full = "drop"
[clients]
login = 2.5
window = 7
[metrics]
port = 9100
[[listener]]
[[listener]]
host = "0.0.0.0"
port = 1
[[user]]
name = "boards"
password = "{HASH}"
[[user]]
name = "é"
password = "{HASH}"
[[rule]]
types = ["PUBLISH", "REGISTER"]
topics = ["boards/#", "+/x"]
users = ["boards", ""]
allow = ["192.168.0.0/16", "::1"]
[[rule]]
deny = ["any"]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "hub.toml"
    path.write_text(text)
    return path


def test_a_whole_file(tmp_path: Path) -> None:
    user = Hash.parse(HASH)
    assert load(write(tmp_path, WHOLE)) == HubConfig(
        Path("/var/lib/hub.db"),
        False,
        (Listener(), Listener("0.0.0.0", 1)),
        ("127.0.0.1", 9100),
        Limits(topic_bytes=256 << 20, bytes=1000, age=0, full="drop"),
        ClientLimits(login=2.5, window=7),
        {"boards": user, "é": user},
        (
            Rule(
                ("PUBLISH", "REGISTER"),
                ("boards/#", "+/x"),
                ("boards", None),
                allow=(ip_network("192.168.0.0/16"), ip_network("::1")),
            ),
            Rule(deny=ANY),
        ),
    )


def test_without_anything(tmp_path: Path) -> None:
    empty = load(write(tmp_path, ""))
    assert empty == HubConfig()
    assert empty.is_open
    assert not load(write(tmp_path, WHOLE)).is_open


@each_row(
    "before, after, line, says",
    [
        ("auto_register", "auto", 1, "there is no key 'auto'; there are auto_register, storage, limits, clients,"),
        ("auto_register = false", "auto_register = 0", 1, "'auto_register' is true or false, not 0"),
        ('path = "/var/lib/hub.db"', "path = 5", 3, "'path' in [storage] is a file, or a URL of PostgreSQL, not 5"),
        ('"256 MiB"', '"256 MB"', 5, "'topic_bytes' in [limits] is a number of bytes, or text such as \"64 MiB\""),
        ('"256 MiB"', "0", 5, "'topic_bytes' in [limits] is a number of bytes"),
        ("bytes = 1000", "bytes = true", 6, "'bytes' in [limits] is a number of bytes"),
        ("age = 0", "age = -1", 7, "'age' in [limits] is a number of seconds, 0 for ever, not -1"),
        ("age = 0", "ages = 0", 7, "there is no key 'ages' in [limits]; there are topics, queues"),
        ('"drop"', '"keep"', 8, "'full' in [limits] is \"refuse\" or \"drop\", not 'keep'"),
        ("login = 2.5", "login = inf", 10, "'login' in [clients] is a number of seconds above 0, not inf"),
        ("window = 7", 'memory = "1 MiB"', 11, "'memory' is for all connections and cannot be less than"),
        ("window = 7", 'frame = "1 GiB"', 11, "'memory' is for all connections and cannot be less than"),
        ("window = 7", 'unread = "1 GiB"', 11, "'memory' is for all connections and cannot be less than"),
        ("window = 7", "memory = 0", 11, "'memory' in [clients] is a number of bytes"),
        ("window = 7", "window = 7.5", 11, "'window' in [clients] is a whole number above 0"),
        ("port = 9100\n", "", 12, "'port' in [metrics] is missing: a whole number from 1 to 65535"),
        ("port = 1\n", "port = 65536\n", 17, "'port' in [[listener]] is a whole number from 0 to 65535"),
        ('host = "0.0.0.0"\nport = 1\n', "port = 7760\n", 16, "a listener on 127.0.0.1, port 7760, already"),
        ("port = 1\n", 'key = "k"\n', 17, "'key' in [[listener]] needs 'cert'"),
        ("port = 1\n", 'client_ca = "k"\n', 17, "'client_ca' in [[listener]] needs 'cert'"),
        ("port = 1\n", 'cert = "/none.pem"\n', 17, "TLS cannot be used (/none.pem): No such file"),
        ('name = "boards"', 'name = "é"', 22, "there is a user 'é' already"),
        ('name = "boards"', 'name = ""', 19, "'name' in [[user]] is a user's name, text of 1 to 256 char"),
        ('name = "boards"', 'name = "a\\tb"', 19, "'name' in [[user]]: a user name is printable text of 1 to 256"),
        ('name = "boards"\n', "", 18, "'name' in [[user]] is missing"),
        (HASH, "secret", 20, "'password' in [[user]]: a password must be a hash made by 'headwater hub passwd'"),
        ('"PUBLISH", ', '"AUTH", ', 25, "'types' in [[rule]] is a list of SLAVEOF, REGISTER"),
        ('["PUBLISH", "REGISTER"]', "[]", 25, "'types' in [[rule]] is a list of"),
        ('"+/x"', '"a+"', 26, "'topics' in [[rule]]: 'a+' is not a topic filter"),
        ('["boards", ""]', '["eve", ""]', 27, "there is no user 'eve'"),
        ('["boards", ""]', "[5]", 27, "'users' in [[rule]] is a list of users"),
        ('"::1"', '"10.0.0.1/8"', 28, "'10.0.0.1/8' is not a network: 10.0.0.1/8 has host bits set"),
        ('"::1"', '"home"', 28, "'home' is not a network"),
        ('deny = ["any"]', "", 29, "a rule needs 'allow' or 'deny'"),
        ("[storage]", "[[storage]]", 2, "'storage' is a table: [storage]"),
        ("[metrics]\nport = 9100\n", "[rules]\n", 12, "there is no key 'rules'"),
        ("[metrics]\nport = 9100\n", "[user]\n", 0, ""),
        ("login = 2.5", "login = ", 10, "line 10"),
    ],
)  # fmt: skip
def test_a_mistake_says_what_and_where(tmp_path: Path, before: str, after: str, line: int, says: str) -> None:
    assert before in WHOLE
    path = write(tmp_path, WHOLE.replace(before, after))
    with pytest.raises(ConfigError) as caught:
        load(path)
    said = str(caught.value)
    assert says in said
    assert f"line {line}" in said or not line
    assert "secret" not in said


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = WHOLE.replace("false", "5").replace('"drop"', "5").replace("2.5", "-5").replace('"PUBLISH"', "5")
    path = write(tmp_path, text.replace("9100", "0").replace("boards/#", "#boards"))
    with pytest.raises(ConfigError) as caught:
        load(path)
    lines = str(caught.value).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        f"{path}, line {n}" for n in (1, 8, 10, 13, 25, 26)
    ]


def test_where_nothing_reads_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tomllib" if sys.version_info >= (3, 11) else "tomli", None)
    with pytest.raises(ConfigError, match=r"pip install 'headwater\[gateway\]'"):
        load(write(tmp_path, WHOLE))


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_whatever_is_in_the_file(data: st.DataObject) -> None:
    """Lines of the file mixed, and values put in each other's place: it is right, or there is an error."""
    lines = WHOLE.splitlines()
    values = [line.partition(" = ")[2] for line in lines if " = " in line]
    values += [
        "[]",
        "{}",
        "[[]]",
        "{a = 1}",
        "1979-05-27",
        "nan",
        "-1",
        "1e999",
        '""',
        "[{}]",
        '"\\u0000"',
        "true",
    ]
    mixed = []
    for line in data.draw(st.lists(st.sampled_from(lines), max_size=12)):
        key, equals, _ = line.partition(" = ")
        mixed.append(f"{key} = {data.draw(st.sampled_from(values))}" if equals else line)
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ConfigError):
        assert isinstance(load(write(Path(folder), "\n".join(mixed))), HubConfig)


def test_tables_that_are_something_else(tmp_path: Path) -> None:
    names = list(config.TABLES)
    path = write(tmp_path, "".join(f"{name} = 5\n" for name in names))
    with pytest.raises(ConfigError) as caught:
        load(path)
    for number, (name, line) in enumerate(zip(names, str(caught.value).splitlines(), strict=True), 1):
        assert f"line {number}: '{name}' is a " in line


def test_a_hub_that_others_reach_lets_somebody_in(tmp_path: Path) -> None:
    outside = '[[listener]]\nhost = "0.0.0.0"\n'
    with pytest.raises(ConfigError, match="line 2: other machines can reach this listener"):
        load(write(tmp_path, outside))
    with pytest.raises(ConfigError, match="other machines"):
        load(write(tmp_path, outside + '[[rule]]\ndeny = ["any"]\n'))
    load(write(tmp_path, outside + '[[rule]]\nallow = ["any"]\n'))
    load(write(tmp_path, outside + f'[[user]]\nname = "a"\npassword = "{HASH}"\n'))


@each_row(
    "host, loopback",
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("192.168.0.1", False), ("gateway.local", False)],
)  # fmt: skip
def test_what_only_this_machine_reaches(host: str, loopback: bool) -> None:
    assert Listener(host).is_loopback is loopback


def test_tls(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    files = pki.server.cert, pki.server.key, pki.ca.cert
    text = '[[listener]]\ncert = "{}"\nkey = "{}"\nclient_ca = "{}"\n'.format(*files)
    (listener,) = load(write(tmp_path, text)).listeners
    assert listener.port == 7761
    context = listener.context()
    assert context is not None
    assert context.verify_mode.name == "CERT_REQUIRED"
    (tmp_path / "junk.pem").write_text("junk")
    for file in (*files, pki.server.key):
        broken = text.replace(str(file), str(tmp_path / "junk.pem"))
        with pytest.raises(
            ConfigError,
            match=r"line 2: the files of this listener's TLS cannot be used \(.+, .+\): they are not cert",
        ):
            load(write(tmp_path, broken))
    with pytest.raises(ConfigError, match="TLS cannot be used"):
        load(write(tmp_path, text.replace("server.pem", "client.pem")))
    with pytest.raises(
        ConfigError, match="TLS cannot be used"
    ):  # a key with a password, which nobody is asked for
        load(
            write(
                tmp_path,
                text.replace(str(files[0]), str(pki.locked.cert)).replace(str(files[1]), str(pki.locked.key)),
            )
        )


# -- the page ----------------------------------------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "hub.md").read_text()


def shown(name: str, value: Any) -> str:
    """A default as the page has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value >= 1 << 20 and not value % (1 << 20):
        return f"{value >> 30} GiB" if value >= 1 << 30 else f"{value >> 20} MiB"
    if isinstance(value, float):
        return f"{value:.0f}"
    return "" if value is None else str(value)


DEFAULTS: dict[str, dict[str, Any]] = {
    "": {"auto_register": HubConfig().auto_register},
    "[storage]": {"path": HubConfig().storage, "group_readable": HubConfig().group_readable},
    "[limits]": {item.name: item.default for item in fields(Limits)},
    "[clients]": {item.name: item.default for item in fields(ClientLimits)},
    "[metrics]": {"host": "127.0.0.1", "port": "needed"},
    "[[listener]]": {item.name: item.default for item in fields(Listener)},
    "[[user]]": dict.fromkeys(config.USER, "needed"),
    "[[rule]]": dict.fromkeys(config.RULE),
}


def test_the_page_has_every_key_with_its_default() -> None:
    for table, defaults in DEFAULTS.items():
        keys = config.TABLES[table.strip("[]")] if table else config.TOP
        begin = PAGE.index(f"### `{table}`" if table else "In front of all tables")
        part = PAGE[begin : PAGE.index("\n#", begin + 5)]
        rows = {
            found[1]: found[2] or ""
            for found in re.finditer(r"^- `(\w+)`(?: \(([^)]*)\))?: ", part, re.MULTILINE)
        }
        assert rows.keys() == keys.keys() == defaults.keys(), table
        assert rows == {key: shown(key, value) for key, value in defaults.items()}, table


def test_the_pages_examples_are_right(tmp_path: Path) -> None:
    example, derived = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    server = Pki(tmp_path).server
    text = example.replace("$scrypt$ln=15,r=8,p=3$…", HASH)
    text = text.replace("/etc/headwater/hub.pem", str(server.cert))
    text = text.replace("/etc/headwater/hub.key", str(server.key))
    loaded = load(write(tmp_path, text))
    assert loaded.limits.topic_bytes == 256 << 20
    assert len(loaded.rules) == 2
    assert len(load(write(tmp_path, text + derived.replace("support", "boards"))).rules) == 4
