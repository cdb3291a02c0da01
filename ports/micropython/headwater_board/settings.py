"""The settings of a board, in one JSON file that a person edits.

    settings = load("/headwater.json")

``KEYS`` has every key, its rule and its default; ``docs/board-settings.md`` explains them. Mistakes raise
SettingsError, whose text has a sentence for each: the key, what was found and what is allowed.
"""

import io
import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: A larger file is refused before it is read.
LARGEST = 4096
# How many mistakes are reported, and how many tables a list may have.
_MOST = 8
# How much of a wrong value is shown.
_SHOWN = 40


class SettingsError(ValueError):
    """The settings are wrong. The text says what, a sentence for each mistake."""


def _is_ip(text: str) -> bool:
    parts = text.split(".")
    return len(parts) == 4 and all(part.isdigit() and len(part) < 4 and int(part) < 256 for part in parts)


def _is_host(text: str) -> bool:
    # As ``Resolver.check``, which this module must not import.
    return len(text.encode()) < 254 and all(
        0 < len(label.encode()) < 64 for label in text.rstrip(".").split(".")
    )


def _is_country(text: str) -> bool:
    return len(text) == 2 and text.isalpha() and text.isupper()


def _is_path(text: str) -> bool:
    return text[:1] == "/" and len(text) <= 128


def _is_topic(text: str) -> bool:
    return 0 < len(text.encode()) <= 200 and "+" not in text and "#" not in text


#: What a type or function of a rule allows, in words.
_WORDS: "dict[Any, str]" = {
    bool: "true or false",
    int: "a whole number from {} to {}",
    str: "text of {} to {} bytes",
    _is_ip: "an IPv4 address such as 192.168.1.20",
    _is_host: "a host name with 1 to 63 bytes between dots, or an address",
    _is_country: "two capital letters such as CH",
    _is_path: "the path of a file, which starts with /",
    _is_topic: "a topic of up to 200 bytes without + and #",
}
_IP = (_is_ip,)
_PATH = (_is_path,)
_HOST = (_is_host, 0, 0, None)
_PIN = (int, 0, 99, None)
_TOPIC = (_is_topic,)

_RMII = ("mdc", "mdio")
_SPI = ("spi", "sck", "mosi", "miso", "cs", "int")
# PHYs of ESP32 by the pins that they need.
_RMII_PHYS = ("LAN8710", "LAN8720", "IP101", "RTL8201", "DP83848", "KSZ8041", "KSZ8081", "GENERIC")
_SPI_PHYS = ("W5500", "KSZ8851SNL", "DM9051")
# What a WIZnet chip of an RP2 needs; boards that have one on them need no keys.
_WIZNET = ("spi", "sck", "mosi", "miso", "cs", "reset")

#: A rule is a table (dict), a list of tables, a tuple of texts, of which the first is the default, or a tuple of a type
#: or function, the least and the most (of text: bytes), and the default, which need not lie between them. A missing
#: table is None; every other key without a default is required.
KEYS: "dict[str, Any]" = {
    "wifi": [
        {
            "ssid": (str, 1, 32),
            "password": (str, 8, 64, ""),
            "security": ("wpa2", "wpa3", "wpa2-wpa3"),
        }
    ],
    "ethernet": {
        "chip": ("WIZNET5K",) + _RMII_PHYS + _SPI_PHYS,
        "phy_addr": (int, 0, 31, 0),
        "mdc": _PIN,
        "mdio": _PIN,
        "ref_clk": _PIN,
        "ref_clk_mode": ("default", "in", "out"),
        "power": _PIN,
        "reset": _PIN,
        "spi": (int, 0, 9, None),
        "sck": _PIN,
        "mosi": _PIN,
        "miso": _PIN,
        "cs": _PIN,
        "int": _PIN,
    },
    "country": (_is_country, 0, 0, None),
    "hostname": (str, 1, 32, None),
    "address": {"ip": _IP, "mask": _IP, "gateway": _IP, "dns": _IP},
    "tx_power": (int, 2, 21, None),
    "power_save": (bool, 0, 0, False),
    "reset_s": (int, 60, 518400, None),
    "serial": {
        "line": (int, 0, 9, "usb"),
        "baudrate": (int, 300, 4000000, 115200),
        "tx": _PIN,
        "rx": _PIN,
    },
    "broker": {
        "protocol": ("mqtt", "fmq"),
        "host": _HOST,
        "port": (int, 1, 65535, None),
        "version": ("3.1.1", "5.0"),
        "client_id": (str, 1, 64, None),
        "user": (str, 1, 256, None),
        "password": (str, 1, 256, None),
        "keep_alive": (int, 0, 65535, 60),
        "clean_start": (bool, 0, 0, False),
        "tls": {
            "ca": _PATH,
            "cert": (_is_path, 0, 0, None),
            "key": (_is_path, 0, 0, None),
            "server_name": _HOST,
        },
    },
    "ntp": _HOST,
    "topic": (_is_topic, 0, 0, None),
    "outbox": {"path": (_is_path, 0, 0, "/outbox.hwj"), "size": (int, 128, 65536, 2048)},
    "watchdog_ms": (int, 1000, 8388, None),
    "sleep": {"seconds": (int, 1, 2147483), "awake_ms": (int, 1000, 600000, 20000)},
    "update": {"topic": _TOPIC, "key_file": _PATH},
    "log": {"topic": (_is_topic, 0, 0, None), "size": (int, 700, 65536, 1024)},
}


