"""A virtual board with the update receiver, and versions of its program."""

from __future__ import annotations

from collections.abc import Mapping

from headwater_host.board.image import make_image
from headwater_host.board.update import send
from headwater_host.client.mqtt import Client
from tools.deploy import package_files
from tools.virtual_board import Content, VirtualBoard

KEY = bytes(range(32))
TARGET = "shed"
TOPIC = "boards/shed/update"
WAIT_S = 60.0

MAIN = """
from headwater_board import loader
loader.run("app", watchdog_ms=0)
"""

#: The program of every version; `VERSION`, `PORT` and `HOLD` are in the modules `version` and `settings`.
APP = """
from settings import HOLD, PORT
from version import VERSION
from headwater.mqtt.client import Client
from headwater.mqtt.keeper import Keeper
from headwater_board.ota import Receiver
from headwater_board.tcp import Tcp
import machine
import time

def hold():
    print("restart due")
    while True:
        time.sleep(1)

print("version", VERSION, "starts")
keeper = Keeper(Client(Tcp("127.0.0.1", PORT), b"shed", clean_start=False), first_ms=20, longest_ms=200)
update = Receiver(keeper, b"boards/shed/update", KEY, "shed", restart=hold if HOLD else machine.reset)
keeper.client.on_message = update.take
keeper.subscribe(update.topic, 1)
keeper.start()
shown = False
while True:
    if keeper.wait(10):
        print("gave up", keeper.status)
    update.poll()
    if keeper.connections and not shown:
        shown = True
        print("version", VERSION, "is online")
""".replace("KEY", repr(KEY))


def version(number: str, **files: bytes) -> dict[str, bytes]:
    """Return the files of a version: the program, its number and data of several blocks."""
    return {
        "app.py": APP.encode(),
        "lib/version.py": f'VERSION = "{number}"\n'.encode(),
        "data/table.bin": bytes(range(256)) * 80,
        "data/empty": b"",
        **files,
    }


def image(files: Mapping[str, bytes], number: str, serial: int, **options: object) -> bytes:
    return make_image(files, KEY, TARGET, number, serial, **options)  # type: ignore[arg-type]


def board(
    port: int, files: Mapping[str, Content] | None = None, *, hold: bool = False, **options: object
) -> VirtualBoard:
    """Return a board with version 0 installed. With ``hold`` it waits for a power cut where it would restart."""
    installed = {name.removeprefix("lib/"): data for name, data in version("0").items()}
    return VirtualBoard(
        main=MAIN,
        files={
            **package_files("mpy"),
            **installed,
            "settings.py": f"PORT = {port}\nHOLD = {hold}\n",
            **(files or {}),
        },
        heap="256K",
        **{"flash": "littlefs", **options},  # type: ignore[arg-type]
    )


async def install(port: int, data: bytes, timeout: float = WAIT_S, **options: object) -> None:
    """Publish an image as the command does."""
    async with Client("127.0.0.1", port, reconnect=True) as client:
        await send(client, TOPIC, data, timeout=timeout, **options)  # type: ignore[arg-type]
