"""Bytes and little-endian integers at many offsets at once, for the column-wise decoders."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

#: So far behind the end of the data may be read: zeros.
MARGIN = 64
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)


class Data:
    """Bytes, and zeros behind them."""

    def __init__(self, data: Octets):
        self.octets = np.zeros(len(data) + MARGIN, np.uint8)
        self.octets[: len(data)] = data
        # The eight bytes at every offset, without a copy.
        self._words: Any = np.ndarray((len(self.octets) - 7,), "<u8", self.octets, strides=(1,))

    def integers(self, at: Offsets, size: npt.NDArray[Any]) -> Words:
        """The integers of ``size`` bytes (0 to 8) that begin at ``at``."""
        result: Words = self._words[at] & _MASKS[size]
        return result
