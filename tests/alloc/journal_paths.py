# paths: journal publish qos 1, journal publish qos 2, journal received id, journal synced later
# frames: journal publish qos 1, journal publish qos 2, journal received id, journal synced later
"""An outbox with a journal: between two new files it allocates nothing, but for what its file does."""

from prove import prove

from headwater.connection import AT1, AT2, DONE, REL
from headwater.journal import JournalOutbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes


class NoFile:
    """Takes everything and keeps nothing."""

    def __init__(self) -> None:
        self.written = 0
        self.syncs = 0

    def load(self) -> "bytearray | None":
        return None

    def write(self, buf: "Bytes", at: int, n: int) -> None:
        self.written += n

    def sync(self) -> None:
        self.syncs += 1

    def begin(self) -> None:
        pass

    def replace(self) -> None:
        pass

    def set_aside(self) -> None:
        pass

    def close(self) -> None:
        pass


file = NoFile()
box = JournalOutbox(file, 256, 4, limit=1000000)
later = JournalOutbox(file, 256, 4, limit=1000000, sync_every=3, sync_ms=10)


def publish_1() -> None:
    assert box.reserve(40) >= 0
    i = box.commit(40, AT1)
    assert i >= 0
    assert box.set(i, DONE) == 0


def publish_2() -> None:
    assert box.reserve(40) >= 0
    i = box.commit(40, AT2)
    assert box.set(i, REL) == 0
    assert box.set(i, DONE) == 0


def received() -> None:
    assert box.opened(513) == 0
    assert box.closed(513) == 0


def synced_later() -> None:
    assert later.reserve(40) >= 0
    i = later.commit(40, AT1)
    assert later.set(i, DONE) == 0
    assert later.tick(file.written & 0xFFFF) == 0
    assert later.sync() == 0


prove("journal publish qos 1", publish_1)
prove("journal publish qos 2", publish_2)
prove("journal received id", received)
prove("journal synced later", synced_later)
