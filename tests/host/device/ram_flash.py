"""File systems in memory, on flash that loses its power: littlefs at any program or erase, in the middle of it."""

import vfs
from journal_file import PowerCutError

from headwater_board.flash import FlashFile

EIO = 5
BLOCK = 4096
BLOCKS = 16
PAGE = 256
SECTOR = 512
MOUNT = "/flash"


class RamFlash:
    """NOR flash of an RP2. ``cut_after``: how many more operations until the power goes, -1 for never.

    An operation during which the power goes is done half. After that nothing is.
    """

    size = BLOCK * BLOCKS

    def __init__(self, kept=None, cut_after=-1):
        self.kept = bytearray(self.size) if kept is None else bytearray(kept)
        self.cut_after = cut_after
        self.dead = False
        #: Whether operations fail, without effect.
        self.failing = False

    def _n(self, n):
        """How many of ``n`` bytes an operation changes."""
        if self.dead or self.failing:
            return 0
        self.dead = self.cut_after == 0
        self.cut_after -= 1
        return n // 2 if self.dead else n

    def readblocks(self, block, buf, offset=0):
        at = block * BLOCK + offset
        buf[:] = memoryview(self.kept)[at : at + len(buf)]

    def writeblocks(self, block, buf, offset=0):
        at = block * BLOCK + offset
        n = self._n(len(buf))
        memoryview(self.kept)[at : at + n] = memoryview(buf)[:n]
        return -EIO if self.dead or self.failing else 0

    def ioctl(self, op, arg):
        if op == 4:
            return BLOCKS
        if op == 5:
            return BLOCK
        if op == 6:
            for at in range(arg * BLOCK, arg * BLOCK + self._n(BLOCK), PAGE):
                self.kept[at : at + PAGE] = b"\xff" * PAGE
            return -EIO if self.dead or self.failing else 0
        return 0


class RamDisk(RamFlash):
    """A disk for FAT: the power goes between two sectors, which are written whole. Each cut may lose a cluster."""

    size = 1 << 20

    def writeblocks(self, block, buf, offset=0):
        if self._n(2) == 2:
            at = block * SECTOR
            self.kept[at : at + SECTOR] = buf
        return -EIO if self.dead or self.failing else 0

    def readblocks(self, block, buf, offset=0):
        super().readblocks(0, buf, block * SECTOR)

    def ioctl(self, op, arg):
        return {4: self.size // SECTOR, 5: SECTOR}.get(op, 0)


#: The file system of a kind of flash, and its options.
SYSTEMS = {RamFlash: (vfs.VfsLfs2, {"progsize": PAGE}), RamDisk: (vfs.VfsFat, {})}


def mount(flash):
    """Mount the file system of ``flash``, as a board's start does; make it first if there is none."""
    kind, options = SYSTEMS[type(flash)]
    try:
        vfs.umount(MOUNT)
    except OSError:
        pass
    if not any(flash.kept):
        kind.mkfs(flash, **options)
    vfs.mount(kind(flash, **options), MOUNT)


class LittlefsFile(FlashFile):
    """The journal's file on such flash; ``kept`` and ``cut_after`` as ``journal_file.MemoryFile`` has them.

    The power goes in the middle of a call, which does not return.
    """

    def __init__(self, kept=None, torn=0, cut_after=-1):
        self.flash = RamFlash(kept)
        mount(self.flash)
        # Starting is a part of the life, too; the file system of the first one is there.
        self.flash.cut_after = cut_after
        super().__init__(MOUNT + "/outbox.hwj")

    @property
    def kept(self):
        return self.flash.kept

    @property
    def cut_after(self):
        return self.flash.cut_after

    def _call(self, method, *arguments):
        try:
            return method(self, *arguments)
        except OSError:
            if not self.flash.dead:
                raise
        finally:
            if self.flash.dead:
                raise PowerCutError

    def load(self):
        return self._call(FlashFile.load)

    def write(self, buf, at, n):
        self._call(FlashFile.write, buf, at, n)

    def sync(self):
        self._call(FlashFile.sync)

    def begin(self):
        self._call(FlashFile.begin)

    def replace(self):
        self._call(FlashFile.replace)

    def close(self):
        self._call(FlashFile.close)
