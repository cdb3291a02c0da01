"""Send SETTINGS["bytes"] bytes as one message in segments and report the heap, for `tools.gigabyte`."""

import gc
import time

from headwater.ibmmq.segments import LATER, Segmenter
from headwater_board.ids import group_ids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    # ``tools.gigabyte`` prepends it.
    SETTINGS: dict[str, Any] = {}


def make_client() -> "Any":
    """Return a client of the configured protocol and line."""
    if "uart" in SETTINGS:
        from headwater_board.serial import Serial

        dialer: Any = Serial(SETTINGS["uart"], 460800)
    else:
        from headwater_board.tcp import Tcp

        dialer = Tcp(SETTINGS["host"], SETTINGS["port"])
    if SETTINGS["protocol"] == "fmq":
        from headwater.fmq.client import Client
    else:
        from headwater.mqtt.client import Client  # type: ignore[assignment]  # of two classes, one
    tx_size = 2 * SETTINGS["buffer"]
    return Client(dialer, b"gigabyte", rx_size=512, tx_size=tx_size, outbox_size=SETTINGS["outbox"], slots=64)


class Source:
    """A source of any number of bytes: blocks that begin and end with their number."""

    def __init__(self, length: int, block: int):
        self.left = length
        self.number = 0
        self.block = bytearray(block)
        for i in range(block):
            self.block[i] = i * 7 & 255

    def read(self, buf: bytearray, at: int, n: int) -> int:
        """Read the next block, or the rest of it."""
        block = self.block
        number = self.number
        self.number = number + 1
        for i in range(4):
            block[i] = block[i - 4] = number >> 8 * i & 255
        if n > self.left:
            n = self.left
        if n == len(block):
            buf[at : at + n] = block
        else:
            for i in range(n):
                buf[at + i] = block[i]
        self.left -= n
        return n


def main() -> None:
    """Send, sample the heap throughout, and print the result."""
    client = make_client()
    segmenter = Segmenter(client, bytearray(SETTINGS["buffer"]), group_ids())
    length = SETTINGS["bytes"]
    source = Source(length, segmenter.piece)
    read = source.read
    client.connect()
    gc.collect()
    gc.disable()
    status = segmenter.begin(b"board-1/gigabyte", read, length, SETTINGS["qos"])
    assert status == 0, status
    begin = time.ticks_ms()
    lowest = highest = samples = 0
    lowest = highest = gc.mem_alloc()
    while True:
        status = segmenter.step()
        if status == LATER:
            used = gc.mem_alloc()
            samples += 1
            if used < lowest:
                lowest = used
            if used > highest:
                highest = used
            assert client.wait(1) == 0, client.status
        elif status <= 0:
            break
    used = gc.mem_alloc()
    took = time.ticks_diff(time.ticks_ms(), begin)
    client.flush(60000)
    client.disconnect()
    print("status", status, "heap", lowest, highest, used, "samples", samples, "ms", took, "end")


main()
