"""A buffer that notices when a decoder reads where it has no business."""

import sys


class Guarded(bytearray):
    """A buffer that fails when it is read at or behind ``end``, or before ``start``."""

    start = 0
    end = sys.maxsize

    def __getitem__(self, key):  # type: ignore[no-untyped-def]
        if isinstance(key, slice):
            assert key.step is None and self.start <= key.start <= key.stop <= self.end, "read outside"
        else:
            assert self.start <= key < self.end, "read outside"
        return super().__getitem__(key)
