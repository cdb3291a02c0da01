"""What parts of headwater may cost a board: flash (.mpy) and heap, beside what they do cost.

    python -m tools.budgets             measure, and say what is above its budget
    python -m tools.budgets --update    make what was measured the budget, and write the table of docs/sizes.md

The budgets are in ``tests/alloc/budgets.json``, and ``tests/alloc/test_budgets.py`` holds them. ``import`` is the heap
that importing takes, ``connect`` that and a connected client with 512 bytes each to receive, to send and to keep what
is unacknowledged; on 64 bits (the unix build) and on 32 bits (WebAssembly).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tools import mpy, sizes, toolchain
from tools.components.build import Options, build, write
from tools.components.program import PACKAGE
from tools.components.romfs import FOLDER as LIB
from tools.components.romfs import image
from tools.runtimes import RUNTIMES
from tools.toolchain import ROOT

BUDGETS = ROOT / "tests" / "alloc" / "budgets.json"
DOCS = ROOT / "docs" / "sizes.md"
#: How far a figure may be above its budget: a compiler's next release may well make it so much.
MARGIN = 0.02
BEGIN, END = "<!-- sizes: begin -->", "<!-- sizes: end -->"

Figures = dict[str, int]


@dataclass(frozen=True)
class Part:
    """``what`` is bundled, or, as ``modules``, imported as it is. ``connect`` makes and connects ``client``.

    As ``romfs`` the bundle is run in an image: what that takes, in memory here and in flash on a board, does not count.
    """

    what: tuple[str, ...]
    connect: str = ""
    modules: bool = False
    options: Options = field(default_factory=Options)
    romfs: bool = False


_SIZES = "rx_size=512, tx_size=512, outbox_size=512"
_CLIENT = f"""
from headwater.mqtt.client import Client
client = Client(Dialer(b"\\x20\\x02\\0\\0"), b"board", {_SIZES})
"""
_CLIENT5 = f"""
from headwater.mqtt.client import Client
from headwater.mqtt.v5 import ClientV5
client = Client(Dialer(b"\\x20\\x03\\0\\0\\0"), b"board", version=ClientV5(), {_SIZES})
"""
# What examples/device/uptime.py does, at 5.0, and at a version that is chosen when it runs.
_UPTIME5 = f"""{_CLIENT5}
client.on_message = lambda message: print(message.topic_text(), message.payload_bytes())
def go_on():
    client.subscribe(b"commands", 1)
    while client.wait(1000) == 0:
        client.publish(b"uptime", b"1", 1)
"""
_UPTIME_ANY = f"""{_UPTIME5}
from headwater.mqtt.v31 import V31
VERSIONS = {{3: V31, 5: ClientV5}}
"""
_KEEPER = f"{_CLIENT}from headwater.mqtt.keeper import Keeper\nkeeper = Keeper(client)\n"
# The ACK to AUTH, whose id is the first that a board without a number makes: process 5, no session, no time.
_FMQ = f"""
from headwater.fmq.client import Client
answer = b"\\xe0\\0\\0\\xb0\\x01\\0\\0\\0\\0\\0\\0\\x01\\x07\\x31\\0\\x31\\x05\\x20\\xb1\\0"
client = Client(Dialer(answer), b"board", {_SIZES})
"""
_FMQ_KEEPER = f"{_FMQ}from headwater.fmq.keeper import Keeper\nkeeper = Keeper(client)\n"
_FMQ_KEPT = ("headwater.fmq.client", "headwater.fmq.keeper")
_CLIENT_5 = ("headwater.mqtt.client", "headwater.mqtt.v5")
_ALL = (*_CLIENT_5, "headwater.mqtt.v31")
_UPTIME = Options(only_used=True, texts=False)

PARTS: dict[str, Part] = {
    **{name: Part(entries, modules=True) for name, entries in sizes.COMPONENTS.items()},
    "client": Part(("headwater.mqtt.client",), _CLIENT, modules=True),
    "client, kept": Part(("headwater.mqtt.client", "headwater.mqtt.keeper"), _KEEPER, modules=True),
    "client of 5.0": Part(_CLIENT_5, _CLIENT5, modules=True),
    "client of 3.1, 3.1.1 and 5.0": Part(_ALL, _CLIENT5, modules=True),
    "fmq client": Part(("headwater.fmq.client",), _FMQ, modules=True),
    "fmq client, kept": Part(_FMQ_KEPT, _FMQ_KEEPER, modules=True),
    "bundle: client": Part(("headwater.mqtt.client",), _CLIENT),
    "bundle: client, kept": Part(("headwater.mqtt.client", "headwater.mqtt.keeper"), _KEEPER),
    "bundle: client of 5.0": Part(_CLIENT_5, _CLIENT5),
    "bundle: client of 3.1, 3.1.1 and 5.0": Part(_ALL, _CLIENT5),
    "bundle: fmq client": Part(("headwater.fmq.client",), _FMQ),
    "bundle: fmq client, kept": Part(_FMQ_KEPT, _FMQ_KEEPER),
    "bundle: MQMDE": Part(("headwater.ibmmq.header",)),
    "bundle: what uptime.py uses": Part(("examples/device/uptime.py",), _CLIENT, options=_UPTIME),
    "bundle: the same at 5.0": Part((), _UPTIME5, options=_UPTIME),
    "bundle: the same at 3.1, 3.1.1 and 5.0": Part((), _UPTIME_ANY, options=_UPTIME),
}
PARTS |= {
    f"ROMFS: {name.removeprefix('bundle: ')}": replace(part, romfs=True)
    for name, part in PARTS.items()
    if name.startswith("bundle: ")
}

_MOUNT = """
import vfs
with open({image!r}, "rb") as f:
    rom = f.read()
