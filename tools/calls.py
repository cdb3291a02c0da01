"""Count the Python functions that one PUBLISH enters on the warm path, transport and handler included.

    python -m tools.calls            print the table
    python -m tools.calls --list     also name the functions, in order
    python -m tools.calls --update   write the table into docs/architecture.md

Each path runs three times before it is counted. The client publishes, or receives and acknowledges, over a transport in
memory whose two functions count as well.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from headwater.mqtt import spec5
from headwater.mqtt.client import Client
from headwater.mqtt.client5 import Client5
from headwater.mqtt.packets import Packet
from headwater.mqtt.properties import Properties
from headwater.mqtt.v5 import ClientV5
from tools.toolchain import ROOT

DOCS = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- calls: begin -->", "<!-- calls: end -->"
#: Before MQTT had one codec and one session for all versions (commit b41ee8a), measured in the same way.
BEFORE = {"out, QoS 1": 12, "out, QoS 1, MQTT 5.0 with one property": 30, "in, QoS 1": 22}
_TOPIC, _PAYLOAD = b"board/telemetry", b"0123456789abcdef"
_IN = b"\x32\x23\x00\x0fboard/telemetry\x00\x07" + _PAYLOAD


class Line:
    """A transport and a dialer in memory: reads give what ``incoming`` holds, writes are taken whole."""

    def __init__(self, connack: bytes):
        self.incoming = connack

    def open(self) -> Line:
        """Return the transport."""
        return self

    def readinto(self, buf: Any, n: int) -> int | None:
        """Read at most ``n`` bytes."""
        data, self.incoming = self.incoming[:n], self.incoming[n:]
        buf[: len(data)] = data
        return len(data) or None

    def write(self, buf: Any, off: int, n: int) -> int:
        """Take ``n`` bytes."""
        return n

    def close(self) -> None:
        """Do nothing."""

    def ticks_ms(self) -> int:
        """Return a time that stands still."""
        return 0

    def wait(self, ms: int) -> None:
        """Do nothing."""


def entered(call: Callable[[], object]) -> list[str]:
    """The Python functions that ``call`` enters, as file and name."""
    found: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            code = frame.f_code
            found.append(
                f"{Path(code.co_filename).stem}.{code.co_qualname if hasattr(code, 'co_qualname') else code.co_name}"
            )

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    # Without ``call`` itself.
    return found[1:]


def _handle(message: Packet) -> None:
    """What an application does with a message."""


def paths() -> dict[str, list[str]]:
    """The functions of each path."""
    client = Client(Line(b"\x20\x02\x00\x00"), b"board", keep_alive=0)
    line = client.dialer
    assert isinstance(line, Line)
    client.on_message = _handle
    client.connect()
    five = Client5(Line(b"\x20\x03\x00\x00\x00"), b"board", version=ClientV5(), keep_alive=0)
    five.connect()
    made = Properties(32)
    assert made.add(spec5.MESSAGE_EXPIRY_INTERVAL, 60) == 0

    def out() -> None:
        assert client.publish(_TOPIC, _PAYLOAD, 1) > 0

    def out_5() -> None:
        assert five.publish(_TOPIC, _PAYLOAD, 1, properties=made.block) > 0

    def receive() -> None:
        assert client.poll() == 0

    found = {}
    for name, call in zip(BEFORE, (out, out_5, receive), strict=True):
        for _ in range(4):
            line.incoming = _IN if call is receive else b""
            found[name] = entered(call)
    return found


def table(found: dict[str, list[str]]) -> str:
    """The counts in Markdown."""
    head = "| one PUBLISH | functions entered | at b41ee8a |\n|---|--:|--:|\n"
    return head + "".join(f"| {name} | {len(calls)} | {BEFORE[name]} |\n" for name, calls in found.items())


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.calls", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--list", action="store_true", help="also name the functions")
    parser.add_argument("--update", action="store_true", help="write the table into docs/architecture.md")
    chosen = parser.parse_args()
    found = paths()
    print(table(found), end="")
    if chosen.list:
        for name, calls in found.items():
            print(f"\n{name}:", *calls, sep="\n  ")
    if chosen.update:
        text = DOCS.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        if not after:
            print(f"calls: {DOCS} has no {BEGIN}", file=sys.stderr)
            return 1
        DOCS.write_text(f"{before}{BEGIN}\n{table(found)}{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
