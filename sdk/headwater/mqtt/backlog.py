"""Unsent messages in RAM, of which the oldest are dropped.

    keeper = Keeper(client, backlog=Backlog(4096, 64))

For telemetry of which the newest matters. While a keeper with a backlog is not connected, what is published goes to
the backlog, at every QoS; and so it does while the outbox is full. Once connected again it goes out in its order.

**What may be dropped** is in the backlog: it was never sent. **What is never dropped** is in the outbox: handed in
while connected, perhaps sent, not yet acknowledged. The backlog is memory, and does not outlive a reset.
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

    Nothing allocates after construction, but ``drain``: two views for each message (64 bytes on a 32-bit board).
    """

    def __init__(self, size: int, slots: int):
        self._box = RamOutbox(size, slots)
        self._view = memoryview(self._box.buf)
        #: How many wait now, and how many were dropped.
        self.count = 0
        self.dropped = 0

    def put(self, session: "ClientSession", topic: "Bytes", payload: "Bytes", qos: int, retain: bool) -> int:
        """Take a message, and drop the oldest to make room for it: 0.

        E_TOPIC, E_QOS, E_ARGUMENT, and E_TOO_LARGE for this backlog or for ``session``, which is to send it.
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
        """Publish from the oldest on, as far as the client takes it now."""
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
            # What is refused for good, which ``put`` rules out, must not hold up the rest.
            self.dropped += status < 0
            self._pop()

    def _pop(self) -> None:
        self._box.set(self._box.head, _DONE)
        self.count = self._box.count
