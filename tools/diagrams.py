"""Draw the documentation's state machines and tables from the code, and the README's picture.

    python -m tools.diagrams            update the documents and docs/path.svg
    python -m tools.diagrams --check    list what is out of date; exit status 1 if there is any

A drawing stands between ``<!-- drawn: NAME -->`` and ``<!-- end -->``. Other text is not changed.
"""

import argparse
import ast
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from headwater import connection as transitions
from headwater.link import link
from headwater.mqtt import session as mqtt
from headwater.mqtt import spec
from headwater_host.inspect.mqtt import NAMES
from headwater_host.mq.structures import LAYOUTS
from headwater_spark.options import OPTIONS, Option
from headwater_spark.servers import BROKER, CONSUMER, HUB, PUBLISHER
from headwater_spark.tables import (
    BADBLOCKS,
    DECODED,
    DEVICE_HEALTH,
    FRAMES,
    LOGICAL_MESSAGES,
    MESSAGES,
    POSITIONS,
    QUARANTINE,
    RECONCILIATION,
    TELEMETRY,
    Table,
)
from tools import client_tables, hub_tables, option_tables
from tools.toolchain import ROOT

_PLACE = re.compile(r"(<!-- drawn: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_PACKETS = list(NAMES[1:15])
_CONNECTION = ["IDLE", "CONNECTING", "ONLINE", "CLOSING", "ERROR"]
_EVENTS = ["OPEN", "ACCEPT", "FINISH", "FAIL", "LOST"]
_DELIVERY = ["FREE", "AT1", "AT2", "REL", "DONE", "STRAY", "WRONG"]
_ACKS = ["PUBACK", "PUBREC", "PUBCOMP"]
_LINK = ["IDLE", "OPENING", "HALF", "UP", "CLOSING", "ENDED"]
_LINK_EVENTS = ["OPEN", "CLOSE", "HEARD", "NAMED", "CHANGED", "FINISHED", "REFUSED", "DEAD", "DONE"]


def machine(
    states: Sequence[str], events: Sequence[str], table: Mapping[tuple[int, int], int], first: str
) -> str:
    """Draw a Mermaid state diagram. Events that do not change the state have no arrow."""
    arrows: dict[tuple[int, int], list[str]] = {}
    for (state, event), after in table.items():
        if after != state:
            arrows.setdefault((state, after), []).append(events[event])
    lines = [
        f"    {states[a]} --> {states[b]}: {', '.join(names)}" for (a, b), names in sorted(arrows.items())
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {first}", *lines, "```", ""])


def grid(corner: str, rows: Sequence[str], columns: Sequence[str], cell: Callable[[int, int], str]) -> str:
    """Write a Markdown table, one cell per row and column."""
    lines = [[corner, *columns], ["---"] * (len(columns) + 1)]
    lines += [[name, *(cell(r, c) for c in range(len(columns)))] for r, name in enumerate(rows)]
    return "".join("|" + "".join(f" {text} |" if text else " |" for text in line) + "\n" for line in lines)


def numbered(module: object, names: Sequence[str]) -> None:
    """Raise ValueError unless the module numbers these names 0, 1, 2 and so on, as a diagram assumes."""
    for number, name in enumerate(names):
        if getattr(module, name) != number:
            raise ValueError(f"{name} is not {number}")


def _split(table: bytes, columns: int) -> dict[tuple[int, int], int]:
    return {(i // columns, i % columns): after for i, after in enumerate(table)}


def mqtt_connection() -> str:
    """Draw the states of an MQTT connection."""
    numbered(transitions, _CONNECTION)
    numbered(transitions, _EVENTS)
    table = _split(transitions.NEXT, transitions.EVENTS)
    return (
        machine(_CONNECTION, _EVENTS, table, "IDLE")
        + "\n"
        + grid("state", _CONNECTION, _EVENTS, lambda state, event: _CONNECTION[table[state, event]])
    )


def mqtt_packets() -> str:
    """Draw the table of packets that each end accepts in each state."""
    for number, name in enumerate(_PACKETS, 1):
        if getattr(spec, name) != number:
            raise ValueError(f"{name} is not {number}")

    def cell(kind: int, column: int) -> str:
        takes = (mqtt.CLIENT_TAKES, mqtt.SERVER_TAKES)[column // 2][1 + column % 2]
        return "yes" if takes >> (kind + 1) & 1 else ""

    columns = [f"{end}, {state}" for end in ("client", "server") for state in ("CONNECTING", "ONLINE")]
    return grid("packet", _PACKETS, columns, cell)


def mqtt_delivery() -> str:
    """Draw the states of a published message at QoS 1 or 2."""
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
    """Draw the states of a channel of the serial link."""
    numbered(link, _LINK)
    numbered(link, _LINK_EVENTS)
    table = _split(link.NEXT, link.EVENTS)
    return grid(
        "state",
        _LINK,
        _LINK_EVENTS,
        lambda state, event: _LINK[table[state, event]] if table[state, event] != state else "",
    )


def listing(rows: Sequence[Sequence[str]]) -> str:
    """Write rows as a block of aligned text columns."""
    widths = [max(len(cell) for cell in column) for column in list(zip(*rows, strict=True))[:-1]]
    lines = (
        "  ".join([*(f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    )
    return "\n".join(["```text", *(line.rstrip() for line in lines), "```", ""])


def spark_options(options: Sequence[Option] = OPTIONS) -> str:
    """List the options of a Spark format: name, default, meaning."""
    return listing(
        [
            (option.name, "-" if option.default is None else str(option.default).lower(), option.what)
            for option in options
        ]
    )


def columns(table: Table, without: Table | None = None) -> str:
    """List a Spark table's columns, or those that another table does not have: name, type, meaning."""
    left_out = set(without.columns) if without else set()
    return listing(
        [
            (column.name, column.type, column.what.replace("`", ""))
            for column in table.columns
            if column not in left_out
        ]
    )


