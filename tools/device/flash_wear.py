"""Measure what a journal costs a board's flash, with littlefs on counting flash in memory.

Prints a line for each case: program size, QoS, payload, `limit`, `sync_every`; rewritten files, erased blocks and
programmed bytes per 1,000 messages; and `clean` if publishing between two new files ran with the heap locked,
otherwise `allocates`. `python -m tools.flash_wear` makes a table of it.
"""

import gc

import micropython
import vfs

from headwater.connection import AT1, AT2, DONE, REL
from headwater_board.flash import FlashFile, flash_outbox

MESSAGES = 400
LIMITS = (480, 1024, 2048, 4096, 16384)

rewritten = [0]
_replace = FlashFile.replace


def replace(file):
    """Replace the file as `FlashFile` does, and count it."""
    rewritten[0] += 1
    _replace(file)


FlashFile.replace = replace


class Flash:
    """NOR flash in memory: erasing sets bits, programming clears them. With `slow`, it allocates nothing."""

    def __init__(self, blocks: int, block: int) -> None:
        self.slow = False
        self.block = block
        self.blocks = [bytearray(b"\xff" * block) for _ in range(blocks)]
        self.empty = b"\xff" * block
        self.erases = self.bytes = 0

    def readblocks(self, number: int, buf: bytearray, offset: int = 0) -> None:
        data = self.blocks[number]
        if not self.slow:
            buf[:] = memoryview(data)[offset : offset + len(buf)]
            return
        for i in range(len(buf)):
            buf[i] = data[offset + i]

    def writeblocks(self, number: int, buf: bytearray, offset: int = 0) -> None:
        self.bytes += len(buf)
        data = self.blocks[number]
        end = offset + len(buf)
        if not self.slow and memoryview(data)[offset:end] == memoryview(self.empty)[offset:end]:
            data[offset:end] = buf
            return
        for i in range(len(buf)):
            data[offset + i] &= buf[i]

    def ioctl(self, op: int, arg: int) -> int:
        if op == 4:
            return len(self.blocks)
        if op == 5:
            return self.block
        if op == 6:
            self.erases += 1
            self.blocks[arg][:] = self.empty
        return 0


def publish(box, qos, payload):
    """Publish one message and process its acknowledgements."""
    n = payload + 20
    assert box.reserve(n) >= 0
    i = box.commit(n, AT2 if qos == 2 else AT1)
    assert i >= 0
    if qos == 2:
        assert box.set(i, REL) == 0
        box.size[i] = 4
    assert box.set(i, DONE) == 0


def locked(flash, box, qos, payload):
    """Whether publishing runs with the heap locked."""
    flash.slow = True
    box._full = 1 << 29
    publish(box, qos, payload)
    gc.collect()
    micropython.heap_lock()
    clean = True
    try:
        for _ in range(40):
            publish(box, qos, payload)
    except MemoryError:
        clean = False
    micropython.heap_unlock()
    return clean


def measure(prog, qos, payload, limit, sync_every):
    flash = Flash(64, 4096)
    vfs.VfsLfs2.mkfs(flash, progsize=prog)
    vfs.mount(vfs.VfsLfs2(flash, progsize=prog), "/flash")
    box = flash_outbox("/flash/outbox.hwj", 2048, 16, limit=limit, sync_every=sync_every)
    before = rewritten[0], flash.erases, flash.bytes
    for _ in range(MESSAGES):
        publish(box, qos, payload)
    found = [(a - b) * 1000 // MESSAGES for a, b in zip((rewritten[0], flash.erases, flash.bytes), before)]
    clean = locked(flash, box, qos, payload)
    flash.slow = False
    box.close()
    vfs.umount("/flash")
    print(prog, qos, payload, limit, sync_every, *found, "clean" if clean else "allocates")


for prog in (256, 32):
    for qos, payload in ((1, 40), (1, 100), (1, 400), (2, 100)):
        for limit in LIMITS:
            measure(prog, qos, payload, limit, 1)
    for limit, sync_every in ((480, 5), (4096, 10)):
        measure(prog, 1, 40, limit, sync_every)
