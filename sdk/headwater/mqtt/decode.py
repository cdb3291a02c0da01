"""Reading packets (MQTT 3.1.1, sections 2 and 3) at an offset of the receive buffer, into one reusable
cursor.

``Packet`` is the cursor: its fields are integers, most of them offsets into its buffer, and are valid until
the next packet is read. A decoder checks everything the packet claims before a field can be used, so no
accessor fails after it. A decoder returns 0, or a peer's-fault code of ``headwater.errors`` with ``bad_at``
set to the offending offset.
"""

from headwater.errors import (
    E_CODE,
    E_FIELD,
    E_FLAGS,
    E_LENGTH,
    E_PACKET_ID,
    E_RX_QOS,
    E_RX_TOPIC,
    E_SIZE,
    E_TYPE,
    E_UTF8,
)
from headwater.mqtt.topics import BAD_UTF8, check_name
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes, NameCheck

#: Rules for the fixed header of 3.1.1, by packet type. The flags, but PUBLISH's: those that count in the high nibble,
#: what they must be in the low one. The remaining length: 255 where it varies, 254 where there is no such type.
FLAGS = b"\xf0\xf0\xf0\x00\xf0\xf0\xf2\xf0\xf2\xf0\xf2\xf0\xf0\xf0\xf0\xf0"
SIZES = b"\xfe\xff\x02\xff\x02\x02\x02\x02\xff\xff\xff\x02\x00\x00\x00\xfe"
_VARIES = const(255)
_NO_TYPE = const(254)

#: By first byte: 1 for a PUBLISH with a QoS there is, and without DUP at QoS 0 (3.3.1).
MESSAGE = bytearray(256)
for _head in b"\x30\x31\x32\x33\x34\x35\x3a\x3b\x3c\x3d":
    MESSAGE[_head] = 1

#: The answer of ``fixed_header`` when the buffer ends before the header does.
MORE = const(0)


class Packet:
    """A packet in a buffer, as offsets.

    ``head`` is the first byte; ``body`` and ``end`` bound what the remaining length counts. ``packet_id`` is
    0 where there is none. PUBLISH: the topic is ``buf[topic_at:topic_end]``, the payload
    ``buf[payload_at:end]``. CONNACK: ``session_present`` and ``code``. SUBACK: the codes are
    ``buf[payload_at:end]``.
    """

    def __init__(self, buf: "Bytes", check: "NameCheck" = check_name):
        self.buf = buf
        self.check = check
        self.head = self.body = self.end = 0
        self.packet_id = 0
        self.topic_at = self.topic_end = self.payload_at = 0
        self.session_present = False
        self.code = 0
        self.bad_at = 0
        #: From this remaining length on, ``message`` leaves a packet alone; at most 128.
        self.short = 128
        #: The version's rules for the fixed header.
        self.flags = FLAGS
        self.sizes = SIZES

    def kind(self) -> int:
        """The packet type, 0 … 15."""
        return self.head >> 4

    def qos(self) -> int:
        """PUBLISH: 0, 1 or 2."""
        return self.head >> 1 & 3

    def dup(self) -> bool:
        """PUBLISH: whether it may have been sent before."""
        return self.head & 8 != 0

    def retain(self) -> bool:
        """PUBLISH: whether it was retained by the server (3.3.1.3)."""
        return self.head & 1 != 0

    def topic_is(self, name: "Bytes") -> bool:
        """Whether the topic is exactly ``name``; allocates nothing."""
        at = self.topic_at
        n = len(name)
        if self.topic_end - at != n:
            return False
        buf = self.buf
        for i in range(n):
            if buf[at + i] != name[i]:
                return False
        return True

    def topic_bytes(self) -> bytes:
        """A copy of the topic: allocates."""
        return bytes(self.buf[self.topic_at : self.topic_end])

    def topic_text(self) -> str:
        """The topic as text: allocates."""
        return str(self.buf[self.topic_at : self.topic_end], "utf-8")

    def payload_bytes(self) -> bytes:
        """A copy of the payload: allocates."""
        return bytes(self.buf[self.payload_at : self.end])


def fixed_header(p: Packet, at: int, end: int) -> int:
    """Read the fixed header (2.2) at ``at``, of which bytes up to ``end`` are there.

    Returns the offset behind the packet, which may lie beyond ``end``; MORE (0) when the header is not all
    there; E_LENGTH, E_TYPE, E_FLAGS or E_RX_QOS, or E_SIZE for a type that has another length. Sets ``head``,
    ``body`` and ``end``.
    """
    buf = p.buf
    if at >= end:
        return MORE
    head = buf[at]
    kind = head >> 4
    p.bad_at = at
    if p.sizes[kind] == _NO_TYPE:
        return E_TYPE
    if kind == 3:
        if head & 6 == 6:
            return E_RX_QOS
        if head & 14 == 8:
            return E_FLAGS
    elif head & p.flags[kind] >> 4 != p.flags[kind] & 15:
        return E_FLAGS
    at += 1
    if at >= end:
        return MORE
    if buf[at] < 128:
        p.body = at + 1
        p.end = at + 1 + buf[at]
    else:
        bad = _long_length(p, at, end)
        if bad <= 0:
            return bad
    p.head = head
    if p.end - p.body != p.sizes[kind] != _VARIES:
        p.bad_at = p.body
        return E_SIZE
    return p.end


