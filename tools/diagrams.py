"""Draws the state machines' tables into the documentation, so that it shows what the code does.

    python -m tools.diagrams            write them
    python -m tools.diagrams --check    say which documents are out of date; exit status 1 if any

A drawing stands between ``<!-- drawn: NAME -->`` and ``<!-- end -->``; everything else in a document is left alone.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headwater import transitions
from headwater.link import link
from headwater.mqtt import spec
from headwater.mqtt import transitions as mqtt
from tools.toolchain import ROOT

_PLACE = re.compile(r"(<!-- drawn: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_PACKETS = [
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
]
_CONNECTION = ["IDLE", "CONNECTING", "ONLINE", "CLOSING", "ERROR"]
_EVENTS = ["OPEN", "ACCEPT", "FINISH", "FAIL", "LOST"]
_DELIVERY = ["FREE", "AT1", "AT2", "REL", "DONE", "STRAY", "WRONG"]
_ACKS = ["PUBACK", "PUBREC", "PUBCOMP"]
_LINK = ["IDLE", "OPENING", "HALF", "UP", "CLOSING", "ENDED"]
_LINK_EVENTS = ["OPEN", "CLOSE", "HEARD", "NAMED", "CHANGED", "FINISHED", "REFUSED", "DEAD", "DONE"]


def machine(
    states: Sequence[str], events: Sequence[str], table: Mapping[tuple[int, int], int], first: str
) -> str:
    """A state diagram in Mermaid; an event that leaves the state as it is has no arrow."""
    arrows: dict[tuple[int, int], list[str]] = {}
    for (state, event), after in table.items():
        if after != state:
            arrows.setdefault((state, after), []).append(events[event])
    lines = [
        f"    {states[a]} --> {states[b]}: {', '.join(names)}" for (a, b), names in sorted(arrows.items())
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {first}", *lines, "```", ""])


def grid(corner: str, rows: Sequence[str], columns: Sequence[str], cell: Callable[[int, int], str]) -> str:
    """A Markdown table."""
    lines = [[corner, *columns], ["---"] * (len(columns) + 1)]
    lines += [[name, *(cell(r, c) for c in range(len(columns)))] for r, name in enumerate(rows)]
    return "".join("|" + "".join(f" {text} |" if text else " |" for text in line) + "\n" for line in lines)


def numbered(module: object, names: Sequence[str]) -> None:
    """Check that the names are numbered in this order in the module: the drawing must not mix them up."""
    for number, name in enumerate(names):
        if getattr(module, name) != number:
            raise ValueError(f"{name} is not {number}")


def _split(table: bytes, columns: int) -> dict[tuple[int, int], int]:
    return {(i // columns, i % columns): after for i, after in enumerate(table)}


def mqtt_connection() -> str:
    """The connection's states."""
    numbered(transitions, _CONNECTION)
    numbered(transitions, _EVENTS)
    table = _split(transitions.NEXT, transitions.EVENTS)
    return (
        machine(_CONNECTION, _EVENTS, table, "IDLE")
        + "\n"
        + grid("state", _CONNECTION, _EVENTS, lambda state, event: _CONNECTION[table[state, event]])
    )


def mqtt_packets() -> str:
    """Which packets may arrive, by state."""
    for number, name in enumerate(_PACKETS, 1):
        if getattr(spec, name) != number:
            raise ValueError(f"{name} is not {number}")

    def cell(kind: int, column: int) -> str:
        takes = (mqtt.CLIENT_TAKES, mqtt.SERVER_TAKES)[column // 2][1 + column % 2]
        return "yes" if takes >> (kind + 1) & 1 else ""

    columns = [f"{end}, {state}" for end in ("client", "server") for state in ("CONNECTING", "ONLINE")]
    return grid("packet", _PACKETS, columns, cell)


def mqtt_delivery() -> str:
    """The states of a message at QoS 1 or 2."""
    numbered(transitions, _DELIVERY)
    columns = [spec.PUBACK, spec.PUBREC, spec.PUBCOMP]
    table = {
        (state, c): mqtt.DELIVERY[state * 4 + kind - spec.PUBACK]
        for state in range(transitions.DONE + 1)
        for c, kind in enumerate(columns)
    }
    flying = {
        at: after
        for at, after in table.items()
        if at[0] in (transitions.AT1, transitions.AT2, transitions.REL)
    }
    drawn = machine(_DELIVERY, _ACKS, flying, "AT1: publish at QoS 1")
    drawn = drawn.replace("    AT1 -->", "    [*] --> AT2: publish at QoS 2\n    AT1 -->", 1)
    return (
        drawn
        + "\n"
        + grid(
            "state", _DELIVERY[: transitions.DONE + 1], _ACKS, lambda state, ack: _DELIVERY[table[state, ack]]
        )
    )


def link_channel() -> str:
    """The states of a channel of the serial link."""
    numbered(link, _LINK)
    numbered(link, _LINK_EVENTS)
    table = _split(link.NEXT, link.EVENTS)
    return grid(
        "state",
        _LINK,
        _LINK_EVENTS,
        lambda state, event: _LINK[table[state, event]] if table[state, event] != state else "",
    )


DRAWINGS: Mapping[str, Callable[[], str]] = {
    "mqtt-connection": mqtt_connection,
    "mqtt-packets": mqtt_packets,
    "mqtt-delivery": mqtt_delivery,
    "link-channel": link_channel,
}


def redrawn(text: str) -> str:
    """A document with its drawings as they should be."""
    return _PLACE.sub(lambda place: place[1] + DRAWINGS[place[2]]() + place[3], text)


def outdated(folder: Path = ROOT / "docs") -> list[Path]:
    """The documents whose drawings differ from the tables."""
    return [
        path
        for path in sorted(folder.glob("*.md"))
        if redrawn(path.read_text(encoding="utf-8")) != path.read_text(encoding="utf-8")
    ]


def main() -> int:
    """The command line: the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit status 1 if a document is out of date"
    )
    check: bool = parser.parse_args().check
    old = outdated()
    for path in old:
        print(("out of date: " if check else "drawn: ") + str(path.relative_to(ROOT)))
        if not check:
            path.write_text(redrawn(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 1 if check and old else 0


if __name__ == "__main__":
    sys.exit(main())
