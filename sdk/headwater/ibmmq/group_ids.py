"""GroupIds: 24 bytes that no other board makes, nor this one after a reset.

    byte 0       0x60 + the length of the board's id, or 0x6F when that is more than eleven
    bytes 1-11   the board's id, behind it NULs
    bytes 12-19  the number of the boot, before it NULs
    bytes 20-23  which of this boot it is, from 1 on

Two boards differ in the first twelve bytes, as long as their makers gave them ids of their own, of eleven bytes at most
(ESP32 has six, RP2 eight); a longer id is folded into eleven. Two boots of one board differ in their number. Chance is
the simplest that is right: of 64 random bits, a board that starts a thousand times a day for ten years has the same
twice with a probability of 4e-7, and a million boots of boards without an id, with one of 3e-8. A counter would have to
be written at each start, and begins again when somebody wipes the flash. ``headwater_board.ids`` has both.

No id is all NULs (MQGI_NONE), and none begins with ``AMQ`` or ``CSQ`` in ASCII or EBCDIC, as those that queue managers
make.
"""

from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

GROUP_ID_SIZE = const(24)
_BOARD = const(11)
_BOOT = const(12)
_COUNT = const(20)


class GroupIds:
    """Makes GroupIds from ``board``, bytes of any length, and ``boot``, one to eight that are others at each boot.

    Nothing allocates after construction.
    """

    def __init__(self, board: "Bytes", boot: "Bytes"):
        if not 0 < len(boot) <= _COUNT - _BOOT:
            raise ValueError("the number of the boot is 1 to 8 bytes")
        made = bytearray(GROUP_ID_SIZE)
        n = len(board)
        made[0] = 0x60 | (n if n <= _BOARD else 15)
        for i in range(n):
            at = 1 + i % _BOARD
            made[at] = (made[at] * 31 + board[i]) & 255
        made[_COUNT - len(boot) : _COUNT] = boot
        self._made = made

    def put_next(self, buf: bytearray, at: int) -> int:
        """Write the next id at ``at``: the offset behind it. 2**32 of them are different."""
        made = self._made
        i = GROUP_ID_SIZE - 1
        while i >= _COUNT:
            if made[i] < 255:
                made[i] += 1
                break
            made[i] = 0
            i -= 1
        buf[at : at + GROUP_ID_SIZE] = made
        return at + GROUP_ID_SIZE