def _long_length(p: Packet, at: int, end: int) -> int:
    """A remaining length of more than one byte (2.2.3): 1 when ``body`` and ``end`` are set, MORE or E_LENGTH."""
    size = shift = 0
    while shift < 28:
        if at >= end:
            return MORE
        b = p.buf[at]
        at += 1
        size |= (b & 127) << shift
        if b < 128:
            p.body = at
            p.end = at + size
            return 1
        shift += 7
    p.bad_at = at
    return E_LENGTH


def message(p: Packet, at: int, end: int) -> int:
    """Take the packet at ``at`` apart if it is a PUBLISH that is all there, below ``p.short`` and well-formed.

    Returns the offset behind it. 0 says nothing about the packet: ``fixed_header`` and ``publish`` will. A port may
    hand a session its own faster function with the same answers, where 0 is always a right one.
    """
    buf = p.buf
    if at + 4 > end or not MESSAGE[buf[at]] or buf[at + 1] >= p.short:
        return 0
    stop = at + 2 + buf[at + 1]
    i = buf[at + 2] << 8 | buf[at + 3]
    i += at + 4
    if i > stop or stop > end or p.check(buf, at + 4, i):
        return 0
    p.topic_end = i
    if buf[at] & 6:
        if i + 2 > stop:
            return 0
        p.packet_id = buf[i] << 8 | buf[i + 1]
        if p.packet_id == 0:
            return 0
        i += 2
    else:
        p.packet_id = 0
    p.head = buf[at]
    p.topic_at = at + 4
    p.payload_at = i
    p.end = stop
    return stop


def publish(p: Packet) -> int:
    """PUBLISH (3.3)."""
    buf = p.buf
    at = p.body
    end = p.end
    if end - at < 2:
        p.bad_at = at
        return E_FIELD
    topic_end = at + 2 + (buf[at] << 8 | buf[at + 1])
    if topic_end > end:
        p.bad_at = at
        return E_FIELD
    at += 2
    bad = p.check(buf, at, topic_end)
    if bad:
        p.bad_at = at
        return E_UTF8 if bad == BAD_UTF8 else E_RX_TOPIC
    p.topic_at = at
    p.topic_end = topic_end
    if p.head & 6 == 0:
        p.packet_id = 0
        p.payload_at = topic_end
        return 0
    if topic_end + 2 > end:
        p.bad_at = topic_end
        return E_FIELD
    p.packet_id = buf[topic_end] << 8 | buf[topic_end + 1]
    p.payload_at = topic_end + 2
    if p.packet_id == 0:
        p.bad_at = topic_end
        return E_PACKET_ID
    return 0


def packet_id(p: Packet) -> int:
    """PUBACK, PUBREC, PUBREL, PUBCOMP, UNSUBACK (3.4 to 3.7, 3.11)."""
    buf = p.buf
    at = p.body
    p.packet_id = buf[at] << 8 | buf[at + 1]
    p.payload_at = at + 2
    p.bad_at = at
    return 0 if p.packet_id else E_PACKET_ID


def connack(p: Packet) -> int:
    """CONNACK (3.2)."""
    buf = p.buf
    at = p.body
    p.bad_at = at
    if buf[at] > 1:
        return E_FLAGS
    p.session_present = buf[at] == 1
    p.code = buf[at + 1]
    if p.code > 5 or (p.code and p.session_present):
        p.bad_at = at + 1
        return E_CODE
    return 0


def suback(p: Packet) -> int:
    """SUBACK (3.9): a packet id, then at least one code of 0, 1, 2 or 0x80."""
    buf = p.buf
    at = p.body
    end = p.end
    p.bad_at = at
    if end - at < 3:
        return E_SIZE
    for i in range(at + 2, end):
        if buf[i] > 2 and buf[i] != 0x80:
            p.bad_at = i
            return E_CODE
    return packet_id(p)


def bare(p: Packet) -> int:
    """PINGREQ, PINGRESP, DISCONNECT (3.12 to 3.14): nothing behind the fixed header, which has said so."""
    return 0


def no_decoder(p: Packet) -> int:
    """A packet type that this end does not take."""
    return E_TYPE


#: The decoder of each packet type; ``decode_server`` fills the places of those that only a server takes.
DECODERS = (
    no_decoder,
    no_decoder,
    connack,
    publish,
    packet_id,
    packet_id,
    packet_id,
    packet_id,
    no_decoder,
    suback,
    no_decoder,
    packet_id,
    bare,
    bare,
    bare,
    no_decoder,
)
