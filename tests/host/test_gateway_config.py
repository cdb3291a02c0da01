"""The gateway's configuration: every key is checked, and an error says where it is."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater_host.capture import verify
from headwater_host.capture.readers import save_reader
from headwater_host.capture.retention import Limits
from headwater_host.client.route import Tls
from headwater_host.gateway.config import (
    BrokerConfig,
    FmqConfig,
    GatewayConfig,
    SerialConfig,
    check,
    default_client_id,
    load,
    parse_broker,
    parse_serial,
    parse_topic,
)
from headwater_host.hub.config import HubConfig, Listener
from headwater_host.settings import ConfigError
from tests.certificates import make
from tests.host.capture_logs import segments, write_log
from tests.host.command import ended, headwater, running
from tests.rows import each_row
from tests.waiting import wait_until
from tools.broker import HOST, Mosquitto
from tools.toolchain import ROOT

WHOLE = """\
capture = "/var/lib/headwater"
stats = "/run/headwater/stats.json"
stats_seconds = 5

[[serial]]
port = "/dev/ttyACM0"

[[serial]]
port = "/dev/ttyUSB0"
baud = 9600
protocol = "fmq"

[[broker]]
host = "broker.local"
topics = ["boards/#", "alarms/+:2", "noise:0"]

[[broker]]
host = "::1"
port = 1884
topics = ["#"]
client_id = "landing"
username = "me"
password_file = "secret"
keepalive = 30
timeout = 2.5

[hub]
config = "hub.toml"
storage = "/var/lib/headwater/hub.db"
port = 7000