vfs.mount(vfs.VfsRom(rom), "/rom")
"""
_MEASURE = """
import gc
class Line:
    def __init__(self, answer):
        self.answer = answer
    def readinto(self, buf, n):
        n = len(self.answer)
        buf[:n] = self.answer
        self.answer = b""
        return n or None
    def write(self, buf, off, n):
        return n
    def close(self):
        pass
class Dialer:
    def __init__(self, answer):
        self.answer = answer
    def open(self):
        return Line(self.answer)
    def ticks_ms(self):
        return 0
    def wait(self, ms):
        pass
gc.collect()
before = gc.mem_alloc()
for name in {modules!r}:
    __import__(name)
gc.collect()
after = gc.mem_alloc()
print("import", after - before)
{connect}
"""
_CONNECTED = """
client.connect()
assert client.connected
gc.collect()
print("connect", gc.mem_alloc() - before)
"""


def measure(names: Iterable[str] = tuple(PARTS)) -> dict[str, Figures]:
    """The figures of the parts."""
    return {name: _measured(PARTS[name]) for name in names}


def _measured(part: Part) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        what = [str(ROOT / one) if one.endswith(".py") else one for one in part.what]
        if part.options.only_used:
            # What connects is one of the programs.
            what.append(f"{folder}/connect.py")
            Path(what[-1]).write_text(part.connect + _CONNECTED)
        made: dict[str, Path] = {}
        if part.modules:
            library = mpy.compiled(mpy.SDK)
            imported = sizes.in_import_order(sizes.imports(mpy.SDK), part.what)
            files = [_file(library, name) for name in imported]
        else:
            library = Path(folder) / "bundle"
            made = write(build(what, part.options), library, part.options)
            imported = [PACKAGE, *(one for one in part.what if not one.endswith(".py"))]
            files = [path for name, path in made.items() if name.startswith(f"{PACKAGE}/")]
        found = {"mpy": sum(path.stat().st_size for path in files)}
        script = Path(folder) / "script" / "measure.py"
        script.parent.mkdir()
        mount = ""
        if part.romfs:
            rom = Path(folder) / "bundle.romfs"
            rom.write_bytes(image(made))
            mount, library = _MOUNT.format(image=str(rom)), Path("/rom") / LIB
        connect = part.connect + _CONNECTED.replace("assert client.connected\n", "") if part.connect else ""
        script.write_text(mount + _MEASURE.format(modules=imported, connect=connect))
        for runtime, bits in (("micropython", 64), ("wasm", 32)):
            # MicroPython in WebAssembly knows no ROMFS.
            if toolchain.find(runtime) is None or (part.romfs and runtime == "wasm"):
                continue
            done = RUNTIMES[runtime](script, path=[library])
            if done.returncode:
                raise RuntimeError(f"on {runtime}: {done.stdout}")
            for line in done.stdout.splitlines():
                figure, value = line.split()
                found[f"{figure} {bits}"] = int(value)
    return found


def _file(library: Path, module: str) -> Path:
    path = library.joinpath(*module.split("."))
    return path / "__init__.mpy" if (path / "__init__.mpy").exists() else path.with_suffix(".mpy")


def above(measured: Mapping[str, Figures], budgets: Mapping[str, Figures]) -> list[str]:
    """What costs more than its budget and the margin, and what has none: a line each."""
    found = []
    for name, figures in measured.items():
        for figure, value in figures.items():
            budget = budgets.get(name, {}).get(figure)
            if budget is None:
                found.append(f"{name}: {figure} has no budget; it is {value:,}")
            elif value > budget * (1 + MARGIN):
                found.append(
                    f"{name}: {figure} is {value:,}, its budget {budget:,} ({value / budget - 1:+.1%})"
                )
    return found


def load() -> dict[str, Figures]:
    """The budgets."""
    budgets: dict[str, Figures] = json.loads(BUDGETS.read_text(encoding="utf-8"))
    return budgets


COLUMNS = ("mpy", "import 64", "import 32", "connect 64", "connect 32")


def table(figures: Mapping[str, Figures]) -> str:
    """The figures in Markdown."""
    head = "| part | .mpy | import, 64 bits | 32 bits | and connect, 64 bits | 32 bits |\n|---|--:|--:|--:|--:|--:|\n"
    rows = [
        f"| {name} | {' | '.join(f'{row[one]:,}' if one in row else '' for one in COLUMNS)} |\n"
        for name, row in figures.items()
    ]
    return head + "".join(rows)


def with_table(text: str, figures: Mapping[str, Figures]) -> str:
    """The page with the table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(figures)}{END}{after}"


def main() -> int:
    """Measure, and compare or update."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.budgets",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--update", action="store_true", help="make what is measured the budget")
    chosen = parser.parse_args()
    if chosen.update:
        missing = [name for name in RUNTIMES if toolchain.find(name) is None]
        if missing:
            print(f"budgets: cannot measure without {', '.join(missing)}", file=sys.stderr)
            return 1
    measured = measure()
    if chosen.update:
        BUDGETS.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
        DOCS.write_text(with_table(DOCS.read_text(encoding="utf-8"), measured), encoding="utf-8")
    print(table(measured), end="")
    found = above(measured, load())
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