def header_fields(name: str) -> str:
    """List the fields of an IBM MQ header: offset, field, type, default."""
    kinds = {"c": "char {}", "b": "byte {}", "l": "MQLONG", "f": "MQLONG, flags"}
    shown: dict[int | bytes | None, str] = {None: "273 or 546", b"": "NULs", b"        ": "blanks"}
    rows = []
    for field, offset, size, kind, default in LAYOUTS[name][3]:
        text = shown.get(default) or (f'"{default.decode()}"' if isinstance(default, bytes) else str(default))
        rows.append((f"{offset:3}", field, kinds[kind].format(size), text))
    return listing(rows)


def subject(module: Path) -> str:
    """Return the first sentence of a module's docstring, without references and markup.

    A long sentence is cut at a colon, semicolon or parenthesis, unless the text before only names a command.
    Raises ValueError if there is no docstring.
    """
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))
    if not text:
        raise ValueError(f"{module} has no docstring")
    paragraph = " ".join(text.partition("\n\n")[0].split()).replace("`", "")
    sentence = re.split(r"(?<!\.)\. ", re.sub(r" \(docs/[^)]*\)", "", paragraph))[0]
    head = re.split(r"[:;] | \(", sentence)[0]
    names_a_command = head.startswith(("headwater ", "-", "sub "))
    if len(sentence) > _LONG and head.count(" ") >= 2 and not names_a_command:
        sentence = head
    return sentence.removesuffix(".")


def modules(package: str) -> str:
    """List the modules of a package, each with the first sentence of its docstring."""
    folder = ROOT / package
    names = (
        (path, path.relative_to(folder).with_suffix("").as_posix().removesuffix("__init__"))
        for path in sorted(folder.rglob("*.py"))
    )
    return listing([(name, subject(path)) for path, name in names if name])


#: A description of a module that is longer is shortened.
_LONG = 64
#: The packages whose modules docs/architecture.md lists.
PACKAGES = {
    "modules-core": "sdk/headwater",
    "modules-board": "ports/micropython/headwater_board",
    "modules-host": "ports/cpython/headwater_host",
    "modules-mq": "ports/cpython/headwater_mq",
    "modules-spark": "ports/spark/headwater_spark",
}

DRAWINGS: Mapping[str, Callable[[], str]] = {
    "client-options": client_tables.client_options,
    **{name: partial(modules, package) for name, package in PACKAGES.items()},
    **{f"fields-{name.lower()}": partial(header_fields, name) for name in LAYOUTS if name != "MQMD1"},
    **option_tables.drawings(),
    **hub_tables.drawings(),
    "spark-options": spark_options,
    "spark-hub-options": lambda: spark_options(CONSUMER),
    "spark-sink-options": lambda: spark_options([*PUBLISHER, *(one for one in BROKER if one not in HUB)]),
    "spark-frames": lambda: columns(FRAMES),
    "spark-decoded": lambda: columns(DECODED, FRAMES),
    "spark-badblocks": lambda: columns(BADBLOCKS),
    "spark-positions": lambda: columns(POSITIONS),
    "spark-messages": lambda: columns(MESSAGES),
    "spark-logical-messages": lambda: columns(LOGICAL_MESSAGES),
    "spark-telemetry": lambda: columns(TELEMETRY),
    "spark-quarantine": lambda: columns(QUARANTINE),
    "spark-device-health": lambda: columns(DEVICE_HEALTH),
    "spark-reconciliation": lambda: columns(RECONCILIATION),
    "mqtt-connection": mqtt_connection,
    "mqtt-packets": mqtt_packets,
    "mqtt-delivery": mqtt_delivery,
    "link-channel": link_channel,
}


