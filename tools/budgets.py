"""Flash and heap that the components of headwater take on a board, and the budget of each.

    python -m tools.budgets             measure, and say what is above its budget
    python -m tools.budgets --update    make what was measured the budget, and write the table of docs/sizes.md

The budgets are in ``tests/alloc/budgets.json``, and ``tests/alloc/test_budgets.py`` holds them. ``import`` is the heap
that importing takes, ``connect`` that and a connected client with 512 bytes each to receive, to send and to keep what
is unacknowledged; on 64 bits (the unix build) and on 32 bits (WebAssembly).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tools import toolchain
from tools.components.build import Built, build, members_of, port_file, write
from tools.components.romfs import FOLDER as LIB
from tools.components.romfs import image
from tools.components.table import NUMBERS
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
    """Modules of a component that a program imports; ``connect`` makes and connects ``client``.

    With ``romfs`` they run from an image: what that takes, in memory here and in flash on a board, does not count.
    """

    modules: tuple[str, ...]
    connect: str = ""
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
_KEEPER = f"{_CLIENT}from headwater.mqtt.keeper import Keeper\nkeeper = Keeper(client)\n"
# The ACK to AUTH, whose id is the first that a board without a number makes: process 5, no session, no time.
_FMQ = f"""
from headwater.fmq.client import Client
answer = b"\\xe0\\0\\0\\xb0\\x01\\0\\0\\0\\0\\0\\0\\x01\\x07\\x31\\0\\x31\\x05\\x20\\xb1\\0"
client = Client(Dialer(answer), b"board", {_SIZES})
"""
_FMQ_KEEPER = f"{_FMQ}from headwater.fmq.keeper import Keeper\nkeeper = Keeper(client)\n"
_WIFI_CLIENT = """
from headwater.mqtt.client import Client
from headwater.mqtt.keeper import Keeper
from headwater_board.flash import flash_outbox
from headwater_board.tcp import Tcp
from headwater_board.wifi import Wifi
outbox = flash_outbox(__file__ + ".outbox", 512)
client = Client(Dialer(b"\\x20\\x02\\0\\0"), b"board", rx_size=512, tx_size=512, outbox=outbox)
keeper = Keeper(client, (client.dialer, Tcp("broker.local")), network=Wifi([("ssid", "password")]))
"""
_MQTT = ("headwater.mqtt.client",)
_WIFI = ("headwater_board.wifi",)
_LIFE = tuple(f"headwater_board.{name}" for name in ("boots", "watchdog", "sleep", "clock", "logs"))
_FMQ_CLIENT = ("headwater.fmq.client",)
_ALL = (*_MQTT, "headwater.mqtt.v5", "headwater.mqtt.v31")

PARTS: dict[str, Part] = {
    "headwater-mqtt": Part(_MQTT, _CLIENT),
    "headwater-mqtt, reconnecting": Part((*_MQTT, "headwater.mqtt.keeper"), _KEEPER),
    "headwater-mqtt5": Part((*_MQTT, "headwater.mqtt.v5"), _CLIENT5),
    "headwater-mqtt5, all versions": Part(_ALL, _CLIENT5),
    "headwater-fmq": Part(_FMQ_CLIENT, _FMQ),
    "headwater-fmq, reconnecting": Part((*_FMQ_CLIENT, "headwater.fmq.keeper"), _FMQ_KEEPER),
    "headwater-wifi": Part(_WIFI),
    "headwater-mqtt, reconnecting, -store, -wifi, TCP": Part(
        (*_MQTT, "headwater.mqtt.keeper", "headwater_board.flash", "headwater_board.tcp", *_WIFI),
        _WIFI_CLIENT,
    ),
    "headwater-link": Part(("headwater.link.link",)),
    "headwater-store": Part(("headwater.journal",)),
    "headwater-life": Part(_LIFE),
    "headwater-device": Part(("headwater_board.device",)),
    "headwater-update": Part(("headwater_board.loader", "headwater_board.ota")),
    "headwater-ibmmq": Part(("headwater.ibmmq.segments",)),
}
PARTS |= {f"ROMFS: {name}": replace(part, romfs=True) for name, part in PARTS.items()}

_MOUNT = """
import vfs
with open({image!r}, "rb") as f:
    rom = f.read()
