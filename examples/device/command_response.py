"""Run commands that arrive as JSON, and answer each: {"id": 7, "do": "free"} with {"id": 7, "result": 81920}."""

import gc
import json
import time

from headwater.mqtt.client import Client
from headwater.mqtt.keeper import Keeper
from headwater_board.boots import Boots
from headwater_board.tcp import Tcp
from headwater_board.wifi import Wifi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from headwater.mqtt.packets import Packet

boots = Boots()
#: What a command may do. It must return at once: nothing is received meanwhile.
COMMANDS: "dict[str, Callable[[dict[str, Any]], object]]" = {
    "free": lambda command: gc.mem_free(),
    "uptime": lambda command: time.ticks_ms(),
    "boot": lambda command: json.loads(boots.report("board-1")),
    "add": lambda command: command["a"] + command["b"],
}


def answer(message: "Packet") -> None:
    """Run the command in a message, and publish its result or what is wrong with it."""
    response: dict[str, Any] = {}
    try:
        command = json.loads(message.payload_bytes())
        response["id"] = command["id"]
        response["result"] = COMMANDS[command["do"]](command)
    except Exception as error:
        response["error"] = type(error).__name__ + ": " + str(error)
    keeper.publish(b"board-1/answers", json.dumps(response).encode(), 1)


client = Client(Tcp("broker.local"), b"board-1", clean_start=False)
client.on_message = answer
keeper = Keeper(client, network=Wifi([("workshop", "correct horse")]))
keeper.subscribe(b"board-1/commands", 2)
keeper.start()
while keeper.wait(1000) == 0:
    pass
