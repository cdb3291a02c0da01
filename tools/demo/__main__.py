"""`./run demo`: four boards, a broker, a gateway and Spark on this machine, with faults.

Two boards speak MQTT over TCP, one over a serial line through the gateway, and one FMQ over TCP to the gateway's
hub. TCP links are cut, boards lose power, and the serial line is disturbed. Finally each board sends the file with
its own record in segments of 512 bytes. Spark turns the gateway's capture log into tables, and the demo looks for
every acknowledged message and every file in them.

The exit status is 0 if no acknowledged message is lost or duplicated, 1 otherwise, and 2 if the demo itself failed.
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
#: One-way delay of the links of b1 and b4.
_WIFI_MS = 15
#: Speed of the serial line: at 115,200 baud it would carry 38 messages of 300 bytes a second.
_BAUD = 460800
_HEADWATER = (sys.executable, "-m", "headwater_host")


class DemoError(Exception):
    """A part of the demo failed."""


def say(text: str) -> None:
    """Print a line of progress with the seconds since the start."""
    print(f"demo {time.monotonic() - _began:6.1f} s  {text}", flush=True)


_began = time.monotonic()


class Headwater:
    """The command `headwater` in a process; `log` is the file with its output."""

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
        """Return the running process."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def text(self) -> str:
        """Return its output."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, text: str, timeout: float) -> None:
        """Wait until its output contains `text`."""
        deadline = time.monotonic() + timeout
        while text not in self.text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise DemoError(f"the gateway did not print {text!r}; its output:\n{self.text()}")
            time.sleep(0.05)

    def hub_port(self) -> int:
        """Return the port of the gateway's hub."""
        found = re.search(r"listening on \S+, port (\d+)", self.text())
        if found is None:
            raise DemoError(f"the gateway did not print its hub's port; its output:\n{self.text()}")
        return int(found[1])

    def stop(self, timeout: float) -> None:
        """Ask it to stop, and wait until it has."""
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(timeout):
            raise DemoError(
                f"the gateway ended with status {self.process.returncode}; its output:\n{self.text()}"
            )


def run_headwater(*arguments: str, timeout: float) -> int:
    """Run `headwater` with its output on this terminal and return its status, 0 or 1."""
    done = subprocess.run([*_HEADWATER, *arguments], timeout=timeout, check=False)
    if done.returncode not in (0, 1):
        raise DemoError(f"headwater {arguments[0]} ended with status {done.returncode}")
    return done.returncode


def faults(boards: dict[str, DemoBoard], cables: dict[str, Cable], began: float, seconds: float) -> None:
    """Cut links and power, and disturb the serial line, each at its time."""

    def at(part: float, what: str) -> None:
        time.sleep(max(0.0, began + part * seconds - time.monotonic()))
        say(what)

    def cut(name: str, part: float) -> None:
        at(part, f"{name}: the link is cut")
        cables[name].cut()
        at(part + 0.04, f"{name}: the link is restored")
        cables[name].mend()

    def restart(name: str, part: float) -> None:
        at(part, f"{name}: the power is cut")
        boards[name].board.power_cut()
        at(part + 0.06, f"{name}: the power is restored")
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
    """Wait until every board reports that all its messages are acknowledged."""
    deadline = time.monotonic() + timeout
    for name, board in boards.items():
        try:
            board.board.wait_for("done:", max(0.1, deadline - time.monotonic()))
        except BoardError as error:
            raise DemoError(f"{name} did not finish: {error}; its log:\n{board.board.log[-2000:]}") from None


def progress(boards: dict[str, DemoBoard], stop: threading.Event) -> None:
    """Print published and acknowledged messages of each board every two seconds."""
    while not stop.wait(2):
        records = {name: board.record() for name, board in boards.items()}
        say(
            "   ".join(
                f"{name}: {len(record.sent)} sent, {len(record.acknowledged)} acknowledged"
                for name, record in records.items()
            )
        )


def run(out: Path, seconds: float, period_ms: int) -> int:
    """Run the demo in the directory `out` and return the exit status."""
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
        say(f"the gateway is ready; it records messages in {capture}")
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
        say("all messages of all boards are acknowledged; stopping the gateway")
        # Messages that the broker acknowledged may still be in flight to the gateway.
        acknowledged = {(name, *key) for name, board in boards.items() for key in board.record().acknowledged}
        records = {name: out / name / "sent.jsonl" for name in boards}
        acknowledged |= {(name, *result.record_of(path.stat().st_size)) for name, path in records.items()}
        missing = result.wait_for_messages(capture, acknowledged, 30)
        gateway.stop(20)
        if missing:
            say(f"{len(missing)} acknowledged messages are missing, the first {min(missing)}")
    say("Spark turns the capture log into tables and compares them with the boards' records")
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
        say("no acknowledged message is lost or duplicated")
        size = sum(path.stat().st_size for path in records.values())
        say(f"the boards' own records, {size} bytes, arrived complete, in segments of 512 bytes")
    say(f"report: {tables / 'report.html'}")
    say(f"chart:  {tables / 'chart.png'}")
    return 1 if wrong or status else 0


def main() -> int:
    """Run the command line of the demo."""
    parser = argparse.ArgumentParser(prog="./run demo", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="seconds that the boards publish (default: %(default)s)"
    )
    parser.add_argument(
        "--period-ms",
        type=int,
        default=20,
        help="milliseconds between messages of a board (default: %(default)s)",
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "out" / "demo", help="output directory (default: out/demo)"
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