vfs.mount(vfs.VfsRom(rom), "/rom")
"""
# Empty objects stand for modules that take no heap on a board, and that this machine's MicroPython does not have.
_PORT = """
import sys
class Port:
    AF_INET = SOCK_STREAM = POLLIN = POLLOUT = POLLERR = POLLHUP = 0
    STAT_GOT_IP = 3
    def __init__(self, *_):
        pass
Port.WLAN = Port.poll = Port
for name in ("network", "socket", "select"):
    if name == "network" or sys.platform == "webassembly":
        sys.modules[name] = Port
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
    """Return the figures of the parts."""
    with components() as (built, folder):
        return {name: measure_part(PARTS[name], built, folder) for name in names}


@contextlib.contextmanager
def components() -> Iterator[tuple[Built, Path]]:
    """Build the components; yield them and the folder that `measure_part` reads them from."""
    with tempfile.TemporaryDirectory() as folder:
        built = build()
        write(built, Path(folder) / "components")
        yield built, Path(folder)


def measure_part(part: Part, built: Built, folder: Path) -> Figures:
    """Return the figures of one part of `components`. Raises RuntimeError if it does not run."""
    library = folder / "components" / LIB
    core, ports = members_of(built, part.modules)
    names = [built.file(unit, ".mpy") for unit in core] + [port_file(module, ".mpy") for module in ports]
    files = {name: library / name for name in names}
    # A file that only a program without the component's other files would load does not count.
    files = {name: path for name, path in files.items() if not _is_numbers(name)}
    found = {"mpy": sum(path.stat().st_size for path in files.values())}
    script = folder / "script" / "measure.py"
    script.parent.mkdir(exist_ok=True)
    mount, path = "", library
    if part.romfs:
        rom = folder / "part.romfs"
        rom.write_bytes(image(files))
        found["image"] = rom.stat().st_size
        mount, path = _MOUNT.format(image=str(rom)), Path("/rom") / LIB
    connect = part.connect + _CONNECTED.replace("assert client.connected\n", "") if part.connect else ""
    port = _PORT if len(ports) > 1 else ""
    script.write_text(mount + port + _MEASURE.format(modules=list(part.modules), connect=connect))
    for runtime, bits in (("micropython", 64), ("wasm", 32)):
        script.with_name(f"{script.name}.outbox").unlink(missing_ok=True)
        # MicroPython in WebAssembly knows no ROMFS.
        if toolchain.find(runtime) is None or (part.romfs and runtime == "wasm"):
            continue
        done = RUNTIMES[runtime](script, path=[path])
        if done.returncode:
            raise RuntimeError(f"on {runtime}: {done.stdout}")
        for line in done.stdout.splitlines():
            figure, value = line.split()
            found[f"{figure} {bits}"] = int(value)
    return found


def _is_numbers(name: str) -> bool:
    return name.removesuffix(".mpy").replace("/", ".") in NUMBERS


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


def table(figures: Mapping[str, Figures]) -> str:
    """Return the figures in Markdown: for each part those of its files and those of its image."""
    head = (
        "| component | files: flash | import, 64 bits | 32 bits | connected, 64 bits | 32 bits "
        "| ROMFS: flash | import, 64 bits | connected, 64 bits |\n"
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|\n"
    )
    rows = []
    for name, row in figures.items():
        rom = figures.get(f"ROMFS: {name}")
        if rom is None:
            continue
        cells = [row.get(one) for one in ("mpy", "import 64", "import 32", "connect 64", "connect 32")]
        cells += [rom.get(one) for one in ("image", "import 64", "connect 64")]
        rows.append(f"| {name} | {' | '.join('' if one is None else f'{one:,}' for one in cells)} |\n")
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
