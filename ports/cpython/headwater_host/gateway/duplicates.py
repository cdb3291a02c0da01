"""Recognize proven duplicates of a session's messages.

At QoS 1 a PUBLISH with DUP is a duplicate when its packet id and content are those of a message whose PUBACK has not
been sent, in a session that both ends have kept. After the PUBACK, the same id over the same connection is a new
message, whatever DUP says (4.3.2). Over a later connection the message is uncertain: the PUBACK may have been lost.

At QoS 2 the session drops duplicates between PUBREC and PUBREL (4.3.3), so a message with a packet id that it has seen
is a new message.

With DUP and a packet id that this session has not seen, a message is uncertain: an earlier process may have received
it. Without DUP a message is always new.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from headwater.mqtt.spec import DUP
from headwater_host.capture.format import DUPLICATE, ORIGINAL, UNCERTAIN, UNMARKED
from headwater_host.client.mqtt.session import frame_start

if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet

_QOS_2_BIT = 4
# By packet id: never seen in this session; received at QoS 1 and not answered; answered over this connection; over an
# earlier one; received at QoS 2.
_UNSEEN, _OPEN, _ANSWERED, _ANSWERED_BEFORE, _QOS_2 = range(5)
_NEXT_CONNECTION = bytes((_UNSEEN, _OPEN, _ANSWERED_BEFORE, _ANSWERED_BEFORE, _QOS_2)).ljust(256, b"\0")

# A frame and where its topic (with its length) and its payload begin, and the topic ends; or a digest of these.
_Content = tuple[bytes, int, int, int] | bytes


class ReceivedIds:
    """The packet identifiers at QoS 1 and 2 that one session has received."""

    def __init__(self) -> None:
        self._states = bytearray(1 << 16)
        # Unacknowledged messages: receive time and content.
        self._open: dict[int, tuple[int, _Content]] = {}

    def began(self, session_present: bool) -> None:
        """Start a connection, with the session of the connection before or with a new session."""
        if session_present:
            self._states = self._states.translate(_NEXT_CONNECTION)
        else:
            self._states = bytearray(1 << 16)
            self._open.clear()

    def mark(self, p: Packet, frame: bytes, time_ns: int) -> tuple[int, int]:
        """Add a message that has arrived.

        ``frame`` is a copy of the packet that ``p`` shows. Returns its mark (``capture.format``) and, for a DUPLICATE,
        the receive time of the first receipt, otherwise 0.
        """
        packet_id = p.packet_id
        if not packet_id:
            return UNMARKED, 0
        state = self._states[packet_id]
        is_dup = p.head & DUP
        if p.head & _QOS_2_BIT:
            self._states[packet_id] = _QOS_2
            self._open.pop(packet_id, None)
            return UNCERTAIN if is_dup and state == _UNSEEN else ORIGINAL, 0
        start = frame_start(p)
        content = (frame, p.topic_at - 2 - start, p.topic_end - start, p.payload_at - start)
        if is_dup and state == _OPEN:
            first_ns, held = self._open[packet_id]
            if _digest(held) == _digest(content):
                return DUPLICATE, first_ns
        self._states[packet_id] = _OPEN
        self._open[packet_id] = time_ns, content
        return UNCERTAIN if is_dup and state in (_UNSEEN, _ANSWERED_BEFORE) else ORIGINAL, 0

    def answered(self, packet_id: int) -> None:
        """Note that the PUBACK of a message is sent."""
        self._states[packet_id] = _ANSWERED
        self._open.pop(packet_id, None)

    def unanswered(self, packet_id: int) -> None:
        """Note that the connection ended before the PUBACK was sent. Only a digest of the content is kept."""
        found = self._open.get(packet_id)
        if found is not None:
            self._open[packet_id] = found[0], _digest(found[1])


def _digest(content: _Content) -> bytes:
    if isinstance(content, bytes):
        return content
    frame, topic_at, topic_end, payload_at = content
    digest = blake2b(frame[topic_at:topic_end])
    digest.update(memoryview(frame)[payload_at:])
    return digest.digest()
