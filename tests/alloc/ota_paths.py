# paths: update piece, update duplicate, update report, update idle, message on another topic
# frames: update piece, update duplicate, update report
"""Receiving an update allocates nothing between two files."""

import json
from binascii import hexlify
from hashlib import sha256

import vfs
from prove import prove

from headwater.reconnect import ONLINE
from headwater.wire import Message
from headwater_board import loader, ota

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BLOCK = 4096


class RamFlash:
    """Flash in memory."""

    def __init__(self) -> None:
        self.data = bytearray(64 * _BLOCK)

    def readblocks(self, block: int, buf: "Any", offset: int = 0) -> None:
        at = block * _BLOCK + offset
        for i in range(len(buf)):
            buf[i] = self.data[at + i]

    def writeblocks(self, block: int, buf: "Any", offset: int = 0) -> None:
        at = block * _BLOCK + offset
        for i in range(len(buf)):
            self.data[at + i] = buf[i]

    def ioctl(self, op: int, arg: int) -> int:
        return 64 if op == 4 else _BLOCK if op == 5 else 0


class Keeper:
    """A connection that takes every report."""

    def __init__(self) -> None:
        self.state = ONLINE
        self.connections = 0
        self.client = self.session = self.rx = self.dialer = self
        self.capacity = 448
        self.reports = 0

    def ticks_ms(self) -> int:
        return 0

    def publish(self, topic: bytes, payload: bytes, qos: int) -> int:
        self.reports += 1
        return 1


class Piece(Message):
    """A message on the update topic."""

    def __init__(self, payload: bytes) -> None:
        self.whole = bytearray(b"t" + payload)
        self.buf = self.whole
        self.topic_at = 0
        self.topic_end = self.payload_at = 1
        self.end = len(self.buf)

    def move(self, at: int) -> None:
        self.whole[10] = at >> 16
        self.whole[11] = at >> 8 & 255
        self.whole[12] = at & 255


# The unix build's root is this machine's; the one in WebAssembly is in memory.
if hasattr(vfs, "VfsLfs2"):
    flash = RamFlash()
    littlefs: Any = vfs.VfsLfs2
    littlefs.mkfs(flash, progsize=256)
    vfs.umount("/")
    vfs.mount(littlefs(flash, progsize=256), "/")

data = bytes(100000)
manifest = {"format": 1, "target": "t", "version": "1", "serial": 1}
manifest["files"] = [["x", len(data), hexlify(sha256(data).digest()).decode()]]
text = json.dumps(manifest).encode()
head = b"HWU1" + bytes([len(text) >> 8, len(text) & 255])
image = head + ota.hmac_sha256(b"a key of 16 bytes", head + text) + text

loader.started = True
keeper = Keeper()
receiver = ota.Receiver(keeper, b"t", b"a key of 16 bytes", "t")
receiver.take(Piece(image[6:14] + b"\0\0\0\0" + image))
receiver.poll()
assert receiver.state == ota.RECEIVING
keeper.connections = 1
receiver.poll()
piece = Piece(image[6:14] + b"\0\0\0\0" + bytes(64))
asking = Piece(image[6:14] + b"\1\0\0\0" + bytes(64))
other = Piece(b"")
other.whole[0] = 0


def receive() -> None:
    piece.move(receiver.at)
    receiver.take(piece)


def duplicate() -> None:
    piece.move(receiver.at - 64)
    receiver.take(piece)


def report() -> None:
    asking.move(receiver.at - 64)
    receiver.take(asking)
    receiver.poll()


def another() -> None:
    assert not receiver.take(other)


prove("update piece", receive, 200)
prove("update duplicate", duplicate, 200)
before = keeper.reports
prove("update report", report, 200)
assert keeper.reports - before == 401
prove("update idle", receiver.poll, 200)
prove("message on another topic", another, 200)
