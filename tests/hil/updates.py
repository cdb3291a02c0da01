"""A virtual board with the update receiver, and versions of its program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwater_host.board.image import make_image
from headwater_host.board.update import send
from headwater_host.client.mqtt import Client
from tools.board_air import PASSWORD, SSID
from tools.deploy import package_files
from tools.virtual_board import Content, VirtualBoard

KEY = bytes(range(32))
TARGET = "shed"
TOPIC = "boards/shed/update"
WAIT_S = 60.0

MAIN = """
from headwater_board import loader
from settings import TRIAL_S, WATCHDOG_MS
loader.run("app", watchdog_ms=WATCHDOG_MS, trial_s=TRIAL_S)
"""

#: The program of every version; its number is in the module `version`, the test's choices are in `settings`.
APP = """
import time
import machine
from settings import BEHIND_RADIO, FMQ, HOLD, OFFLINE, PORT, WATCHDOG_MS
from version import VERSION
from headwater_board.ota import Receiver
from headwater_board.tcp import Tcp
if FMQ:
    from headwater.fmq.client import Client
    from headwater.fmq.keeper import Keeper
else:
    from headwater.mqtt.client import Client
    from headwater.mqtt.keeper import Keeper

def hold():
    print("restart due")
    while True:
        time.sleep(1)

print("version", VERSION, "starts")
if BEHIND_RADIO:
    import network
    wlan = network.WLAN()
    wlan.active(True)
    wlan.connect("SSID", "PASSWORD")
    while not wlan.isconnected():
        time.sleep_ms(5)
watchdog = machine.WDT(timeout=WATCHDOG_MS) if WATCHDOG_MS else None
keeper = Keeper(Client(Tcp("127.0.0.1", PORT), b"shed", clean_start=False), first_ms=20, longest_ms=200)
restart = hold if HOLD else machine.reset
update = Receiver(keeper, b"boards/shed/update", KEY, "shed", restart=restart, offline_starts=OFFLINE)
keeper.client.on_message = update.take
keeper.subscribe(update.topic, *(() if FMQ else (1,)))
keeper.start()
shown = False
while True:
    if keeper.wait(10):
        print("gave up", keeper.status)
    # The timers of a virtual board run only in calls such as this one.
    time.sleep_ms(1)
    update.poll()
    if watchdog:
        watchdog.feed()
    if keeper.connections and not shown:
        shown = True
        print("version", VERSION, "is online")
"""
APP = APP.replace("KEY", repr(KEY)).replace("SSID", SSID).replace("PASSWORD", PASSWORD)


def version(number: str, **files: bytes) -> dict[str, bytes]:
    """Return the files of a version: the program, its number and data of several blocks."""
    return {
        "app.py": APP.encode(),
        "lib/version.py": f'VERSION = "{number}"\n'.encode(),
        "data/table.bin": bytes(range(256)) * 80,
        "data/empty": b"",
        **files,
    }


def image(files: Mapping[str, bytes], number: str, serial: int = 1, **options: Any) -> bytes:
    return make_image(files, KEY, TARGET, number, serial, **options)


def board(
    server: int,
    files: Mapping[str, Content] | None = None,
    *,
    hold: bool = False,
    fmq: bool = False,
    watchdog_ms: int = 0,
    trial_s: int = 0,
    offline_starts: int = 144,
    installed: Mapping[str, Content] | None = None,
    **options: Any,
) -> VirtualBoard:
    """Return a board with version 0 and the library, or ``installed``.

    With ``hold`` it waits for a power cut where it would restart.
    """
    program = {name.removeprefix("lib/"): data for name, data in version("0").items()}
    settings = {
        "PORT": server,
        "HOLD": hold,
        "FMQ": fmq,
        "WATCHDOG_MS": watchdog_ms,
        "TRIAL_S": trial_s,
        "OFFLINE": offline_starts,
        "BEHIND_RADIO": bool(options.get("port")),
    }
    lines = "".join(f"{name} = {value!r}\n" for name, value in settings.items())
    return VirtualBoard(
        main=MAIN,
        files={**(installed or package_files("mpy")), **program, "settings.py": lines, **(files or {})},
        heap="256K",
        **{"flash": "littlefs", **options},
    )


async def install(port: int, data: bytes, timeout: float = WAIT_S, **options: Any) -> None:
    """Publish an image as the command does."""
    async with Client("127.0.0.1", port, reconnect=True) as client:
        await send(client, TOPIC, data, timeout=timeout, **{"silence": 0.5, **options})
