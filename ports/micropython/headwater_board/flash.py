"""Outbox in a file on the board's flash.

    outbox = flash_outbox("/outbox.hwj", size=2048)
    client = Client(Tcp("broker.local"), b"board-1", clean_start=False, outbox=outbox)

``docs/stores.md`` describes what survives a power cut, flash wear, and the options.
"""

import os

from headwater.journal import JournalOutbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from io import FileIO

    from headwater.types import Bytes

_ENOSPC = 28
_EIO = 5


class FlashFile:
    """The file ``path`` of a journal (``headwater.types.JournalFile``).

    ``path.new`` is the successor while it is written, ``path.bad`` a file that was no journal. On littlefs a rename
    replaces the old file atomically. On FAT the old file is removed first; ``load`` then finds the successor.
    """

    def __init__(self, path: str):
        self.path = path
        self._new = path + ".new"
        self._out: FileIO | None = None

    def load(self) -> "bytearray | None":
        """Return the content of the file; None if there is no file."""
        size = _size(self.path)
        if size < 0:
            # The power was cut between the removal of the old file and the rename of the new one.
            if _size(self._new) <= 0:
                # Or before the first file had any content.
                return None
            os.rename(self._new, self.path)
            size = _size(self.path)
        elif _size(self._new) >= 0:
            os.remove(self._new)
        image = bytearray(size)
        with open(self.path, "rb") as file:
            if file.readinto(image) != size:
                raise OSError(_EIO)
        self._out = open(self.path, "ab")
        return image

    def write(self, buf: "Bytes", at: int, n: int) -> None:
        """Append ``buf[at : at + n]``."""
        if self._out.write(buf, at, n) != n:  # type: ignore[union-attr]
            raise OSError(_ENOSPC)

    def sync(self) -> None:
        """Sync the file."""
        self._out.flush()  # type: ignore[union-attr]

    def begin(self) -> None:
        """Create an empty successor."""
        try:
            self.close()
        except OSError:
            # Its unwritten content is written to the successor.
            pass
        self._out = open(self._new, "wb")

    def replace(self) -> None:
        """Replace the file by its successor."""
        self.close()
        os.rename(self._new, self.path)
        self._out = open(self.path, "ab")

    def set_aside(self) -> None:
        """Rename the file to ``.bad``."""
        self.close()
        os.rename(self.path, self.path + ".bad")

    def close(self) -> None:
        """Close the file."""
        file = self._out
        if file is not None:
            self._out = None
            file.close()


def _size(path: str) -> int:
    """Return the size of a file; -1 if there is none."""
    try:
        return os.stat(path)[6]
    except OSError:
        return -1


def flash_outbox(
    path: str,
    size: int = 1024,
    slots: int = 16,
    receive_window: int = 20,
    limit: int = 480,
    sync_every: int = 1,
    sync_ms: int = 0,
    protocol: int = 0,
) -> JournalOutbox:
    """Return the outbox in the file ``path``; the options are those of ``headwater.journal.JournalOutbox``.

    Raises ValueError if it has messages of another ``protocol``, OSError if the file can be neither read nor created.
    """
    return JournalOutbox(FlashFile(path), size, slots, receive_window, limit, sync_every, sync_ms, protocol)
