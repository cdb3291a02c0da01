"""Reconnect an MQTT client, restore its subscriptions, and publish while offline. Never blocks.

    keeper = Keeper(Client(Tcp("broker.local"), b"board-1", clean_start=False))
    keeper.subscribe(b"board-1/commands", 1)
    keeper.start()
    while True:
        keeper.publish(b"board-1/telemetry", sample(), 1)
        keeper.wait(1000)

``headwater.reconnect`` describes how it reconnects. Only ``subscribe`` allocates.
"""

from headwater.errors import E_ARGUMENT, E_FILTER, E_QOS
from headwater.mqtt.packets import check_filter
from headwater.reconnect import CONNECTING as CONNECTING
from headwater.reconnect import GIVEN_UP as GIVEN_UP
from headwater.reconnect import OFF as OFF
from headwater.reconnect import ONLINE as ONLINE
from headwater.reconnect import PASSING as PASSING
from headwater.reconnect import PAUSE as PAUSE
from headwater.reconnect import WANTED, BaseKeeper, enqueue
from headwater.wire import const, is_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.backlog import Backlog
    from headwater.mqtt.client import Client
    from headwater.types import Bytes

# Upper limit of the subscription options (MQTT 5.0, 3.8.3.1).
_OPTIONS = const(64)


class Keeper(BaseKeeper):
    """Reconnects ``client`` automatically from ``start`` to ``stop`` (``headwater.reconnect.BaseKeeper``)."""

    client: "Client"
    backlog: "Backlog | None"

    def publish(self, topic: "Bytes", payload: "Bytes", qos: int = 0, retain: bool = False) -> int:
        """Publish, connected or not. Arguments and results are those of ``Client.publish``.

        The outbox holds messages at QoS 1 and 2. At QoS 0 without a connection the result is E_OFFLINE. With
        ``block_ms``, E_WINDOW, E_AGAIN and E_OFFLINE are returned only after that time, and in a handler, which must
        not block. With a backlog they are never returned: the result is 0, and the message has no packet identifier yet
        and may be dropped.
        """
        return enqueue(self, topic, payload, qos, retain)

    def subscribe(self, topic_filter: "Bytes", qos: int = 0) -> int:
        """Subscribe now or once connected, and again if the server has lost the session. Return 0 or an error.

        The server's answer is passed to ``on_answer``. With MQTT 5.0, ``qos`` may include subscription options. Errors:
        E_FILTER, E_QOS, E_ARGUMENT; E_WINDOW if there are ``subscriptions`` already. Subscribing to the same filter
        again changes its QoS.
        """
        try:
            if not 0 <= qos < _OPTIONS or qos & 3 == 3:
                return E_QOS
        except TypeError:
            return E_QOS
        if not is_bytes(topic_filter):
            return E_ARGUMENT
        n = len(topic_filter)
        if n > 65535 or check_filter(topic_filter, 0, n):
            return E_FILTER
        topic_filter = bytes(topic_filter)
        n = self._want(self._find(topic_filter), topic_filter)
        if n < 0:
            return n
        self._more[n] = qos
        return 0

    def unsubscribe(self, topic_filter: "Bytes") -> int:
        """End a subscription. Return 0, or E_UNKNOWN_ID for an unknown filter."""
        return self._take_back(self._find(topic_filter))

    def _find(self, topic_filter: "Bytes") -> int:
        for i in range(len(self._filters)):
            if self._becomes[i] and self._filters[i] == topic_filter:
                return i
        return -1

    def _request(self, i: int, becomes: int) -> int:
        if becomes == WANTED:
            return self.client.subscribe(self._filters[i], self._more[i])
        return self.client.unsubscribe(self._filters[i])
