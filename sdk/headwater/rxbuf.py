"""The receive buffer: a window to read into, what was read, and what of it is still to be parsed.

Reading must not allocate, so it cannot make a slice of the buffer to read into. The buffer instead keeps a
few views made once, each beginning at another multiple of a step and reaching to the end. Before a read, the
unparsed rest is moved so that it ends where a view begins; the bytes read then stand behind it. A packet is
parsed where it lies.
"""

from headwater.wire import const

_VIEWS = const(8)


class RxBuf:
    """``size`` bytes; packets up to ``capacity`` bytes (seven eighths of it) can be held whole.

    ``buf[start:end]`` is what was read and not yet parsed. ``window()`` makes ``view`` and ``room`` ready:
    read at most ``room`` bytes to the start of ``view``, and hand their number to the session, which moves
    ``end`` and ``start``.
    """

    def __init__(self, size: int):
        step = size // _VIEWS
        if step < 2:
            raise ValueError("the receive buffer needs at least 16 bytes")
        self.buf = bytearray(size)
        self.size = size
        self.step = step
        self.capacity = size - step
        whole = memoryview(self.buf)
        self._views = [whole[i * step :] for i in range(_VIEWS)]
        self.clear()

    def clear(self) -> None:
        """Forget what was read: for a new connection."""
        self.start = self.end = 0
        self.view = self._views[0]
        self.room = self.size

    def window(self) -> int:
        """Make room to read into ``view``; returns ``room``, 0 when the buffer is full of unparsed bytes."""
        n = self.end - self.start
        if n == 0:
            self.start = self.end = 0
            self.view = self._views[0]
            self.room = self.size
            return self.size
        step = self.step
        k = (n + step - 1) // step
        if k >= _VIEWS:
            # Only what cannot be parsed yet for want of room elsewhere (acknowledgements to be sent) can be
            # this much.
            self.room = 0
            return 0
        end = k * step
        if end != self.end:
            self._move(end - n, n)
            self.start = end - n
            self.end = end
        self.view = self._views[k]
        self.room = self.size - end
        return self.room

    def _move(self, to: int, n: int) -> None:
        buf = self.buf
        start = self.start
        if to < start:
            for i in range(n):
                buf[to + i] = buf[start + i]
        else:
            i = n
            while i:
                i -= 1
                buf[to + i] = buf[start + i]
