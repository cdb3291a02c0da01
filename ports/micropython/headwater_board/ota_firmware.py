"""Firmware images on ESP32, for ``headwater_board.ota`` and ``headwater_board.loader``.

Needs a firmware with two OTA partitions (``ota_0``, ``ota_1``): ``docs/updates.md`` lists them.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headwater.types import Bytes

_BLOCK = 4096
# Bytes of the image for each byte of the file that remembers the progress.
_STEP = 16 * _BLOCK
_LABEL = 4
_SIZE = 3


def _partition() -> "Any":
    """Return the class, which only ESP32 has."""
    from esp32 import Partition

    return Partition


def running() -> str:
    """Return the label of the partition that runs."""
    partition = _partition()
    return partition(partition.RUNNING).info()[_LABEL]  # type: ignore[no-any-return]


def next_partition() -> "Any":
    """Return the partition for an update. Raises OSError without OTA partitions."""
    partition = _partition()
    return partition(partition.RUNNING).get_next_update()


def room() -> int:
    """Return the size of that partition; 0 without one."""
    try:
        partition = next_partition()
    except (ImportError, OSError):
        return 0
    # Without a second OTA partition, some versions return the running one.
    return 0 if partition.info()[_LABEL] == running() else partition.info()[_SIZE]


def keep() -> None:
    """Tell the bootloader that this firmware works."""
    try:
        _partition().mark_app_valid_cancel_rollback()
    except OSError:
        # Built without CONFIG_BOOTLOADER_APP_ROLLBACK_ENABLE: the bootloader does not roll back by itself.
        pass


def boot_other() -> "OSError | None":
    """Reset the board into the other firmware. Return the error if that has no valid image."""
    from machine import reset

    try:
        next_partition().set_boot()
    except OSError as error:
        return error
    reset()
    return None


class Image:
    """The image while it is written to its partition, with the methods of a file that ``ota.Receiver`` uses.

    ``path`` is a file with a byte for each 64 KiB that are on flash, so that a power cut costs at most 64 KiB.
    """

    def __init__(self, path: str):
        self._partition = next_partition()
        self._block = bytearray(_BLOCK)
        self._progress = open(path, "ab")
        #: Bytes that were written, here and before.
        self.at = self._progress.seek(0, 2) * _STEP

    def write(self, buf: "Bytes", at: int, n: int) -> int:
        """Take ``n`` bytes of ``buf`` from ``at``; block by block they go to the partition."""
        for i in range(at, at + n):
            self._block[self.at % _BLOCK] = buf[i]
            self.at += 1
            if self.at % _BLOCK == 0:
                self._partition.writeblocks(self.at // _BLOCK - 1, self._block)
                if self.at % _STEP == 0:
                    self._progress.write(b"+")
                    self._progress.flush()
        return n

    def flush(self) -> None:
        """Do nothing: the progress is kept by the step."""

    def close(self) -> None:
        """Write the last block, if it is not full."""
        if self.at % _BLOCK:
            self._partition.writeblocks(self.at // _BLOCK, self._block)
        self._progress.close()


class Written:
    """Reads the image back, for its hash."""

    def __init__(self, size: int):
        self._partition = next_partition()
        self._left = size
        self._at = 0

    def readinto(self, buf: bytearray) -> int:
        """Fill ``buf``, whose length divides 4096. Return the number of bytes that belong to the image."""
        n = min(len(buf), self._left)
        if n:
            self._partition.readblocks(self._at // _BLOCK, buf, self._at % _BLOCK)
            self._at += n
            self._left -= n
        return n

    def close(self) -> None:
        """Do nothing."""
