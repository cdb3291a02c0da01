"""A board's settings, loaded by MicroPython: defaults, the sentence of each mistake, damaged files."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from headwater_board.settings import KEYS, LARGEST, SettingsError, check, load
from tools import mpy
from tools.runtimes import run_unix
from tools.toolchain import ROOT

SCRIPT = Path(__file__).parent / "device" / "load_settings.py"
BROKER = {"host": "broker.local"}
FULL: dict[str, Any] = {
    "wifi": [{"ssid": "home", "password": "correct horse"}, {"ssid": "café"}],
    "country": "CH",
    "hostname": "board-1",
    "address": {"ip": "192.168.1.20", "mask": "255.255.255.0", "gateway": "192.168.1.1", "dns": "1.1.1.1"},
    "tx_power": 15,
    "power_save": True,
    "reset_s": 3600,
    "broker": {
        "host": "broker.local",
        "port": 8883,
        "version": "5.0",
        "client_id": "board-1",
        "user": "board-1",
        "password": "secret",
        "keep_alive": 30,
        "clean_start": True,
        "tls": {"ca": "/ca.der", "cert": "/cert.der", "key": "/key.der", "server_name": "broker"},
    },
    "ntp": "pool.ntp.org",
    "topic": "plant/board-1",
    "outbox": {"path": "/store.hwj", "size": 4096},
    "watchdog_ms": 8000,
    "update": {"topic": "updates/board-1", "key_file": "/update.key"},
    "log": {"topic": "logs/board-1", "size": 800},
}
#: The type of IP addresses, of numbers, and so on, as the sentences name them.
HOST = "a host name with 1 to 63 bytes between dots, or an address, or null"
W5500_KEYS = "spi, sck, mosi, miso, cs, int"
IP = "an IPv4 address such as 192.168.1.20"
PATH = "the path of a file, which starts with /"
TABLES = "a list of 1 to 8 tables [{...}]"
PORT = "a whole number from 1 to 65535, or null"
KEEP_ALIVE = "a whole number from 0 to 65535"
ADDRESS = {"ip": "192.168.1.256", "mask": "255.255.255.0", "gateway": "1.1.1", "dns": "1.1.1.1"}
WIFI = [{"ssid": "a", "password": "open sesame"}, {"ssid": "b", "password": "sesame"}]
BROKER_KEYS = "clean_start, client_id, host, keep_alive, password, port, protocol, tls, user, version"


def broker(**more: object) -> dict[str, Any]:
    return {"broker": {**BROKER, **more}}


#: The settings, and the sentences that they lead to.
MISTAKES: list[tuple[Any, list[str]]] = [
    ([], ["the file is []; allowed: a table {...}"]),
    ({}, ["broker.host is missing; allowed: a name or an address"]),
    ({"serial": {}, "wifi": [{"ssid": "a"}]}, ["serial and wifi are there; allowed: one of them"]),
    (
        {**broker(), "ethernet": {}, "wifi": [{"ssid": "a"}]},
        ["wifi and ethernet are there; allowed: one of them"],
    ),
    ({"ethernet": {}}, ["broker.host is missing; allowed: a name or an address"]),
    (
        {**broker(), "ethernet": {"chip": "LAN8720", "mdc": 23}},
        ["ethernet.mdio is missing; LAN8720 needs mdc, mdio"],
    ),
    (
        {**broker(), "ethernet": {"chip": "W5500", "spi": 1, "sck": 12, "mosi": 13, "miso": 14, "cs": 10}},
        [f"ethernet.int is missing; W5500 needs {W5500_KEYS}"],
    ),
    (
        {**broker(), "ethernet": {"spi": 0, "sck": 18, "mosi": 19, "miso": 16, "cs": 17}},
        ["ethernet.reset is missing; WIZNET5K needs spi, sck, mosi, miso, cs, reset"],
    ),
    (
        {**broker(), "ethernet": {"chip": "LAN8720", "mdc": 23, "mdio": 18, "cs": 5}},
        ["ethernet.cs is there; LAN8720 needs mdc, mdio"],
    ),
    (broker(host=""), [f'broker.host is ""; allowed: {HOST}']),
    (broker(host="a" * 64), [f'broker.host is "{"a" * 39}; allowed: {HOST}']),
    ({**broker(), "ntp": "a..b"}, [f'ntp is "a..b"; allowed: {HOST}']),
    (
        {**broker(), "country": "CHE"},
        ['country is "CHE"; allowed: two capital letters such as CH, or null'],
    ),
    (
        {**broker(), "country": "ch"},
        ['country is "ch"; allowed: two capital letters such as CH, or null'],
    ),
    (broker(port=70000), [f"broker.port is 70000; allowed: {PORT}"]),
    (broker(port="1883"), [f'broker.port is "1883"; allowed: {PORT}']),
    (broker(keep_alive=1.5), [f"broker.keep_alive is 1.5; allowed: {KEEP_ALIVE}"]),
    (broker(keep_alive=True), [f"broker.keep_alive is true; allowed: {KEEP_ALIVE}"]),
    (broker(clean_start=0), ["broker.clean_start is 0; allowed: true or false"]),
    (broker(protocol="http"), ['broker.protocol is "http"; allowed: mqtt or fmq']),
    (broker(version=5), ["broker.version is 5; allowed: 3.1.1 or 5.0"]),
    (broker(hots=1), [f"broker.hots is unknown; allowed: {BROKER_KEYS}"]),
    (broker(tls={}), [f"broker.tls.ca is missing; allowed: {PATH}"]),
    (broker(tls={"ca": "ca.der"}), [f'broker.tls.ca is "ca.der"; allowed: {PATH}']),
    (
        broker(tls={"ca": "/ca.der", "key": "/key.der"}),
        ["broker.tls has one of cert and key; allowed: both, or none"],
    ),
    (
        broker(password=""),
        ["broker.password is 2 hidden characters; allowed: text of 1 to 256 bytes, or null"],
    ),
    ({**broker(), "wifi": {}}, [f"wifi is {{}}; allowed: {TABLES}"]),
    ({**broker(), "wifi": []}, [f"wifi is []; allowed: {TABLES}"]),
    ({**broker(), "wifi": [{}]}, ["wifi[0].ssid is missing; allowed: text of 1 to 32 bytes"]),
    (
        {**broker(), "wifi": [{"ssid": "a\0"}]},
        ['wifi[0].ssid is "a\\u0000"; allowed: text of 1 to 32 bytes'],
    ),
    (
        {**broker(), "wifi": WIFI},
        ['wifi[1].password is 8 hidden characters; allowed: text of 8 to 64 bytes, or ""'],
    ),
    (
        {**broker(), "address": ADDRESS},
        [f'address.gateway is "1.1.1"; allowed: {IP}', f'address.ip is "192.168.1.256"; allowed: {IP}'],
    ),
    (
        {**broker(), "topic": "a/#"},
        ['topic is "a/#"; allowed: a topic of up to 200 bytes without + and #, or null'],
    ),
    (
        {**broker(), "watchdog_ms": 9000},
        ["watchdog_ms is 9000; allowed: a whole number from 1000 to 8388, or null"],
    ),
    (
        # An ESP32 counts milliseconds to 2**31.
        {**broker(), "sleep": {"seconds": 2147484}},
        ["sleep.seconds is 2147484; allowed: a whole number from 1 to 2147483"],
    ),
    (
        {**broker(), "watchdog_ms": 8000, "sleep": {"seconds": 60}},
        ["sleep and watchdog_ms are there; allowed: one of them"],
    ),
    (
        {**broker(), "sleep": {"seconds": 60}, "update": {"topic": "u", "key_file": "/key"}},
        ["sleep and update are there; allowed: one of them"],
    ),
    (
        {**broker(), "outbox": {"path": "/headwater.json"}},
        ["outbox.path is the file of the settings; allowed: another file"],
    ),
    (
        {**broker(), **{f"k{i}": i for i in range(20)}},
        [f"k{i} is unknown; allowed: {', '.join(sorted(KEYS))}" for i in range(20)],
    ),
]


def loaded(folder: Path, files: dict[str, bytes]) -> dict[str, tuple[Any, str | None]]:
    """Load files on MicroPython's unix build: by name the settings, or the error without the file's path."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    done = run_unix(
        SCRIPT, str(folder), path=[mpy.compiled(mpy.SDK), mpy.compiled(mpy.BOARD_PORT)], heap=192 << 10
    )
    assert done.returncode == 0, done.stdout
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == len(files)
    return {
        name: (settings, error and error.replace(f"{folder}/{name}", "FILE"))
        for name, settings, error in rows
    }


