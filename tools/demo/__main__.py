"""``./run demo``: four boards, a broker, a gateway and Spark on this machine, with faults on the way.

Two boards speak MQTT over TCP, one over a serial line through the gateway, and one speaks FMQ over TCP to the gateway's
hub. TCP links are cut, boards lose their power and come back, the serial line is disturbed. In the end each board sends
the file in which it wrote down what it did, in segments of 512 bytes. Then Spark turns the gateway's capture log into
tables, and every message that a board saw acknowledged is looked for in them, and every file.

The exit status is 0 when nothing acknowledged is lost or doubled, 1 when something is, 2 when the demo itself failed.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from tools.broker import BrokerError, start_broker
from tools.demo import result
from tools.demo.boards import HEAP, DemoBoard
from tools.demo.cable import Cable
from tools.toolchain import ROOT
from tools.virtual_board import BoardError

_TOPICS = ("headwater/+/telemetry:2", "headwater/+/record:1")
#: How long a packet takes over the links of b1 and b4, each way.
_WIFI_MS = 15
#: The serial line's speed: a message is some 300 bytes, which 115,200 baud carry 38 times a second.
_BAUD = 460800
_HEADWATER = (sys.executable, "-m", "headwater_host")


class DemoError(Exception):
    """A part of the demo did not do what it is there for."""


def say(text: str) -> None:
    """A line of progress, with the seconds since the start."""
    print(f"demo {time.monotonic() - _began:6.1f} s  {text}", flush=True)


_began = time.monotonic()


class Headwater:
    """The command ``headwater`` in a process; ``log`` is where what it says goes."""

    def __init__(self, log: Path, *arguments: str) -> None:
        """Start it."""
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headwater_host", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Headwater:
        """Nothing to do: it runs."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def text(self) -> str:
        """What it has said."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, text: str, timeout: float) -> None:
        """Wait until it has said ``text``."""
        deadline = time.monotonic() + timeout
        while text not in self.text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise DemoError(f"the gateway did not say {text!r}; it said:\n{self.text()}")
            time.sleep(0.05)

    def hub_port(self) -> int:
        """Where the gateway's hub listens."""
        found = re.search(r"listening on \S+, port (\d+)", self.text())
        if found is None:
            raise DemoError(f"the gateway did not say where its hub listens; it said:\n{self.text()}")
        return int(found[1])

    def stop(self, timeout: float) -> None:
        """Ask it to end, and wait until it has."""
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(timeout):
            raise DemoError(
                f"the gateway ended with status {self.process.returncode}; it said:\n{self.text()}"
            )


def run_headwater(*arguments: str, timeout: float) -> int:
    """Run ``headwater`` to its end, its output on ours; its status, 0 or 1."""
    done = subprocess.run([*_HEADWATER, *arguments], timeout=timeout, check=False)
    if done.returncode not in (0, 1):
        raise DemoError(f"headwater {arguments[0]} ended with status {done.returncode}")
    return done.returncode


def faults(boards: dict[str, DemoBoard], cables: dict[str, Cable], began: float, seconds: float) -> None:
    """Cut, pull and disturb, each at its time."""

    def at(part: float, what: str) -> None:
        time.sleep(max(0.0, began + part * seconds - time.monotonic()))
        say(what)

    def cut(name: str, part: float) -> None:
        at(part, f"{name}: the link is cut")
        cables[name].cut()
        at(part + 0.04, f"{name}: the link is mended")
        cables[name].mend()

    def restart(name: str, part: float) -> None:
        at(part, f"{name}: the power is cut")
        boards[name].board.power_cut()
        at(part + 0.06, f"{name}: the power is back")
        boards[name].set_time(began + seconds - time.monotonic())
        boards[name].board.power_on()

    for part in (0.15, 0.25, 0.35):
        cut("b1", part)
        cut("b4", part + 0.05)
    restart("b2", 0.45)
    restart("b4", 0.55)
    at(0.65, "b3: the serial line is disturbed (one byte in 200 is damaged)")
    noise = result.Noise(seed=3, one_in=200)
    boards["b3"].board.uart_filter = noise
    at(0.8, "b3: the serial line is quiet again")
    boards["b3"].board.uart_filter = lambda number, to_board, data: data
    say(f"b3: {noise.damaged} bytes were damaged on the way")


def wait_until_done(boards: dict[str, DemoBoard], timeout: float) -> None:
    """Wait until every board has said that everything it published is acknowledged."""
    deadline = time.monotonic() + timeout
    for name, board in boards.items():
        try:
            board.board.wait_for("done:", max(0.1, deadline - time.monotonic()))
        except BoardError as error:
            raise DemoError(f"{name} did not finish: {error}; it said:\n{board.board.log[-2000:]}") from None


