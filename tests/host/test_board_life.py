"""The board's modules for a long life, on MicroPython: power cuts at every flash operation, logs, clock, watchdog."""

import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tools import mpy
from tools.runtimes import run_unix
from tools.toolchain import ROOT

DEVICE = Path(__file__).parent / "device"
PORTABLE = ROOT / "tests" / "portable"
PATH = [mpy.SDK, ROOT / "ports" / "micropython", PORTABLE, DEVICE]

pytestmark = pytest.mark.needs_micropython


@pytest.mark.parametrize("script", ["littlefs_cuts", "boots_cuts"])
def test_power_cuts_at_every_flash_operation(script: str) -> None:
    done = run_unix(DEVICE / f"{script}.py", path=PATH, heap=16 << 20)
    assert done.stdout.endswith("done\n"), done.stdout
    print(done.stdout)


@pytest.mark.parametrize("module", ["life_damage", "life_logs", "life_watchdog"])
def test_module(module: str) -> None:
    done = run_unix(PORTABLE / "run.py", module, path=PATH)
    assert done.stdout.rstrip().endswith(" passed, 0 failed"), done.stdout


def test_a_channel_that_the_gateway_ends_is_opened_once_a_second() -> None:
    done = run_unix(DEVICE / "life_service.py", path=PATH)
    assert done.stdout in ("streams 9\n", "streams 10\n", "streams 11\n")


def silent(query: bytes) -> bytes:
    return b""


def time_answer(query: bytes, head: bytes = b"\x24\x02", nonce: bytes = b"", seconds: int = 0) -> bytes:
    """An answer of NTP: 2026-11-23 12:34:56.5, by a server of stratum 2."""
    transmit = struct.pack(">II", (seconds or 1795437296 + 2208988800) % (1 << 32), 1 << 31)
    return head + bytes(22) + (nonce or query[40:48]) + bytes(8) + transmit


SERVERS: dict[str, tuple[list[Callable[[bytes], bytes]], str]] = {
    "at once": ([time_answer], "(2026, 11, 23, 0, 12, 34, 56,"),
    "after a lost one": ([silent, time_answer], "(2026, 11, 23, 0, 12, 34, 56,"),
    "of the second era": ([partial(time_answer, seconds=(1 << 32) + 60)], "(2036, 2, 7, 3, 6, 29, 16,"),
    "of somebody else": (
        [partial(time_answer, nonce=bytes(8)), time_answer],
        "(2026, 11, 23, 0, 12, 34, 56,",
    ),
    "after refusals": (
        [
            partial(time_answer, head=b"\x24\x00"),
            partial(time_answer, head=b"\xe4\x02"),
            partial(time_answer, head=b"\x23\x02"),
            partial(time_answer, head=b"\x24\x10"),
            partial(time_answer, seconds=2208988800 + 60),
            lambda query: time_answer(query)[:47],
            time_answer,
        ],
        "(2026, 11, 23, 0, 12, 34, 56,",
    ),
}


@pytest.mark.parametrize("case", SERVERS)
def test_time_by_sntp(case: str) -> None:
    answers, expected = SERVERS[case]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))

        def serve() -> None:
            for answer in answers:
                query, address = server.recvfrom(100)
                assert (query[0], len(query)) == (0x23, 48)
                if data := answer(query):
                    server.sendto(data, address)

        with ThreadPoolExecutor(1) as pool:
            served = pool.submit(serve)
            arguments = [str(server.getsockname()[1]), str(len(answers) - 1)]
            done = run_unix(DEVICE / "life_clock.py", *arguments, path=PATH)
            assert done.stdout.endswith("done\n"), done.stdout
            served.result(5)
    assert f"set {expected}" in done.stdout, done.stdout
    milliseconds = int(done.stdout.split(")")[0].split()[-1]) / 1000
    assert 500 <= milliseconds < 700
