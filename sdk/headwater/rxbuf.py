"""The receive buffer: a window to read into, what was read, and what of it is still to be parsed.

Reading must not allocate, so it cannot make a slice of the buffer to read into. The buffer instead keeps a few views
made once, each beginning at another multiple of a step and reaching to the end. Either the unparsed rest is moved,
before a read, so that it ends where a view begins; or what was read is moved, after it, to the end of the rest.
Whichever is shorter is moved, so that the work stays in proportion to the bytes read, however small the pieces they
come in. A packet is parsed where it lies.
"""

from headwater.wire import const

_VIEWS = const(8)


class RxBuf:
    """``size`` bytes; packets up to ``capacity`` bytes (seven eighths of it) can be held whole.

    ``buf[start:end]`` is what was read and not yet parsed. ``window()`` makes ``view`` and ``room`` ready: read at most
    ``room`` bytes to the start of ``view``, and hand their number to the session. It calls ``join`` when ``gap`` is
    not 0, and moves ``end`` and ``start``. Behind it, ``buf`` has ``extra`` bytes that are nobody's business here.
    """

    #: How far behind ``end`` the view begins: what was read is to be joined with what was there.
    gap = 0

    def __init__(self, size: int, extra: int = 0):
        step = size // _VIEWS
        if step < 2:
            raise ValueError("the receive buffer needs at least 16 bytes")
        self.buf = bytearray(size + extra)
        self.size = size
        self.step = step
        self.capacity = (_VIEWS - 1) * step
        whole = memoryview(self.buf)
        self._views = [whole[i * step :] for i in range(_VIEWS)]
        self.clear()

    def clear(self) -> None:
        """Forget what was read: for a new connection."""
        self.start = self.end = self.gap = self._mark = 0
        self.view = self._views[0]
        self.room = self.size

    def window(self) -> int:
        """Make room to read into ``view``; returns ``room``, 0 when the buffer is full of unparsed bytes."""
        end = self.end
        n = end - self.start
        if n == 0:
            self.start = self.end = self.gap = self._mark = 0
            self.view = self._views[0]
            self.room = self.size
            return self.size
        step = self.step
        if n > self.capacity:
            # Only what cannot be parsed yet for want of room elsewhere (acknowledgements to be sent) can be this much.
            self.room = 0
            return 0
        if n <= end - self._mark:
            # The rest is no longer than what the read before brought: it moves.
            k = (n + step - 1) // step
            if end != k * step:
                end = k * step
                self._move(self.start, end - n, n)
        else:
            # The next read is likely to bring less than there is already: what it brings will move.
            if end > self.capacity:
                end = n
                self._move(self.start, 0, n)
            k = (end + step - 1) // step
        self.start = end - n
        self.end = self._mark = end
        self.gap = k * step - end
        self.view = self._views[k]
        self.room = self.size - k * step
        return self.room

    def join(self, n: int) -> None:
        """Move ``n`` bytes, just read into ``view``, to where ``end`` is: over the gap."""
        end = self.end
        self._move(end + self.gap, end, n)
        self.gap = 0

    def _move(self, start: int, to: int, n: int) -> None:
        buf = self.buf
        if to < start:
            for i in range(n):
                buf[to + i] = buf[start + i]
        else:
            i = n
            while i:
                i -= 1
                buf[to + i] = buf[start + i]
