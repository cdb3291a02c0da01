"""An outbox in a file on the board's flash.

    outbox = flash_outbox("/outbox.hwj", size=2048)
    client = Client(Tcp("broker.local"), b"board-1", clean_start=False, outbox=outbox)

``docs/stores.md`` says what is kept when, what that costs the flash, and how to choose the options.
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
    """A journal in the file ``path`` (``headwater.types.JournalFile``); beside it ``.new``, for the successor, and
    ``.bad``, for what was no journal.

    Made for littlefs, where a rename takes the place of what was there and what is not synced does not exist. On FAT
    the old file is gone a moment before the new one has its name; it is then found under the other.
    """

    def __init__(self, path: str):
        self.path = path
        self._new = path + ".new"
        self._out: FileIO | None = None

    def load(self) -> "bytearray | None":
        """What the file holds, or None."""
        size = _size(self.path)
        if size < 0:
            # The power went between the removal of the old file and the renaming of the new one.
            if _size(self._new) <= 0:
                # Or before the first file had anything in it.
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
        """Make what was written outlive a power cut."""
        self._out.flush()  # type: ignore[union-attr]

    def begin(self) -> None:
        """Begin an empty successor."""
        try:
            self.close()
        except OSError:
            # What it still had to write is written anew now.
            pass
        self._out = open(self._new, "wb")

    def replace(self) -> None:
        """Put the successor into the file's place."""
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
    """The size of a file, or -1 when there is none."""
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
    """The outbox that is kept in the file ``path``, with what it holds; as of ``headwater.journal.JournalOutbox``.

    ValueError when it has messages of another ``protocol``. OSError when the file can be neither read nor made.
    """
    return JournalOutbox(FlashFile(path), size, slots, receive_window, limit, sync_every, sync_ms, protocol)
