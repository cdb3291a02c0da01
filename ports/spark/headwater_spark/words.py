"""Read integers at many offsets at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

#: Number of readable zeros after the data.
MARGIN = 64
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)


class Data:
    """Bytes followed by zeros."""

    def __init__(self, data: Octets):
        self.octets = np.zeros(len(data) + MARGIN, np.uint8)
        self.octets[: len(data)] = data
        # The 8 bytes at every offset, without a copy.
        self._words: Any = np.ndarray((len(self.octets) - 7,), "<u8", self.octets, strides=(1,))

    def integers(self, at: Offsets, size: npt.NDArray[Any]) -> Words:
        """Return the integers of `size` bytes (0 to 8) at these offsets."""
        result: Words = self._words[at] & _MASKS[size]
        return result
