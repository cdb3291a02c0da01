"""Print a message of ``headwater mq``: its data, JSON, or a format with sequences."""

import argparse
import calendar
import json
import time
from typing import Any, NamedTuple

from headwater_host.cli.message_format import Part, parse
from headwater_host.inspect.mq import flags
from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import MD, V2_FIELDS


class Got(NamedTuple):
    """A message that MQGET returned."""

    queue: str
    md: MD
    payload: bytes

    @property
    def time_ns(self) -> int:
        """Time of the put in ns since 1970; 0 if the descriptor has none."""
        text = (self.md.PutDate + self.md.PutTime).decode("latin-1")
        try:
            seconds = calendar.timegm(time.strptime(text[:14], "%Y%m%d%H%M%S"))
            return seconds * 10**9 + int(text[14:] or "0") * 10**7
        except ValueError:
            return 0

    def put(self) -> str | None:
        """Return the time of the put in UTC, or None if the descriptor has none."""
        seconds = self.time_ns // 10**9
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)) if seconds else None

    def local(self, shape: str) -> str:
        """Format the time of the put with ``time.strftime``; an empty string if there is none."""
        return time.strftime(shape, time.localtime(self.time_ns // 10**9)) if self.time_ns else ""

    def fields(self) -> dict[str, Any]:
        """Return the descriptor for JSON: characters with their blanks, bytes as hexadecimal."""
        found: dict[str, Any] = {}
        for name, value in self.md.get().items():
            if self.md.Version > CMQC.MQMD_VERSION_1 or name not in V2_FIELDS:
                is_text = MD.FIELDS[name][0] == "c"
                found[name] = (
                    value if isinstance(value, int) else value.decode("latin-1") if is_text else value.hex()
                )
        return found

    def text(self, name: str) -> str:
        """Return a field of characters without trailing blanks."""
        value: bytes = getattr(self.md, name)
        return value.decode("latin-1").rstrip(" \0")

    def json(self) -> str:
        """Return one line of JSON."""
        told: dict[str, Any] = {"queue": self.queue, "fields": self.fields()}
        try:
            told["payload"] = self.payload.decode()
        except UnicodeDecodeError:
            told["payload_hex"] = self.payload.hex()
        return json.dumps(told)


#: Sequences of ``-F``, by the character after %.
FIELDS: dict[str, Part] = {
    "t": lambda got: got.queue,
    "p": lambda got: got.payload,
    "x": lambda got: got.payload.hex(),
    "X": lambda got: got.payload.hex().upper(),
    "l": lambda got: str(len(got.payload)),
    "f": lambda got: got.text("Format"),
    "i": lambda got: got.md.MsgId.hex(),
    "c": lambda got: got.md.CorrelId.hex(),
    "g": lambda got: got.md.GroupId.hex(),
    "s": lambda got: str(got.md.MsgSeqNumber),
    "o": lambda got: str(got.md.Offset),
    "m": lambda got: flags(got.md.MsgFlags),
    "n": lambda got: str(got.md.Priority),
    "u": lambda got: got.text("UserIdentifier"),
    "I": lambda got: got.local("%Y-%m-%dT%H:%M:%S%z"),
    "U": lambda got: f"{got.time_ns // 10**9}.{got.time_ns % 10**9:09}" if got.time_ns else "",
    "j": lambda got: got.json(),
}
_NUMBERS = "xXlson"


def sequences(text: str) -> list[Part]:
    """Parse the argument of ``-F``."""
    try:
        return parse(text, FIELDS, _NUMBERS)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