[[fmq]]
host = "hub.local"
topics = ["plant/#", "alarms"]
group = "landing"
window = 50
"""
HUB = "auto_register = false\n[storage]\npath = 'not this'\n"


def test_a_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("secret").write_text("päss word\nnot this\n")
    Path("hub.toml").write_text(HUB)
    Path("gateway.toml").write_text(WHOLE)
    assert load(Path("gateway.toml")) == GatewayConfig(
        Path("/var/lib/headwater"),
        (SerialConfig("/dev/ttyACM0", 115200), SerialConfig("/dev/ttyUSB0", 9600, "fmq")),
        (
            BrokerConfig("broker.local", 1883, (("boards/#", 1), ("alarms/+", 2), ("noise", 0))),
            BrokerConfig(
                "::1", 1884, (("#", 1),), "landing", "me", "päss word".encode(), keepalive=30, timeout=2.5
            ),
        ),
        Path("/run/headwater/stats.json"),
        5.0,
        HubConfig(Path("/var/lib/headwater/hub.db"), auto_register=False, listeners=(Listener(port=7000),)),
        (FmqConfig("hub.local", 7760, ("plant/#", "alarms"), "landing", window=50),),
    )


@each_row(
    "before, after, line, says",
    [
        ("capture =", "captrue =", 1, "there is no key 'captrue'"),
        ('"/var/lib/headwater"', "12", 1, "'capture' is a directory, not 12"),
        ("stats_seconds = 5", "stats_seconds = 0", 3, "'stats_seconds' is a number of seconds above 0, not 0"),
        ("baud = 9600", "baud = 96", 10, "'baud' in [[serial]] is a whole number, at least 300, not 96"),
        ("baud = 9600", "baud = true", 10, "not True"),
        ("baud = 9600", "'baud' = '9600'", 10, "not '9600'"),
        ("baud = 9600", "bauds = 9600", 10, "there is no key 'bauds' in [[serial]]; there are port, protocol, baud"),
        ('port = "/dev/ttyUSB0"\n', "", 8, "'port' in [[serial]] is missing: a serial port"),
        ('host = "broker.local"\n', "", 13, "'host' in [[broker]] is missing"),
        ('"alarms/+:2"', '"alarms+:2"', 15, "'topics' in [[broker]]: 'alarms+' is not a topic filter"),
        ('["boards/#", "alarms/+:2", "noise:0"]', '"boards/#"', 15, "is a list of topic filters"),
        ('["boards/#", "alarms/+:2", "noise:0"]', "[]", 15, "is a list of topic filters"),
        ('["boards/#", "alarms/+:2", "noise:0"]', "[1]", 15, "is a list of topic filters"),
        ("port = 1884", "port = 70000", 19, "'port' in [[broker]] is a whole number from 1 to 65535"),
        ("keepalive = 30", "keepalive = -1", 24, "'keepalive' in [[broker]] is a whole number of seconds"),
        ("timeout = 2.5", "timeout = inf", 25, "'timeout' in [[broker]] is a number of seconds"),
        ('host = "::1"', 'host = ""', 18, "'host' in [[broker]] is a host name or address, not ''"),
        ('"secret"', '"none"', 23, "cannot read the password in none: No such file"),
        ("[[serial]]\nport = \"/dev/ttyACM0\"", "[serial]\nport = 'x'\n[serial.x]", 0, ""),
        ("stats_seconds = 5", "stats_seconds = 5\nserial = 5", 4, "'serial' is a list of tables"),
        ("stats_seconds = 5", "stats_seconds = 5\nserial = [5]", 4, "'serial' is a list of tables"),
        ("stats_seconds = 5", "stats_seconds = ", 3, "line 3"),
        ("stats_seconds = 5", "stats_seconds = " + "9" * 5000, 0, "limit"),
        ("stats_seconds = 5", "stats_seconds = " + "[" * 9999, 0, "recursion"),
        ('capture = "/var/lib/headwater"', r'capture = "/var\u0000"', 1, "'capture' is a directory, not '/var\\x00'"),
        ("broker.local", r"broker\u0000", 14, "'host' in [[broker]] is a host name or address, not 'broker\\x00'"),
        ('protocol = "fmq"', 'protocol = "amqp"', 11, "'protocol' in [[serial]] is \"mqtt\" or \"fmq\", not 'amqp'"),
        ('protocol = "fmq"', "protocol = 5", 11, "is \"mqtt\" or \"fmq\", not 5"),
        ("[hub]", "[hubs]", 11, "a board that speaks FMQ needs [hub]"),
        ("[hub]", "[hubs]", 27, "there is no key 'hubs'; there are capture, stats, stats_seconds, syncs_per"),
        ("[hub]", "[[hub]]", 27, "'hub' is a table: [hub]"),
        ("port = 7000", "port = 0", 30, "'port' in [hub] is a whole number from 1 to 65535, not 0"),
        ("port = 7000", "host = '::'", 30, "there is no key 'host' in [hub]; there are config, storage, port"),
        ('"hub.toml"', '"none.toml"', 28, "'config' in [hub]: cannot read none.toml: No such file"),
        ('"hub.toml"', '"wrong.toml"', 28, "'config' in [hub]: wrong.toml, line 2: 'topics' in [limits] is a whole"),
        ('"hub.toml"', '"large.toml"', 28, "'frame' in [clients] of the hub is at most 66912256 in a gateway"),
        ('"hub.toml"', '"listens.toml"', 30, "a port cannot be given: the hub's file has listeners"),
        ("/var/lib/headwater/hub.db", r"\u0000", 29, "'storage' in [hub] is a file, not"),
        ('"alarms"', '"alarms+"', 34, "'topics' in [[fmq]]: 'alarms+' is not a topic filter"),
        ('"alarms"', '"plant/#"', 34, "'topics' in [[fmq]]: the topic 'plant/#' is named twice"),
        ('"plant/#", "alarms"', "", 34, "'topics' in [[fmq]] is a list of topic filters, not []"),
        ("window = 50", "window = 0", 36, "'window' in [[fmq]] is a whole number from 1 to 1000, not 0"),
        ("window = 50", "websocket = '/mqtt'", 36, "there is no key 'websocket' in [[fmq]]"),
        ("window = 50", "insecure = true", 36, "'insecure' in [[fmq]] needs 'tls'"),
        ("window = 50", 'tls = false\ncafile = "x"', 37, "'cafile' in [[fmq]] needs TLS, and 'tls' is false"),
        ("window = 50", 'cafile = "none.pem"', 36, "cannot use the CA in none.pem: No such file"),
        ('host = "hub.local"\n', "", 32, "'host' in [[fmq]] is missing"),
    ],
)  # fmt: skip
def test_an_error_says_what_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, line: int, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("secret").write_text("x")
    Path("hub.toml").write_text(HUB)
    Path("wrong.toml").write_text("[limits]\ntopics = 0\n")
    Path("large.toml").write_text("[clients]\nframe = '64 MiB'\n")
    Path("listens.toml").write_text("[[listener]]\nport = 7001\n[[listener]]\nport = 7002\n")
    assert before in WHOLE
    text = WHOLE.replace(before, after)
    if "serial = " in text:
        text = text.replace('[[serial]]\nport = "/dev/ttyACM0"\n', "").replace(
            '[[serial]]\nport = "/dev/ttyUSB0"\nbaud = 9600\nprotocol = "fmq"\n', ""
        )
    Path("gateway.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        check(load(Path("gateway.toml")))
    assert str(caught.value).startswith("gateway.toml")
    assert says in str(caught.value)
    assert f"line {line}" in str(caught.value) or not line


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text('captrue = "x"\n[[serial]]\nbaud = 5\n[[broker]]\nhost = ""\n')
    with pytest.raises(ConfigError) as caught:
        load(path)
    said = str(caught.value).splitlines()
    assert [line.partition(": ")[0].rpartition(" ")[2] for line in said] == ["1", "2", "3", "4", "5"]
    keys = "capture, stats, stats_seconds, syncs_per_second, sync_credit, group_readable, serial, broker, fmq, hub, mq"
    assert said[0].endswith(f"there is no key 'captrue'; there are {keys}")


def test_the_table_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(
        '[capture]\ndirectory = "log"\nmax_age = "90 d"\nmax_bytes = "20 GiB"\nsegment_age = 60\n'
    )
    config = load(path)
    assert (config.capture, config.retention) == (Path("log"), Limits(90 * 86400.0, 20 << 30, "keep"))
    assert (config.segment_bytes, config.segment_age) == (64 << 20, 60.0)
    assert load(path, Path("other")).capture == Path("other")
    path.write_text('capture = "log"\n')
    assert not load(path).retention
    for wrong, says in [
        ("max_age = 0", "line 3: 'max_age' in [capture] is a number of seconds above 0, or text such as"),
        ('max_age = "90 years"', "'max_age' in [capture] is a number of seconds above 0, or text such as"),
        ('max_bytes = "20 GB"', "line 3: 'max_bytes' in [capture] is a number of bytes"),
        ("max_bytes = true", "'max_bytes' in [capture] is a number of bytes"),
        ('unread = "drop"', "line 3: 'unread' in [capture] is \"keep\" or \"remove\", not 'drop'"),
        ("size = 5", "line 3: there is no key 'size' in [capture]; there are directory, segment_bytes"),
    ]:
        path.write_text(f'[capture]\ndirectory = "log"\n{wrong}\n')
        with pytest.raises(ConfigError, match=re.escape(says)):
            load(path)
    path.write_text("[capture]\nmax_age = 5\n")
    with pytest.raises(ConfigError, match="'capture' is missing: a directory"):
        load(path)


@pytest.mark.needs_mosquitto
def test_a_gateway_keeps_its_log_within_its_limits(
    tmp_path: Path, mosquitto: Callable[..., Mosquitto]
) -> None:
    broker = mosquitto()
    log = tmp_path / "log"
    write_log(log, [2], [3], [1], [4])
    before = segments(log)
    limit = before[2].stat().st_size + before[3].stat().st_size
    path = tmp_path / "gateway.toml"
    path.write_text(
        f'stats = "{tmp_path}/stats.json"\n[capture]\ndirectory = "{log}"\nmax_bytes = {limit}\n'
        f'[[broker]]\nhost = "{HOST}"\nport = {broker.port}\ntopics = ["edge/#"]\n'
    )
    save_reader(log, "tables", 1)
    with running("gateway", "--config", path, directory=tmp_path) as command:
        command.wait_for("removed 1 old segments")
        command.wait_for("exceeds its limits, because the reader tables has not taken the oldest segments")
        assert command.end() == 0
    assert segments(log)[:3] == before[1:]
    save_reader(log, "tables", 4)
    with running("gateway", "--config", path, directory=tmp_path) as command:
        command.wait_for("removed 1 old segments")
        wait_until(lambda: retention(tmp_path)["removed_segments"] == 1, "the statistics tell")
        assert command.end() == 0
    assert segments(log)[:2] == before[2:]
    save_reader(log, "tables", 2)
    path.write_text(path.read_text().replace(f"max_bytes = {limit}", 'max_bytes = 1\nunread = "remove"'))
    with running("gateway", "--config", path, directory=tmp_path) as command:
        command.wait_for("removed 2 segments that tables had not taken: these records are lost to it")
        assert command.end() == 0
    assert not {*segments(log)} & {*before}
    assert verify(log).problems == []


def retention(folder: Path) -> dict[str, int]:
    try:
        found: dict[str, int] = json.loads((folder / "stats.json").read_text())["retention"]
    except (FileNotFoundError, KeyError):
        return {"removed_segments": -1}
    return found


def test_the_version_of_mqtt(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    begin = 'capture = "log"\n[[broker]]\nhost = "h"\ntopics = ["#"]\n'
    path.write_text(begin)
    (broker,) = load(path).brokers
    assert (broker.protocol, broker.receive_maximum) == ("", 4096)
    path.write_text(begin + 'protocol = "3.1.1"\nreceive_maximum = 100\n')
    (broker,) = load(path).brokers
    assert (broker.protocol, broker.receive_maximum) == ("3.1.1", 100)
    for wrong, what in [
        ('protocol = "5"', "'protocol' in [[broker]] is \"5.0\" or \"3.1.1\", not '5'"),
        ("receive_maximum = 0", "'receive_maximum' in [[broker]] is a whole number from 1 to 65535, not 0"),
    ]:
        path.write_text(begin + wrong)
        with pytest.raises(ConfigError, match=re.escape(f"line 5: {what}")):
            load(path)


def test_the_budget_of_syncs(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    for given, rate, credit in [
        ("", 0, 2000),
        ("syncs_per_second = 5", 5, 2000),
        ("syncs_per_second = 5\nsync_credit = 10", 5, 10),
    ]:
        path.write_text(f'capture = "/proc"\n{given}\n[[serial]]\nport = "x"\n')
        budget = check(load(path)).budget()
        assert (budget.rate, budget.left) == (rate, credit)
    for wrong, what in [
        ("syncs_per_second = -1", "'syncs_per_second' is a whole number, 0 for no limit, not -1"),
        ("sync_credit = 0", "'sync_credit' is a whole number, at least 1, not 0"),
    ]:
        path.write_text(f'capture = "log"\n{wrong}\n')
        with pytest.raises(ConfigError, match=f"line 2: {what}"):
            load(path)


def test_an_sd_card_has_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater_host.gateway.config.default_rate", lambda directory: 20.0)
    assert GatewayConfig(Path("log")).budget().rate == 20
    assert GatewayConfig(Path("log"), syncs_per_second=0).budget().rate == 0


def test_the_budget_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        f'capture = "{tmp_path}/log"\nsyncs_per_second = 7\n[[serial]]\nport = "{tmp_path}/none"\n'
    )
    with running("gateway", "--config", file, "--sync-credit", 9, directory=tmp_path) as command:
        command.wait_for("log, 7 syncs/s, 9 at once")
        assert command.end() == 0
    options = ("--syncs-per-second", 0)
    with running("gateway", "--config", file, *options, directory=tmp_path) as command:
        command.wait_for("log, syncs without a limit")
        assert command.end() == 0


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"capture = '\xe4'")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        load(tmp_path / "latin.toml")
    (tmp_path / "empty.toml").write_bytes(b"")
    with pytest.raises(ConfigError, match="'capture' is missing"):
        load(tmp_path / "empty.toml")
    assert load(tmp_path / "empty.toml", Path("log")).capture == Path("log")


@each_row(
    "text, topic",
    [
        ("#:1", ("#", 1)),
        ("a/b", ("a/b", 1)),
        ("a/b:0", ("a/b", 0)),
        ("a:b", ("a:b", 1)),
        ("a:3", ("a:3", 1)),
        ("a:1:2", ("a:1", 2)),
        ("$share/g/a/#:2", ("$share/g/a/#", 2)),
    ],
)
def test_topics(text: str, topic: tuple[str, int]) -> None:
    assert parse_topic(text) == topic


@each_row("text", ["", ":1", "a#", "a/#/b:1", "\0"])
def test_what_is_no_topic(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a topic filter"):
        parse_topic(text)


@each_row(
    "text, serial",
    [
        ("/dev/ttyACM0", SerialConfig("/dev/ttyACM0", 115200)),
        ("/dev/ttyUSB0:9600", SerialConfig("/dev/ttyUSB0", 9600)),
        ("/dev/by-path/pci-0000:00:14.0-usb-0:1:1.0", SerialConfig("/dev/by-path/pci-0000:00:14.0-usb-0:1:1.0")),
        ("/dev/by-path/usb-0:2", SerialConfig("/dev/by-path/usb-0:2")),
    ],
)  # fmt: skip
def test_serial_ports(text: str, serial: SerialConfig) -> None:
    assert parse_serial(text) == serial


@each_row("text", ["", ":9600", "x:99999999", "x:" + "9" * 5000, "a\0b"])
def test_what_is_no_serial_port(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_serial(text)


@each_row(
    "text, broker",
    [
        ("localhost", ("localhost", 1883)),
        ("10.0.0.1:8883", ("10.0.0.1", 8883)),
        ("[::1]", ("::1", 1883)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
    ],
)
def test_brokers(text: str, broker: tuple[str, int]) -> None:
    assert parse_broker(text) == broker


@each_row("text", ["", ":1883", "host:", "host:0", "host:65536", "host:x", "::1", "a b", "mqtt://x"])
def test_what_is_no_broker(text: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST"):
        parse_broker(text)


def test_the_client_id_is_the_same_at_every_start_and_not_for_another_log(tmp_path: Path) -> None:
    one = default_client_id(tmp_path / "one")
    assert one == default_client_id(tmp_path / "one")
    assert one != default_client_id(tmp_path / "two")
    assert len(one) <= 23  # what every server takes (MQTT 3.1.1, 3.1.3.1)


def test_it_is_looked_at_as_a_whole() -> None:
    log = Path("log")
    with pytest.raises(ConfigError, match="nothing to record"):
        check(GatewayConfig(log))
    with pytest.raises(ConfigError, match="needs a topic"):
        check(GatewayConfig(log, brokers=(BrokerConfig("h"),)))
    with pytest.raises(ConfigError, match="topic 'a' is named twice"):
        check(GatewayConfig(log, brokers=(BrokerConfig("h", topics=(("a", 1), ("a", 2))),)))
    with pytest.raises(ConfigError, match=r"serial port .* is named twice"):
        check(GatewayConfig(log, (SerialConfig("/dev/null"), SerialConfig("/dev/../dev/null", 9600))))
    with pytest.raises(ConfigError, match="the board on x speaks FMQ, which needs a hub"):
        check(GatewayConfig(log, (SerialConfig("x", protocol="fmq"),)))
    check(GatewayConfig(log, (SerialConfig("x", protocol="fmq"),), hub=HubConfig()))
    hubs = check(GatewayConfig(log, hubs=(FmqConfig("h", topics=("a",)), FmqConfig("i", topics=("a",))))).hubs
    # Of one log all are one group, and each connection has a name of its own.
    assert hubs[0].group == hubs[1].group != ""
    assert len({hub.client_id for hub in hubs}) == 2
    checked = check(GatewayConfig(log, brokers=(BrokerConfig("h", topics=(("a", 1),)),) * 2))
    assert len({broker.client_id for broker in checked.brokers}) == 2


@each_row(
    "keys, tls, port",
    [
        ("tls = true", Tls(), 8883),
        ("tls = true\nport = 1", Tls(), 1),
        ("tls = false", None, 1883),
        ('cafile = "ca.pem"', Tls(Path("ca.pem")), 8883),
        ('cafile = "ca.pem"\ninsecure = true', Tls(Path("ca.pem"), check_hostname=False), 8883),
        ('server_name = "inside"\nwebsocket = "/mqtt"', Tls(server_name="inside"), 443),
        ('cert = "own.pem"\nkey = "own.key.pem"', Tls(cert=Path("own.pem"), key=Path("own.key.pem")), 8883),
        ('websocket = "/mqtt"', None, 80),
    ],
)
def test_how_a_broker_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str, tls: Tls | None, port: int
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path, "ca", authority=True)
    make(tmp_path, "own")
    Path("gateway.toml").write_text(f'capture = "log"\n[[broker]]\nhost = "h"\ntopics = ["#"]\n{keys}\n')
    (broker,) = check(load(Path("gateway.toml"))).brokers
    assert (broker.tls, broker.port) == (tls, port)
    assert broker.websocket == ("/mqtt" if "websocket" in keys else None)


@each_row(
    "keys, line, says",
    [
        ("tls = 1", 5, "'tls' in [[broker]] is true or false, not 1"),
        ('tls = false\ncafile = "ca.pem"', 6, "'cafile' in [[broker]] needs TLS, and 'tls' is false"),
        ("insecure = true", 5, "'insecure' in [[broker]] needs 'tls'"),
        ('tls = true\ncafile = "none.pem"', 6, "cannot use the CA in none.pem: No such file"),
        ('cert = "none.pem"', 5, "cannot use the certificate none.pem: No such file"),
        ('key = "none.pem"', 5, "a client's key needs its certificate"),
        ('websocket = "mqtt"', 5, "'mqtt' is not a path for WebSocket"),
        ("websocket = true", 5, "'websocket' in [[broker]] is a path"),
        ("server_name = 5", 5, "'server_name' in [[broker]] is a host name or address, not 5"),
        ("username = 12345", 5, "'username' in [[broker]] is a text, not another kind of value"),
        (
            "password_file = ['secret']",
            5,
            "the first line of which is the password, not another kind of value",
        ),
        ("password = 'secret'", 5, "there is no key 'password' in [[broker]]"),
    ],
)
def test_how_a_broker_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str, line: int, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gateway.toml").write_text(f'capture = "log"\n[[broker]]\nhost = "h"\ntopics = ["#"]\n{keys}\n')
    with pytest.raises(ConfigError) as caught:
        load(Path("gateway.toml"))
    assert str(caught.value).startswith(f"gateway.toml, line {line}: ")
    assert says in str(caught.value)
    assert "12345" not in str(caught.value)
    assert "secret" not in str(caught.value)


@each_row(
    "arguments, says",
    [
        ([], "the capture log is missing: use --capture DIR"),
        (["--capture", "log"], "nothing to record"),
        (["--capture", "log", "--broker", "h"], "needs a topic"),
        (["--capture", "log", "--topic", "a"], "--topic needs --broker"),
        (["--capture", "log", "--password-file", "x"], "--password-file needs --broker"),
        (["--capture", "log", "--broker", "h:x", "--topic", "a"], "'h:x' is not HOST[:PORT]"),
        (["--capture", "log", "--broker", "h", "--topic", "a#"], "'a#' is not a topic filter"),
        (["--capture", "log", "--broker", "h", "--topic", "a", "--password-file", "none"], "cannot read the password"),
        (["--capture", "", "--serial", "x"], "the directory name is empty"),
        (["--capture", "log", "--serial", "x", "--stats", "/"], "the statistics file / has no name"),
        (["--capture", "log", "--serial", ""], "'' is not a serial port"),
        (["--config", "none.toml"], "cannot read none.toml"),
        (["--capture", "log", "--hub-port", "7000"], "--hub-port needs --hub"),
        (["--capture", "log", "--hub", "h", "--hub-port", "x"], "'x' is not a whole number from 0 to 65535"),
        (["--capture", "log", "--fmq-serial", "x"], "the board on x speaks FMQ, which needs a hub"),
        (["--capture", "log", "--serial", "x", "--stats-seconds", "-1"], "is not a number of seconds"),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code = ended("gateway", *arguments)
    said = capsys.readouterr()
    assert says in said.err
    assert "Traceback" not in said.err
    assert (code, said.out) == (2, "")
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    shown = headwater("gateway", "--capture", tmp_path / "file" / "log", "--serial", tmp_path / "none")
    assert shown.returncode == 1
    assert shown.stderr.startswith(b"headwater: cannot open the capture log")
    assert b"Traceback" not in shown.stderr


def test_the_file_of_the_documentation(tmp_path: Path) -> None:
    # Two pieces of one file.
    document = "".join(
        re.findall(r"```toml\n(.*?)```", (ROOT / "docs/gateway.md").read_text(encoding="utf-8"), re.DOTALL)
    )
    (tmp_path / "password").write_text("secret\n")
    file = tmp_path / "gateway.toml"
    file.write_text(document.replace("/etc/headwater/password", str(tmp_path / "password")))
    config = check(load(file))
    assert config.serials[0].port.startswith("/dev/serial/by-id/")
    assert config.brokers[0].topics == (("boards/#", 1), ("alarms/+", 2))
    assert config.brokers[0].password == b"secret"
    assert config.serials[1].protocol == "fmq"
    assert config.hub is not None
    assert config.hub.storage == Path("/var/lib/headwater/hub.db")
    assert config.hubs[0].topics == ("plant/#",)
    assert config.mq is not None
    assert config.mq.topics == ("plant/#",)


def test_the_command_line_comes_on_top_of_the_hub(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(f'capture = "{tmp_path}/log"\n[hub]\nstorage = "{tmp_path}/none/hub.db"\nport = 7001\n')
    storage = tmp_path / "hub.db"
    with running(
        "gateway", "--config", file, "--hub", storage, "--hub-port", 0, directory=tmp_path
    ) as command:
        command.wait_for(f"; storage in {storage}")
        assert "port 7001" not in command.errors
        assert command.end() == 0
    assert storage.exists()
