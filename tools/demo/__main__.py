"""`./run demo`: four boards, a broker, a gateway and Spark on this machine, with faults.

Two boards speak MQTT over TCP (one of them MQTT 5.0, with properties), one over a serial line through the gateway, and
one FMQ over TCP to the gateway's hub. TCP links are cut, boards lose power, and the serial line is disturbed. Finally
each board sends the file with its own record in segments of 512 bytes. Spark turns the gateway's capture log into
tables, and the demo looks for every acknowledged message, property and file in them.

With `--cluster`, boards publish to three hubs on one PostgreSQL while the leader is killed: `tools/demo/cluster.py`.

The exit status is 0 if no acknowledged message is lost or duplicated, 1 otherwise, and 2 if the demo itself failed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from tools.broker import BrokerError, start_broker
from tools.demo import cluster, result
from tools.demo.boards import HEAP, DemoBoard
from tools.demo.cable import Cable
from tools.demo.process import DemoError, Headwater, progress, say, wait_until_done
from tools.toolchain import ROOT
from tools.virtual_board import BoardError

_TOPICS = ("headwater/+/telemetry:2", "headwater/+/record:1")
#: One-way delay of the links of b1 and b4.
_WIFI_MS = 15
#: Speed of the serial line: at 115,200 baud it would carry 38 messages of 300 bytes a second.
_BAUD = 460800
_HEADWATER = (sys.executable, "-m", "headwater_host")


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


def run(out: Path, seconds: float, period_ms: int) -> int:
    """Run the demo in the directory `out` and return the exit status."""
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
        board_on("b2", host="127.0.0.1", port=broker.port, version=5)
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
        with progress(boards):
            faults(boards, cables, began, seconds)
            wait_until_done(boards, seconds + 40)
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
    wrong += result.compare_properties(tables / "messages", {"b2"})
    print()
    for line in wrong:
        say(f"WRONG: {line}")
    if not wrong and not status:
        say("no acknowledged message is lost or duplicated")
        size = sum(path.stat().st_size for path in records.values())
        say(f"the boards' own records, {size} bytes, arrived complete, in segments of 512 bytes")
    say(f"report: {tables / 'report.html'}")
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
        "--cluster", action="store_true", help="kill the leader of three hubs under boards that publish"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "out" / "demo", help="output directory (default: out/demo)"
    )
    chosen = parser.parse_args()
    if not 5 <= chosen.seconds <= 3600 or not 1 <= chosen.period_ms <= 10000:
        parser.error("--seconds is 5 to 3600, --period-ms 1 to 10000")
    try:
        out = chosen.out.absolute()
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        return (cluster.run if chosen.cluster else run)(out, chosen.seconds, chosen.period_ms)
    except (DemoError, BrokerError, BoardError, OSError, subprocess.TimeoutExpired) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