@pytest.mark.needs_micropython
def test_settings_are_complete(tmp_path: Path) -> None:
    (settings, error), *_ = loaded(tmp_path, {"full": json.dumps(FULL).encode()}).values()
    assert error is None
    wifi = [
        {**FULL["wifi"][0], "security": "wpa2"},
        {"ssid": "café", "password": "", "security": "wpa2"},
    ]
    broker = {**FULL["broker"], "protocol": "mqtt"}
    assert settings == {
        **FULL,
        "wifi": wifi,
        "broker": broker,
        "serial": None,
        "sleep": None,
        "ethernet": None,
    }
    assert check(FULL) == settings


@pytest.mark.needs_micropython
def test_a_board_on_a_serial_line_needs_no_broker(tmp_path: Path) -> None:
    (settings, error), *_ = loaded(tmp_path, {"least": b'{"serial": {"line": 1, "tx": 4, "rx": 5}}'}).values()
    assert error is None
    assert settings["serial"] == {"line": 1, "baudrate": 115200, "tx": 4, "rx": 5}
    assert settings["broker"]["keep_alive"] == 60
    assert {key for key, value in settings.items() if value is None} == set(KEYS) - {
        "serial",
        "broker",
        "power_save",
    }


@pytest.mark.needs_micropython
def test_each_mistake_has_its_sentence(tmp_path: Path) -> None:
    results = loaded(tmp_path, {f"{i:02}": json.dumps(MISTAKES[i][0]).encode() for i in range(len(MISTAKES))})
    for (found, sentences), (settings, error) in zip(MISTAKES, results.values(), strict=True):
        assert settings is None, found
        told = (error or "").removeprefix("FILE: ").split("\nFILE: ")
        # MicroPython's tables have no order.
        assert len(told) == min(len(sentences), 8)
        assert set(told) <= set(sentences), error
        with pytest.raises(SettingsError):
            check(found)