#: The README's picture: title, text lines, x of each box.
_BOXES = [
    ("Board", ["MicroPython", "ESP32, Pico W", "outbox on flash"], 10),
    ("Gateway", ["Raspberry Pi or server", "MQTT, FMQ, serial links", "syncs, then acknowledges"], 250),
    ("Capture log", ["raw frames,", "checksummed blocks,", "duplicates marked"], 490),
    ("Spark", ["decodes, deduplicates,", "reassembles;", "Parquet tables"], 730),
]
_WIDTH, _HEIGHT, _TOP = 180, 100, 16
#: The text above and below the arrow behind each box but the last.
_ARROWS = [("WiFi or", "serial"), ("durable", "append"), ("batch", "run")]
_STYLE = """  <style>
    text { font: 13px sans-serif; fill: #1f2328; text-anchor: middle }
    .title { font-weight: bold; font-size: 15px }
    .note { font-size: 11px }
    rect { fill: #f6f8fa; stroke: #59636e }
    path { stroke: #59636e; fill: none; marker-end: url(#head) }
    #head path { fill: #59636e; stroke: none; marker-end: none }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc }
      rect { fill: #151b23; stroke: #9198a1 }
      path { stroke: #9198a1 }
      #head path { fill: #9198a1 }
    }
  </style>
  <marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">
    <path d="M0 0 L8 4 L0 8 z"/>
  </marker>"""


def path_picture() -> str:
    """Draw the path of a message, from board to table, as SVG."""
    lines = []
    middle = _TOP + _HEIGHT // 2

    def write(x: int, y: int, text: str, css: str = "") -> None:
        style = f'class="{css}" ' if css else ""
        lines.append(f'  <text {style}x="{x}" y="{y}">{text}</text>')

    for title, texts, x in _BOXES:
        lines.append(f'  <rect x="{x}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" rx="8"/>')
        write(x + _WIDTH // 2, _TOP + 24, title, "title")
        for number, text in enumerate(texts):
            write(x + _WIDTH // 2, _TOP + 48 + 19 * number, text)
    for (_, _, x), (above, below) in zip(_BOXES, _ARROWS, strict=False):
        begin, end = x + _WIDTH, x + 240
        lines.append(f'  <path d="M{begin} {middle} H{end - 1}"/>')
        write((begin + end) // 2 - 2, middle - 8, above, "note")
        write((begin + end) // 2 - 2, middle + 16, below, "note")
    gateway = _BOXES[1][2] + _WIDTH // 2
    lines.append(f'  <path d="M{gateway} {_TOP + _HEIGHT} V{_TOP + _HEIGHT + 28}"/>')
    write(gateway, _TOP + _HEIGHT + 46, "MQTT broker, FMQ hub, IBM MQ")
    title = "A message goes from a board through a gateway and its capture log to Spark tables."
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 170" role="img">',
            f"  <title>{title}</title>",
            _STYLE,
            *lines,
            "</svg>\n",
        ]
    )


def redrawn(text: str) -> str:
    """Return a document's text with its drawings up to date."""
    return _PLACE.sub(lambda place: place[1] + DRAWINGS[place[2]]() + place[3], text)


def wanted(folder: Path = ROOT / "docs") -> dict[Path, str]:
    """Map every document and picture of a folder to the text that it should have."""
    texts = {path: redrawn(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.md"))}
    return texts | {path: path_picture() for path in folder.glob("path.svg")}


def outdated(folder: Path = ROOT / "docs") -> list[Path]:
    """List the documents and pictures that differ from the code."""
    return [path for path, text in wanted(folder).items() if path.read_text(encoding="utf-8") != text]


def main() -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only list what is out of date")
    check: bool = parser.parse_args().check
    texts = wanted()
    old = outdated()
    for path in old:
        print(("out of date: " if check else "drawn: ") + str(path.relative_to(ROOT)))
        if not check:
            path.write_text(texts[path], encoding="utf-8")
    return 1 if check and old else 0


if __name__ == "__main__":
    sys.exit(main())