def load(path: str = "/headwater.json") -> "dict[str, Any]":
    """Read and check a file: as ``check``. Raises SettingsError."""
    try:
        size = os.stat(path)[6]
        if size > LARGEST:
            raise SettingsError(f"{path} has {size} bytes; allowed: up to {LARGEST}")
        with open(path, "rb") as file:
            data = file.read()
    except OSError as e:
        raise SettingsError(f"{path} cannot be read: {e}")
    stream = io.BytesIO(data)
    try:
        found = json.load(stream)
    # TypeError: this parser lets a list be a key. MemoryError: too many brackets.
    except (ValueError, TypeError, MemoryError):
        line = data[: stream.tell()].count(b"\n") + 1
        raise SettingsError(f"{path} is not JSON in UTF-8: the mistake is in line {line}, or before it")
    return check(found, path)


def check(found: "Any", name: str = "settings") -> "dict[str, Any]":
    """Return settings with every key of ``KEYS``, using defaults for missing ones. Raises SettingsError."""
    wrong: list[str] = []
    settings: dict[str, Any] = _check(KEYS, found, "", wrong)
    if not wrong:
        if settings["broker"] is None:
            settings["broker"] = _check(KEYS["broker"], {}, "broker", wrong)
        _check_together(settings, name, wrong)
    if wrong:
        raise SettingsError("\n".join([f"{name}: {mistake}" for mistake in wrong[:_MOST]]))
    return settings


def _check(rule: "Any", value: "Any", name: str, wrong: "list[str]") -> "Any":
    """Return the value with its defaults; append its mistakes to ``wrong``."""
    if isinstance(rule, list):
        if isinstance(value, list) and 0 < len(value) <= _MOST:
            return [_check(rule[0], value[i], f"{name}[{i}]", wrong) for i in range(len(value))]
    elif not isinstance(rule, dict):
        if _fits(rule, value):
            return value
    elif isinstance(value, dict):
        prefix = name + "." if name else ""
        for key in value:
            if key not in rule:
                wrong.append(f"{prefix}{str(key)[:_SHOWN]} is unknown; allowed: {', '.join(sorted(rule))}")
        return {key: _member(rule[key], value, key, prefix + key, wrong) for key in rule}
    try:
        shown = json.dumps(value)
    except RuntimeError:
        shown = "nested too deeply"
    shown = f"{len(shown)} hidden characters" if name.endswith("password") else shown[:_SHOWN]
    wrong.append(f"{name or 'the file'} is {shown}; allowed: {_allowed(rule)}")
    return value


def _member(rule: "Any", table: "dict[str, Any]", key: str, name: str, wrong: "list[str]") -> "Any":
    if key in table:
        return _check(rule, table[key], name, wrong)
    if isinstance(rule, tuple):
        if isinstance(rule[0], str):
            return rule[0]
        if len(rule) > 3:
            return rule[3]
        wrong.append(f"{name} is missing; allowed: {_allowed(rule)}")
    return None


def _fits(rule: "tuple[Any, ...]", value: "Any") -> bool:
    kind = rule[0]
    if isinstance(kind, str):
        return value in rule
    if len(rule) > 3 and type(value) is type(rule[3]) and value == rule[3]:
        return True
    if kind is int:
        return type(value) is int and rule[1] <= value <= rule[2]
    if kind is bool:
        return type(value) is bool
    if not isinstance(value, str) or "\0" in value:
        return False
    return rule[1] <= len(value.encode()) <= rule[2] if kind is str else bool(kind(value))


def _allowed(rule: "Any") -> str:
    if isinstance(rule, dict):
        return "a table {...}"
    if isinstance(rule, list):
        return f"a list of 1 to {_MOST} tables [{{...}}]"
    if isinstance(rule[0], str):
        return " or ".join(rule)
    words = _WORDS[rule[0]].format(*rule[1:3])
    return words if len(rule) < 4 or _fits(rule[:3], rule[3]) else f"{words}, or {json.dumps(rule[3])}"


def _check_together(settings: "dict[str, Any]", name: str, wrong: "list[str]") -> None:
    broker = settings["broker"]
    tls = broker["tls"]
    links = [key for key in ("serial", "wifi", "ethernet") if settings[key]]
    if len(links) > 1:
        wrong.append(f"{' and '.join(links)} are there; allowed: one of them")
    elif settings["serial"] is None and broker["host"] is None:
        wrong.append("broker.host is missing; allowed: a name or an address")
    if settings["ethernet"]:
        _check_pins(settings["ethernet"], wrong)
    if settings["sleep"] and settings["watchdog_ms"]:
        # On RP2 the watchdog goes on during deep sleep, and ends it.
        wrong.append("sleep and watchdog_ms are there; allowed: one of them")
    if settings["sleep"] and settings["update"]:
        # A board that sleeps is not there to receive, and would take its short trials for failures.
        wrong.append("sleep and update are there; allowed: one of them")
    if settings["outbox"] and settings["outbox"]["path"] in (name, "/headwater.json"):
        wrong.append("outbox.path is the file of the settings; allowed: another file")
    if tls and (tls["cert"] is None) != (tls["key"] is None):
        wrong.append("broker.tls has one of cert and key; allowed: both, or none")


def _check_pins(ethernet: "dict[str, Any]", wrong: "list[str]") -> None:
    """Check that the chip has its keys, and no others."""
    chip = ethernet["chip"]
    pins = [key for key in _RMII + _SPI if ethernet[key] is not None]
    needed = _RMII if chip in _RMII_PHYS else _SPI if chip in _SPI_PHYS else _WIZNET
    if pins or chip != "WIZNET5K":
        missing = [key for key in needed if ethernet[key] is None]
        if missing:
            wrong.append(f"ethernet.{missing[0]} is missing; {chip} needs {', '.join(needed)}")
    unused = [key for key in pins if key not in needed and key != "int"]
    if unused:
        wrong.append(f"ethernet.{unused[0]} is there; {chip} needs {', '.join(needed)}")
