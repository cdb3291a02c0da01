"""Decode frequent FMQ frames fast.

These are successful answers and PUBLISH without tags. All other frames are left to the core's decoder.
"""

from headwater.fmq import spec
from headwater.fmq.frames import Frame

_PUBLISH = spec.PUBLISH
#: First bytes. DUP at QoS 0 is invalid.
_PUBLISHED = frozenset(
    _PUBLISH << 4 | dup << 3 | qos << 1 | retain
    for qos in (0, 1, 2)
    for dup in ((0, 1) if qos else (0,))
    for retain in (0, 1)
)
_BARE = frozenset(kind << 4 for kind in (spec.PUBREC, spec.PUBREL, spec.PUBCOMP))
_ACK = spec.ACK << 4
_USUAL = _PUBLISHED | _BARE | {_ACK}
#: The tags of a time of eight bytes, of a topic below 256 bytes, and of an empty list of tags.
_TIME, _TIME_SIZE = spec.DATETIME << 4, 9
_TOPIC = spec.STRING << 4 | 1
_NO_TAGS = spec.LIST << 4
#: The maximum offset of the time in an id; the maximum size of a length after its first byte.
_LONGEST = 10
_LONGEST_LENGTH = 4


def usual(f: Frame, data: bytes, at: int, end: int) -> int:
    """Decode a whole frequent frame at ``at``; ``data`` is ``f.buf``.

    Returns the offset after it. 0 says nothing about the frame.
    """
    try:
        head = data[at]
        if head not in _USUAL:
            return 0
        i = at + 2 + (data[at + 1] & 15)
        i += 1 + (data[i] >> 4)
        if data[i] != _TIME or i > at + _LONGEST:
            return 0
        f.head = head
        f.id_at = at + 1
        f.id_end = i = i + _TIME_SIZE
        if head in _PUBLISHED:
            return _publish(f, data, i, end)
        if head == _ACK:
            if data[i]:
                return 0
            i += 1
    except IndexError:
        return 0
    f.code = f.count = 0
    f.body = f.end = i
    return i if i <= end else 0


def _publish(f: Frame, data: bytes, i: int, end: int) -> int:
    """Decode a PUBLISH from its length on."""
    size = data[i]
    if size < 16:
        i += 1
    elif size < 32:
        size = size & 15 | data[i + 1] << 4
        i += 2
    elif size >> 4 > _LONGEST_LENGTH:
        return 0
    else:
        size = size & 15 | int.from_bytes(data[i + 1 : i + 1 + (size >> 4)], "little") << 4
        i += 1 + (data[i] >> 4)
    stop = i + size
    if size > f.limit or stop > end or data[i] != _TOPIC:
        return 0
    tags = i + 2 + data[i + 1]
    # The core checks UTF-8.
    if tags >= stop or data[tags] != _NO_TAGS or not data[i:tags].isascii():
        return 0
    f.body = i
    f.end = stop
    f.topic_at = i + 2
    f.topic_end = f.tags_at = tags
    f.payload_at = tags + 1
    f.count = 3
    f.at[0] = i
    return stop
