"""Board id and boot counter.

segmenter = Segmenter(client, bytearray(1016), group_ids())
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.ibmmq.segments import GroupIds


def board_id() -> bytes:
    """``machine.unique_id()``: what the maker gave this chip. Empty where there is none, as under the unix build."""
    try:
        from machine import unique_id
    except ImportError:
        return b""
    return unique_id()


def group_ids() -> "GroupIds":
    """What makes this boot's GroupIds: call it once a boot.

    The number of the boot is eight random bytes, which ESP32 and RP2 have from hardware. On a port that has no
    ``os.urandom`` make ``GroupIds`` from a number that the program counts.
    """
    # Only here: who asks for nothing but ``board_id`` does not load the segmenter.
    from headwater.ibmmq.segments import GroupIds

    return GroupIds(board_id(), os.urandom(8))