def progress(boards: dict[str, DemoBoard], stop: threading.Event) -> None:
    """Every two seconds, what each board has published and seen acknowledged."""
    while not stop.wait(2):
        records = {name: board.record() for name, board in boards.items()}
        say(
            "   ".join(
                f"{name}: {len(record.sent)} sent, {len(record.acknowledged)} acknowledged"
                for name, record in records.items()
            )
        )


def run(out: Path, seconds: float, period_ms: int) -> int:
    """Run the demo into the directory ``out``; returns the exit status."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    capture = out / "capture"
    with ExitStack() as stack:
        broker = stack.enter_context(start_broker(out / "broker"))
        say(f"the broker is {type(broker).__name__.lower()}, on port {broker.port}")
        boards: dict[str, DemoBoard] = {}
        cables: dict[str, Cable] = {}

        def board_on(name: str, **how: object) -> DemoBoard:
            board = boards[name] = DemoBoard(name, out / name, how, period_ms=period_ms)
            stack.callback(board.board.close)
            return board

        def cable_to(name: str, port: int) -> int:
            cables[name] = stack.enter_context(Cable(port, delay_ms=_WIFI_MS))
            return cables[name].port

        board_on("b1", host="127.0.0.1", port=cable_to("b1", broker.port))
        board_on("b2", host="127.0.0.1", port=broker.port)
        line = board_on("b3", serial=0, baud=_BAUD).board.uart_ports[0]
        gateway = stack.enter_context(
            Headwater(
                out / "gateway.log",
                "gateway",
                *("--capture", str(capture)),
                *("--broker", f"{broker.host}:{broker.port}"),
                *(word for topic in _TOPICS for word in ("--topic", topic)),
                *("--serial", f"{line}:{_BAUD}"),
                *("--hub", str(out / "hub.db"), "--hub-port", "0"),
            )
        )
        gateway.wait_for("subscribed", 20)
        board_on("b4", host="127.0.0.1", port=cable_to("b4", gateway.hub_port()), protocol="fmq")
        say(f"the gateway is ready; it lands what it gets in {capture}")
        began = time.monotonic()
        for name, board in boards.items():
            board.set_time(seconds)
            board.board.start()
            say(f"{name}: MicroPython starts, {board.what}, with a heap of {HEAP}")
        finished = threading.Event()
        reporter = threading.Thread(target=progress, args=(boards, finished), daemon=True)
        reporter.start()
        faults(boards, cables, began, seconds)
        wait_until_done(boards, seconds + 40)
        finished.set()
        reporter.join()
        say("every board has everything acknowledged; the gateway finishes")
        # What the broker has acknowledged to a board may still be on its way; what the gateway has is on disk.
        acknowledged = {(name, *key) for name, board in boards.items() for key in board.record().acknowledged}
        records = {name: out / name / "sent.jsonl" for name in boards}
        acknowledged |= {(name, *result.record_of(path.stat().st_size)) for name, path in records.items()}
        missing = result.wait_for_messages(capture, acknowledged, 30)
        gateway.stop(20)
        if missing:
            say(f"{len(missing)} acknowledged messages have not come, the first of them {min(missing)}")
    say("Spark turns the capture log into tables, and compares them with what the boards wrote down")
    tables = out / "tables"
    sent = [word for path in records.values() for word in ("--sent", str(path))]
    status = run_headwater(
        "pipeline", "run", "--capture", str(capture), "--out", str(tables), *sent, timeout=240
    )
    wrong = result.verdict(tables / "report.json", list(boards), ["b2", "b4"])
    wrong += result.compare_records(tables / "logical_messages", records)
    print()
    for line in wrong:
        say(f"WRONG: {line}")
    if not wrong and not status:
        say("of what the boards saw acknowledged, nothing is lost and nothing is doubled")
        size = sum(path.stat().st_size for path in records.values())
        say(f"the boards' own records, {size} bytes, came whole, in segments of 512 bytes")
    say(f"report: {tables / 'report.html'}")
    say(f"chart:  {tables / 'chart.png'}")
    return 1 if wrong or status else 0


def main() -> int:
    """The command line of the demo."""
    parser = argparse.ArgumentParser(prog="./run demo", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="how long the boards publish (default: %(default)s)"
    )
    parser.add_argument(
        "--period-ms",
        type=int,
        default=20,
        help="time between two messages of a board (default: %(default)s)",
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "out" / "demo", help="where everything goes (default: out/demo)"
    )
    chosen = parser.parse_args()
    if not 5 <= chosen.seconds <= 3600 or not 1 <= chosen.period_ms <= 10000:
        parser.error("--seconds is 5 to 3600, --period-ms 1 to 10000")
    try:
        return run(chosen.out.absolute(), chosen.seconds, chosen.period_ms)
    except (DemoError, BrokerError, BoardError, OSError, subprocess.TimeoutExpired) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