@pytest.mark.needs_micropython
def test_a_damaged_file_has_a_sentence(tmp_path: Path) -> None:
    """Truncated anywhere, changed at random, oversized, not text: settings, or SettingsError, and nothing else."""
    text = json.dumps(FULL, indent=1).encode()
    chance = random.Random(12)
    files = {f"cut-{at:04}": text[:at] for at in range(0, len(text) - 1, 7)}
    for i in range(400):
        damaged = bytearray(text)
        for _ in range(chance.choice((1, 1, 2, 8))):
            damaged[chance.randrange(len(text))] = chance.choice((chance.randrange(256), *b'{}[]",:\\0'))
        files[f"damaged-{i:03}"] = bytes(damaged)
    files["deep"] = b"[" * LARGEST
    files["deep-value"] = b'{"wifi": ' + b"[" * 1900 + b"]" * 1900 + b"}"
    files["list-as-key"] = b"{[1]: 2}"
    files["number"] = b"1" * LARGEST
    files["oversized"] = text + b" " * LARGEST
    files["empty"] = b""
    files["utf-16"] = text.decode().encode("utf-16")
    results = loaded(tmp_path, files)
    for name, (settings, error) in results.items():
        assert (settings is None) != (error is None), name
        if name.startswith("cut"):
            assert error is not None
            assert re.fullmatch(r"FILE is not JSON in UTF-8: the mistake is in line \d+, or before it", error)
    refused = [error for _, error in results.values() if error]
    assert 200 < len(refused) < len(results)
    assert results["oversized"][1] == f"FILE has {len(text) + LARGEST} bytes; allowed: up to {LARGEST}"
    assert results["empty"][1] == "FILE is not JSON in UTF-8: the mistake is in line 1, or before it"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load(str(tmp_path / "headwater.json"))


def test_errors_show_no_password() -> None:
    with pytest.raises(SettingsError) as caught:
        check({"broker": {**BROKER, "password": 12345678}, "wifi": [{"ssid": "a", "password": "sesame"}]})
    assert "sesame" not in str(caught.value)
    assert "1234" not in str(caught.value)


def names(rules: dict[str, Any], prefix: str = "") -> list[str]:
    """The dotted name of each key."""
    found = []
    for key, rule in rules.items():
        found.append(prefix + key)
        table = rule[0] if isinstance(rule, list) else rule
        if isinstance(table, dict):
            found += names(table, f"{prefix}{key}{'[]' if isinstance(rule, list) else ''}.")
    return found


def test_the_examples_of_the_pages_are_valid() -> None:
    found = [
        block
        for page in ("board-settings", "tls-on-boards", "updates", "board-life")
        for block in re.findall(
            r"```json\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL
        )
        if '"broker"' in block
    ]
    assert len(found) >= 4
    for block in found:
        check(json.loads(block))


def test_the_page_has_each_key() -> None:
    page = (ROOT / "docs" / "board-settings.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)) == sorted(names(KEYS))
