"""What a journal costs a board's flash: littlefs on flash in memory, which counts. Prints a line for each case:

program size, block size, options, payload; then erased blocks, programs and bytes per 1000 messages, and ``clean`` or
``allocates``: whether publishing, between two new files, ran with the heap locked.
"""

import gc

import micropython
import vfs

from headwater.transitions import AT1, AT2, DONE, REL
from headwater_board.flash import flash_outbox

MESSAGES = 400


class Flash:
    """NOR flash in memory: erasing sets bits, programming only clears them."""

    def __init__(self, blocks: int, block: int) -> None:
        self.block = block
        self.blocks = [bytearray(b"\xff" * block) for _ in range(blocks)]
        self.empty = b"\xff" * block
        self.erases = self.programs = self.bytes = 0

    def readblocks(self, number: int, buf: bytearray, offset: int = 0) -> None:
        data = self.blocks[number]
        for i in range(len(buf)):
            buf[i] = data[offset + i]

    def writeblocks(self, number: int, buf: bytearray, offset: int = 0) -> None:
        self.programs += 1
        self.bytes += len(buf)
        data = self.blocks[number]
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
    """One message, and its acknowledgements."""
    n = payload + 20
    assert box.reserve(n) >= 0
    i = box.commit(n, AT2 if qos == 2 else AT1)
    assert i >= 0
    if qos == 2:
        assert box.set(i, REL) == 0
        box.size[i] = 4
    assert box.set(i, DONE) == 0


def locked(box, qos, payload):
    """Whether publishing runs with the heap locked."""
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
    before = flash.erases, flash.programs, flash.bytes
    for _ in range(MESSAGES):
        publish(box, qos, payload)
    found = [(a - b) * 1000 // MESSAGES for a, b in zip((flash.erases, flash.programs, flash.bytes), before)]
    clean = locked(box, qos, payload)
    box.close()
    vfs.umount("/flash")
    print(prog, qos, payload, limit, sync_every, *found, "clean" if clean else "allocates")


for prog in (256, 32):
    for qos, payload, limit, sync_every in (
        (1, 40, 480, 1),
        (1, 40, 4096, 1),
        (1, 40, 16384, 1),
        (1, 40, 480, 5),
        (1, 40, 4096, 10),
        (1, 400, 480, 1),
        (1, 400, 4096, 1),
        (2, 40, 480, 1),
        (2, 40, 4096, 1),
    ):
        measure(prog, qos, payload, limit, sync_every)
