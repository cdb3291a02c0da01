"""Count the round trips on the wire that a deep-sleep sensor is awake for.

    python -m tools.round_trips                 headwater's sleep.cycle
    python -m tools.round_trips --umqtt DIR     umqtt.simple as well; DIR has umqtt/simple.py of micropython-lib

MicroPython's unix build publishes a message at QoS 1 to mosquitto over a TUN device, in a network namespace of its own
(``unshare -rn``; needs /dev/net/tun). This program is the wire: it sees every IP packet and delivers it half of
``--rtt`` milliseconds later, to the same namespace with source and destination exchanged.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import heapq
import json
import os
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tools import mpy
from tools.broker import Mosquitto
from tools.runtimes import run_unix
from tools.toolchain import ROOT

PROGRAM = ROOT / "tools/device/round_trips.py"
TUN = Path("/dev/net/tun")
_DEVICE = "wire"
_ADDRESS, _BEHIND = "10.77.0.1", "10.77.0.2"
_PORT = 1883
_SET_INTERFACE = 0x400454CA
_TUN_WITHOUT_HEADER = 0x1001


@dataclass
class Run:
    """What one wake-up cost: round trips until the acknowledgement, the board's segments with data, milliseconds awake,
    and packets with bytes.
    """

    client: str
    round_trips: int
    segments: int
    awake_ms: int
    packets: int
    size: int


@dataclass
class _Packet:
    """A TCP segment: round trips before it, whether the board's, sequence number, bytes of payload, and all bytes."""

    trip: int
    up: bool
    number: int
    payload: int
    size: int


class Wire:
    """A TUN device whose packets come back, with source and destination exchanged, after ``delay`` seconds."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.packets: list[_Packet] = []
        # The round trips that each end knows of: the broker (False) and the board (True).
        self._trips = {False: 0, True: 0}
        self._fd = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(self._fd, _SET_INTERFACE, struct.pack("16sH22x", _DEVICE.encode(), _TUN_WITHOUT_HEADER))
        for words in (f"addr add {_ADDRESS}/24 dev {_DEVICE}", f"link set {_DEVICE} up", "link set lo up"):
            subprocess.run(["ip", *words.split()], check=True)
        self._stopped, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._carry)

    def __enter__(self) -> Wire:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._stop)
        self._thread.join()
        os.close(self._stopped)
        os.close(self._fd)

    def clear(self) -> None:
        """Forget the packets, and count round trips from 0 on."""
        self.packets.clear()
        self._trips = {False: 0, True: 0}

    def _carry(self) -> None:
        under_way: list[tuple[float, int, bytes, _Packet]] = []
        for number in range(1 << 30):
            wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
            ready, _, _ = select.select([self._fd, self._stopped], [], [], wait)
            if self._stopped in ready:
                return
            if ready:
                # One at a time: a packet that was sent before another was delivered is read before that.
                packet = os.read(self._fd, 4096)
                if packet[0] >> 4 == 4 and packet[9] == 6:
                    noted = self._note(packet)
                    back = packet[:12] + packet[16:20] + packet[12:16] + packet[20:]
                    heapq.heappush(under_way, (time.monotonic() + self.delay, number, back, noted))
            elif under_way and under_way[0][0] <= time.monotonic():
                _, _, back, noted = heapq.heappop(under_way)
                # The receiver answers a packet of the board within its round trip, and one to the board in the next.
                knows = noted.trip + (not noted.up)
                self._trips[not noted.up] = max(self._trips[not noted.up], knows)
                os.write(self._fd, back)

    def _note(self, packet: bytes) -> _Packet:
        tcp = (packet[0] & 15) * 4
        data = tcp + (packet[tcp + 12] >> 4) * 4
        up = struct.unpack_from(">H", packet, tcp + 2)[0] == _PORT
        number = struct.unpack_from(">L", packet, tcp + 4)[0]
        noted = _Packet(self._trips[up], up, number, len(packet) - data, len(packet))
        self.packets.append(noted)
        return noted


def count(packets: Sequence[_Packet]) -> int:
    """Return the round trips from the first SYN until the last payload of the server has arrived.

    A packet belongs to the round trip after the last one that had been completed at its sender, however long that took.
    """
    return 1 + [packet.trip for packet in packets if not packet.up and packet.payload][-1]


def segments(packets: Sequence[_Packet]) -> int:
    """Return the number of segments with data that the board sent, without retransmissions."""
    return len({packet.number for packet in packets if packet.up and packet.payload})


def run_clients(clients: Sequence[str], rtt_ms: int, path: Sequence[Path]) -> Iterator[Run]:
    """Run each client twice and return the second, whose session the broker has. In a namespace of its own."""
    rtt = rtt_ms / 1000
    with contextlib.ExitStack() as stack:
        wire = stack.enter_context(Wire(rtt / 2))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(Mosquitto(folder, _PORT, settings={"listener": f"{_PORT} 0.0.0.0"}))
        for client in clients:
            awake = 0
            for _ in range(2):
                time.sleep(4 * rtt)
                wire.clear()
                done = run_unix(PROGRAM, client, _BEHIND, str(_PORT), path=path, timeout=60)
                words = done.stdout.split()
                if words[:1] != ["awake"]:
                    raise RuntimeError(done.stdout)
                awake = int(words[1])
            packets = list(wire.packets)
            yield Run(
                client,
                count(packets),
                segments(packets),
                awake,
                len(packets),
                sum(packet.size for packet in packets),
            )


def missing() -> str:
    """Return what this machine lacks for a wire of its own, or an empty text."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return "unshare (util-linux) or ip (iproute2) is missing"
    done = subprocess.run(["unshare", "-rn", "true"], capture_output=True, text=True, check=False)
    return done.stderr or ("" if os.access(TUN, os.R_OK | os.W_OK) else f"{TUN} cannot be opened")


def measure(rtt_ms: int = 200, umqtt: Path | None = None) -> list[Run]:
    """Return the costs of a wake-up. Raises RuntimeError if a client fails."""
    arguments = ["--rtt", str(rtt_ms), *(["--umqtt", str(umqtt)] if umqtt else [])]
    command = ["unshare", "-rn", sys.executable, "-m", "tools.round_trips", "--inside", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [Run(**row) for row in json.loads(done.stdout)]


def main() -> int:
    """Print a table with a row for each client."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rtt", type=int, default=200, metavar="MS", help="round-trip time of the wire")
    parser.add_argument("--umqtt", type=Path, metavar="DIR", help="directory of umqtt.simple")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        clients = ["headwater", *(["umqtt.simple"] if args.umqtt else [])]
        path = [mpy.SDK, mpy.BOARD_PORT, *([args.umqtt] if args.umqtt else [])]
        print(json.dumps([asdict(run) for run in run_clients(clients, args.rtt, path)]))
        return 0
    if reason := missing():
        print(reason, file=sys.stderr)
        return 1
    print(f"| client | round trips | awake at {args.rtt} ms, ms | packets | bytes |\n|---|--:|--:|--:|--:|")
    for run in measure(args.rtt, args.umqtt):
        print(f"| {run.client} | {run.round_trips} | {run.awake_ms} | {run.packets} | {run.size} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
