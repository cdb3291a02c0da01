"""Channel 1 of a serial link: a board's log records and the gateway's time, beside the board's messages."""

import asyncio
import logging
import re
import time
from pathlib import Path

import pytest

from headwater.link.link import IDLE, UP, Link
from headwater_host.gateway import service_channel
from headwater_host.gateway.config import SerialConfig
from headwater_host.gateway.mqtt_board import MqttBoard
from headwater_host.gateway.service_channel import ServiceChannel
from headwater_host.lifetime import Clocks
from tests.conftest import require
from tests.host.recording import recording, task_of
from tools import deploy
from tools.virtual_board import VirtualBoard

PROGRAM = """
import machine, time
from headwater.mqtt.client import Client
from headwater.mqtt.keeper import Keeper
from headwater_board.clock import is_set, unix_ms
from headwater_board.logs import DEBUG, ERROR, WARNING, LogRing
from headwater_board.serial import Serial
from headwater_board.service import Service

log = LogRing(level=DEBUG)
serial = Serial(0, channels=2)
service = Service(serial, log)
keeper = Keeper(Client(serial, b"uart-board", clean_start=False))
keeper.start()
print("SET AT FIRST", is_set())
log.write(WARNING, b"before the gateway is there")
log.write(ERROR, b"a line\\nthat \\x1b[31mcontrols\\xff the terminal")
log.write(DEBUG, b"a detail")
n = 0
while True:
    if not n % 10 and keeper.publish(b"n", b"%d" % n, 1) < 0:
        n -= 1
    n += 1
    keeper.wait(20)
    service.poll()
    if service.syncs == 1 and n > 50:
        print("TIME", unix_ms(), is_set())
        log.write(WARNING, b"counted to fifty")
        n = -1 << 20
    if n == (-1 << 20) + 20:
        break
while True:
    keeper.wait(20)
    service.poll()
"""


TEXTS = [
    "W before the gateway is there",
    "E a line that \N{REPLACEMENT CHARACTER}[31mcontrols\N{REPLACEMENT CHARACTER} the terminal",
    "D a detail",
    "W counted to fifty",
]


async def test_logs_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    require("micropython")
    monkeypatch.setattr(Clocks, "synchronized", lambda clocks: True)
    caplog.set_level(logging.DEBUG, "headwater")
    files = deploy.package_files("mpy")
    with VirtualBoard(main=PROGRAM, files=files, port="esp32", uarts=1, heap="256K") as board:
        port = board.uart_ports[0]
        async with (
            recording(tmp_path / "log") as (recorder, _),
            task_of(MqttBoard(recorder, SerialConfig(port)).run()),
        ):
            for life in range(2):
                if life:
                    # After a reset of the board all begins anew.
                    await asyncio.to_thread(board.power_cut)
                    caplog.clear()
                    await asyncio.to_thread(board.power_on)
                while "counted to fifty" not in caplog.text:
                    await asyncio.sleep(0.02)
                records = [record for record in caplog.records if record.name == "headwater.gateway.board"]
                assert [r.levelname for r in records] == ["WARNING", "ERROR", "DEBUG", "WARNING"]
                assert all(r.getMessage().startswith(f"serial:{port}: ") for r in records)
                assert [re.sub(r"^.*: (\w) \d+ ", r"\1 ", r.getMessage()) for r in records] == TEXTS
        log = board.log
    assert log.count("SET AT FIRST False") == 2
    times = [int(ms) for ms in re.findall(r"TIME (\d+) True", log)]
    assert len(times) == 2
    assert all(abs(ms - time.time() * 1000) < 60_000 for ms in times)


def test_an_unsynchronized_clock_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clocks, "synchronized", lambda clocks: False)
    monkeypatch.setattr(service_channel, "RETRY_S", 0.0)
    board, gateway = Link(7, 2), Link(9, 2)
    service = ServiceChannel(gateway.channels[1], "line")
    board.channels[1].open()
    for now in range(0, 3000, 10):
        for link, to in ((board, gateway), (gateway, board)):
            link.poll(now)
            service.move()
            while n := link.out():
                to.feed(link.out_buf, link.out_at, n, now)
                link.sent(n)
        if now == 1500:
            assert gateway.channels[1].state == UP
            assert board.channels[1].readinto(bytearray(64), 64) is None
            monkeypatch.setattr(Clocks, "synchronized", lambda clocks: True)
    buf = bytearray(64)
    n = board.channels[1].readinto(buf, 64) or 0
    assert re.fullmatch(rb"time \d{13}\n", buf[:n])
    # Channel 0 was not opened by the board: the gateway leaves it alone.
    assert gateway.channels[0].state == IDLE
