"""The tables ``[mq]`` and ``[mq.uplink]`` of a gateway's configuration."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwater_host import settings
from headwater_host.mq.fields import LARGEST, LARGEST_DEAD
from headwater_host.mq.uplink.mqi import Channel
from headwater_host.mq.uplink.uplink import UplinkConfig
from headwater_host.settings import ConfigError, Key, SettingsFile

MQ, UPLINK = "mq", "mq.uplink"
NOW, BEGINNING = "now", "beginning"
#: IBM's limit of MaxQDepth and default of MaxMsgLength.
_DEEPEST = 999_999_999
_LENGTH = 4 << 20
# Limit of an MQCSP, in bytes.
_PASSWORD = 256


@dataclass(frozen=True)
class MqConfig:
    """The local queue and its messages. Sizes are in bytes, times in seconds."""

    file: Path
    topics: tuple[str, ...]
    queue: str = "HEADWATER"
    dead_letter_queue: str = "SYSTEM.DEAD.LETTER.QUEUE"
    #: Format and CodedCharSetId of messages without an MQMDE.
    format: str = ""
    ccsid: int = 1208
    #: Where to start in an existing log: at its end, or at its oldest record.
    start: str = NOW
    #: True if to reassemble logical messages, with limits of memory and file, timeout, and incomplete GroupIds.
    reassemble: bool = True
    memory: int = 16 << 20
    spill: int = 1 << 30
    timeout: float = 3600.0
    open_groups: int = 100_000
    #: Limits of the queue: messages, bytes of one, bytes of all.
    depth: int = 100_000
    message_bytes: int = _LENGTH
    bytes: int = 1 << 30
    uplink: UplinkConfig | None = field(default=None)


def _named(most: int) -> Callable[[object], str]:
    """Return a converter for IBM MQ names of at most ``most`` characters."""

    def convert(value: object) -> str:
        name = settings.text(value)
        if len(name) > most or not re.fullmatch(r"[A-Za-z0-9._/%]+", name):
            raise ValueError
        return name

    return convert


def _manager(value: object) -> str:
    # Blank matches any queue manager; a leading asterisk any of a group.
    if value == "":
        return ""
    name = settings.text(value)
    _named(47 if name.startswith("*") else 48)(name.removeprefix("*"))
    return name


def _ascii(most: int) -> Callable[[object], str]:
    def convert(value: object) -> str:
        found = settings.text(value)
        if len(found) > most or not found.isascii() or not found.isprintable():
            raise ValueError
        return found

    return convert


def _connection(value: object) -> str:
    found = _ascii(264)(value)
    for one in found.split(","):
        match = re.fullmatch(r"[^\s(),]+(?:\(([0-9]{1,5})\))?", one.strip())
        if match is None or not 1 <= int(match[1] or 1414) <= 65535:
            raise ValueError
    return found


def _password(value: object) -> bytes:
    path = settings.path(value)
    found = settings.read_password(path)
    if len(found) > _PASSWORD:
        raise ConfigError(f"the password in {path} is longer than {_PASSWORD} bytes")
    return found


def _bytes(least: int, most: int) -> Key:
    check = settings.whole(least, most)
    text = f'a number of bytes from {least} to {most}, or text such as "64 MiB"'
    return Key(text, lambda value: check(settings.size(value)))


_QUEUE = Key("a queue's name: at most 48 letters, digits and . _ / %", _named(48))
_MQ = {
    "file": Key(*settings.FILE, required=True),
    "topics": Key(*settings.FILTERS, required=True),
    "queue": _QUEUE,
    "dead_letter_queue": _QUEUE,
    "format": Key("at most 8 characters of ASCII", _ascii(8)),
    "ccsid": Key(*settings.between(1, 65535)),
    "start": Key(*settings.one_of(NOW, BEGINNING)),
    "reassemble": Key(*settings.TRUTH),
    "memory": _bytes(1 << 16, 1 << 40),
    "spill": _bytes(1 << 16, 1 << 50),
    "timeout": Key(*settings.SECONDS),
    "open_groups": Key(*settings.between(1, _DEEPEST)),
    "depth": Key(*settings.between(1, _DEEPEST)),
    "message_bytes": _bytes(1024, LARGEST_DEAD),
    # An empty file has 80 KB.
    "bytes": _bytes(1 << 20, 1 << 50),
}
_CHANNEL = {
    "queue_manager": Key("a queue manager's name, or an empty text", _manager, required=True),
    "channel": Key("a server-connection channel's name: at most 20 characters", _named(20), required=True),
    "connection": Key('"HOST(PORT)", several with commas settings.between', _connection, required=True),
    "user": Key("a text", _ascii(1024), secret=True),
    "password_file": Key("a file with the password in its first line", _password, secret=True),
    "cipher": Key('a CipherSpec, such as "ANY_TLS12_OR_HIGHER"', _ascii(32)),
    "key_repository": Key("a file", _ascii(256)),
    "certificate_label": Key("a text of at most 64 characters", _ascii(64)),
    "peer_name": Key("a distinguished name", _ascii(1024)),
    "heartbeat": Key("a whole number of seconds from 0 to 999999", settings.whole(0, 999_999)),
}
_UPLINK = _CHANNEL | {
    "queue": Key(_QUEUE.what, _QUEUE.convert, required=True),
    "record_queue": _QUEUE,
    "batch": Key(*settings.between(1, 9999)),
    "batch_bytes": _bytes(1024, LARGEST),
    "idle": Key(*settings.SECONDS),
}


def read(file: SettingsFile) -> MqConfig | None:
    """Read the table ``[mq]``; None if there is none. Errors become mistakes of the file."""
    given = file.values.get(MQ)
    if given is None:
        return None
    if not isinstance(given, dict):
        file.mistake(f"{MQ!r} is a table: [{MQ}]", key=MQ)
        return None
    values = file.take(
        {key: value for key, value in given.items() if key != "uplink"},
        _MQ,
        f"[{MQ}]",
        known=[*_MQ, "uplink"],
    )
    if "uplink" in given:
        values["uplink"] = _uplink(file, given["uplink"])
    if not {"file", "topics"} <= values.keys():
        return None
    config = MqConfig(**values)
    if config.queue == config.dead_letter_queue:
        file.mistake("'dead_letter_queue' in [mq] is 'queue' as well", MQ, key="dead_letter_queue")
    if config.message_bytes > config.bytes // 2:
        file.mistake("'message_bytes' in [mq] is more than half of 'bytes'", MQ, key="message_bytes")
    return config


def _uplink(file: SettingsFile, given: Any) -> UplinkConfig | None:
    if not isinstance(given, dict):
        file.mistake(f"'uplink' in [{MQ}] is a table: [{UPLINK}]", MQ, key="uplink")
        return None
    values = file.take(given, _UPLINK, f"[{UPLINK}]")
    for key, needed in (
        ("user", "password_file"),
        ("password_file", "user"),
        ("cipher", "key_repository"),
        ("key_repository", "cipher"),
        ("certificate_label", "cipher"),
        ("peer_name", "cipher"),
    ):
        if key in given and needed not in given:
            file.mistake(f"{key!r} in [{UPLINK}] needs {needed!r}", UPLINK, key=key)
    if values.get("record_queue", "") == values.get("queue"):
        file.mistake(f"'record_queue' in [{UPLINK}] is 'queue' as well", UPLINK, key="record_queue")
    if any(key.required and name not in values for name, key in _UPLINK.items()):
        return None
    password = values.pop("password_file", None)
    channel = Channel(password=password, **{key: values.pop(key) for key in _CHANNEL if key in values})
    return UplinkConfig(channel, **values)


def load(path: Path) -> MqConfig:
    """Read the table ``[mq]`` of a file with any other tables. Raises ConfigError."""
    file = SettingsFile.read(path)
    config = read(file)
    file.check()
    if config is None:
        raise file.fail(f"there is no table [{MQ}]")
    return config
