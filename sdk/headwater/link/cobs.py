"""Byte stuffing in the manner of COBS, for six bytes at once: what is stuffed has none of ``SPECIALS``.

Consistent overhead byte stuffing (Cheshire and Baker, 1999) replaces each zero by the distance to the next one. Here
the code that stands before a run of other bytes says two things: how long the run is (0 to 33), and which of the
specials, if any, follows it and is left out:

    code = 20 + 7 * length + kind        kind: 0 = none, k = SPECIALS[k]

Every special is less than 20, so no code is one. Codes are 21 to 251; a run of 33 is always of kind 0. The cost is
one byte for 33 at most: a special costs nothing, as its place is taken by the next code.

Why these six: 0x00 ends a frame. 0x03 (ctrl-C) must be able to interrupt a program on a board whose only line is this
one. 0x04 (ctrl-D) would reset a board that is at its prompt, 0x0D would enter a line there. 0x11 and 0x13 are
swallowed by a line with software flow control.
"""

from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

#: What ends a frame.
DELIMITER = const(0)
#: By kind; kind 0 stands for none.
SPECIALS = b"\xff\x00\x03\x04\x0d\x11\x13"

_BASE = const(20)
_KINDS = const(7)
_RUN = const(33)
_FULL = const(251)
#: The kind of each byte below ``_BASE``.
_KIND = b"\x01\x00\x00\x02\x03\x00\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x05\x00\x06"


def stuffed_size(n: int) -> int:
    """The most that ``n`` bytes can become, stuffed in one go."""
    return n + (n + _RUN - 1) // _RUN


def stuff(src: "Bytes", at: int, n: int, out: bytearray, to: int) -> int:
    """Stuff ``src[at:at+n]`` into ``out`` from ``to`` on; returns the offset behind it.

    What is stuffed piece by piece, one behind the other, reads as if it had been stuffed in one go.
    """
    n += at
    code_at = to
    code = _BASE
    to += 1
    while at < n:
        byte = src[at]
        at += 1
        if byte >= _BASE or _KIND[byte] == 0:
            out[to] = byte
            to += 1
            code += _KINDS
            if code < _FULL:
                continue
        else:
            code += _KIND[byte]
        out[code_at] = code
        code_at = to
        code = _BASE
        to += 1
    if code == _BASE:
        return code_at
    out[code_at] = code
    return to


class Unstuffer:
    """Takes the bytes of a line and puts frames together, up to ``capacity`` bytes each, in ``buf``.

    After ``take``, ``size`` is the length of the frame that ended, 0 when none did, -1 when one ended that was
    damaged: too long, cut off, or with a byte where no code can be. What is damaged is skipped up to the next
    delimiter.
    """

    def __init__(self, capacity: int):
        self.buf = bytearray(capacity)
        self.capacity = capacity
        self.reset()

    def reset(self) -> None:
        """Forget a frame of which only a part has come."""
        self.size = 0
        self._n = 0
        self._left = 0
        self._kind = 0

    def take(self, src: "Bytes", at: int, end: int) -> int:
        """Take ``src[at:end]`` up to the first delimiter; returns the offset behind what was taken."""
        buf = self.buf
        n = self._n
        left = self._left
        self.size = 0
        while at < end:
            byte = src[at]
            at += 1
            if left > 0 and byte:
                buf[n] = byte
                n += 1
                left -= 1
            elif byte == DELIMITER:
                self.size = -1 if left else n
                n = left = self._kind = 0
                break
            elif left == 0:
                if not _BASE < byte <= _FULL:
                    left = -1
                    continue
                byte -= _BASE
                left = byte // _KINDS
                self._kind = byte - left * _KINDS
                if n + left + (self._kind > 0) > self.capacity:
                    left = -1
                    continue
            if left == 0 and self._kind:
                buf[n] = SPECIALS[self._kind]
                self._kind = 0
                n += 1
        self._n = n
        self._left = left
        return at
