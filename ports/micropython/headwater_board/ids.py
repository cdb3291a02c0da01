"""Board id and boot counter for message ids of IBM MQ.

segmenter = Segmenter(client, bytearray(1016), group_ids())
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.ibmmq.segments import GroupIds


def board_id() -> bytes:
    """Return ``machine.unique_id()``, the id of the chip; empty without one, as under the unix build."""
    try:
        from machine import unique_id
    except ImportError:
        return b""
    return unique_id()


def group_ids() -> "GroupIds":
    """Return a source of GroupIds for this boot. Call it once per boot.

    The boot number is eight random bytes, from hardware on ESP32 and RP2. On a port without ``os.urandom``, create
    ``GroupIds`` with a persistent boot counter.
    """
    # Imported here, so that ``board_id`` alone does not load the segmenter.
    from headwater.ibmmq.segments import GroupIds

    return GroupIds(board_id(), os.urandom(8))
