"""Unsent messages in RAM; the oldest are dropped when it is full.

    keeper = Keeper(client, backlog=Backlog(4096, 64))

Use it for telemetry where the newest data matters. A keeper with a backlog puts messages of every QoS there while it
is not connected or the outbox is full. After reconnecting it publishes them in order.

Messages in the backlog **may be dropped**: they have never been sent. Messages in the outbox are **never dropped**:
they were published while connected, may have been sent, and are unacknowledged. A reset loses the backlog.
"""

from headwater.connection import RamOutbox
from headwater.errors import E_AGAIN, E_ARGUMENT, E_CLOSED, E_OFFLINE, E_QOS, E_TOO_LARGE, E_TOPIC, E_WINDOW
from headwater.mqtt.packets import check_name, publish_size
from headwater.wire import const, get_u16, is_bytes, put_block

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.client import Client
    from headwater.mqtt.session import ClientSession
    from headwater.types import Bytes

_DONE = const(4)
_HEAD = const(3)
_MORE = (E_AGAIN, E_WINDOW, E_OFFLINE)


class Backlog:
    """Up to ``slots`` messages in ``size`` bytes: topic, payload and three bytes each.

    Only ``drain`` allocates after construction: two views for each message (64 bytes on a 32-bit board).
    """

    def __init__(self, size: int, slots: int):
        self._box = RamOutbox(size, slots)
        self._view = memoryview(self._box.buf)
        #: The numbers of waiting and of dropped messages.
        self.count = 0
        self.dropped = 0

    def put(self, session: "ClientSession", topic: "Bytes", payload: "Bytes", qos: int, retain: bool) -> int:
        """Add a message, and drop the oldest ones to make room. Return 0 or an error.

        Errors: E_TOPIC, E_QOS, E_ARGUMENT; E_TOO_LARGE for this backlog or for ``session``, which will send the
        message.
        """
        if qos != 0 and qos != 1 and qos != 2:
            return E_QOS
        if not is_bytes(topic) or not is_bytes(payload):
            return E_ARGUMENT
        n = len(topic)
        if n > 65535 or check_name(topic, 0, n):
            return E_TOPIC
        size = publish_size(topic, payload, qos)
        if size < 0 or size > (len(session.outbox.buf) if qos else len(session.tx)):
            return E_TOO_LARGE
        return self._put(topic, payload, qos << 1 | (1 if retain else 0), n + len(payload) + _HEAD)

    def _put(self, topic: "Bytes", payload: "Bytes", flags: int, n: int) -> int:
        box = self._box
        if n > len(box.buf):
            return E_TOO_LARGE
        while box.reserve(n) < 0:
            self._pop()
            self.dropped += 1
        at = box.reserved
        box.buf[at] = flags
        at = put_block(box.buf, at + 1, topic)
        box.buf[at : at + len(payload)] = payload
        box.commit(n, 1)
        self.count = box.count
        return 0

    def drain(self, client: "Client") -> None:
        """Publish messages, oldest first, until the client accepts no more."""
        box = self._box
        while box.count:
            i = box.head
            at = box.at[i]
            topic_end = at + _HEAD + get_u16(box.buf, at + 1)
            status = client.publish(
                self._view[at + _HEAD : topic_end],
                self._view[topic_end : at + box.size[i]],
                box.buf[at] >> 1,
                box.buf[at] & 1 == 1,
            )
            if status in _MORE or status == E_CLOSED:
                return
            # A permanent refusal, which ``put`` prevents, must not block the other messages.
            self.dropped += status < 0
            self._pop()

    def _pop(self) -> None:
        self._box.set(self._box.head, _DONE)
        self.count = self._box.count
