"""A journal's file in memory, on flash that loses its power: at any call, in the middle of any write."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes


class PowerCutError(Exception):
    """The power is gone."""


class MemoryFile:
    """The contract ``headwater.types.JournalFile``; ``kept`` is what a power cut leaves, None when there is no file.

    ``torn``: how many of the bytes written since the last sync stay all the same, as on FAT. ``cut_after``: how many
    more bytes and syncs until the power goes, -1 for never. ``room``: how many bytes the file system has, -1 for as
    many as you like.
    """

    def __init__(self, kept: "bytes | None" = None, torn: int = 0, cut_after: int = -1, room: int = -1):
        self.kept = kept
        self.torn = torn
        self.cut_after = cut_after
        self.room = room
        self.syncs = 0
        self.rewrites = 0
        self.written = 0
        self.aside: bytes | None = None
        self._cache = bytearray()
        self._new = False
        self._open = False

    def load(self) -> "bytearray | None":
        if self.kept is None:
            return None
        self._cache = bytearray(self.kept)
        self._new = False
        self._open = True
        return bytearray(self.kept)

    def write(self, buf: "Bytes", at: int, n: int) -> None:
        assert self._open, "there is no file"
        for i in range(at, at + n):
            self._spend()
            if 0 <= self.room <= len(self._cache) + (len(self.kept or b"") if self._new else 0):
                raise OSError(28)
            self._cache.append(buf[i])
            self.written += 1

    def sync(self) -> None:
        self._spend()
        self.syncs += 1
        self.kept = bytes(self._cache)

    def begin(self) -> None:
        self._spend()
        self._cache = bytearray()
        self._new = self._open = True

    def replace(self) -> None:
        self._spend()
        self.rewrites += 1
        self.kept = bytes(self._cache)
        self._new = False

    def set_aside(self) -> None:
        self.aside = self.kept
        self.kept = None
        self._open = False

    def close(self) -> None:
        pass

    def _spend(self) -> None:
        if self.cut_after == 0:
            if not self._new and self.kept is not None:
                stable = len(self.kept)
                self.kept = bytes(self._cache[: stable + self.torn])
            raise PowerCutError
        self.cut_after -= 1
