"""Reconnect an FMQ client, restore its subscriptions and consumers, and publish while offline.

    keeper = Keeper(Client(Tcp("hub.local", 7760), b"board-1", clean_start=False))
    keeper.subscribe(b"board-1/commands")
    keeper.consume(b"jobs", b"workers", window=4)
    keeper.start()
    while True:
        keeper.publish(b"board-1/telemetry", sample(), 1)
        keeper.wait(1000)

``headwater.reconnect`` describes how it reconnects. Only connecting and requests allocate.
"""

from array import array

from headwater.connection import send_request
from headwater.errors import E_ARGUMENT, E_FILTER, E_REFUSED
from headwater.fmq.frames import NO_TAGS, check_filter
from headwater.fmq.queues import consume
from headwater.reconnect import (
    ASKED,
    CONSUMING,
    ENDED,
    FREE,
    GRANTED,
    IDLE,
    REFUSED,
    UNWANTED,
    WANTED,
    BaseKeeper,
    enqueue,
)
from headwater.reconnect import CONNECTING as CONNECTING
from headwater.reconnect import GIVEN_UP as GIVEN_UP
from headwater.reconnect import OFF as OFF
from headwater.reconnect import ONLINE as ONLINE
from headwater.reconnect import PAUSE as PAUSE
from headwater.wire import NOT_BYTES, const, is_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from headwater.fmq.client import Client
    from headwater.types import Bytes, Dialer

_LISTS = (tuple, list)
# The hub does not lead; its text is the leader's address.
_MOVED = const(0x9D)
_NONE = (b"", (), b"", 0, False)


class Keeper(BaseKeeper):
    """Reconnects ``client`` automatically from ``start`` to ``stop`` (``headwater.reconnect.BaseKeeper``).

    A subscription is identified by its filter and group. ``on_answer(topic_filter, code)`` is called with 0 when it is
    granted or ended; with a reason code when the hub refuses it or ends its consuming, which starts again on the next
    connection; with a negative status when it cannot be requested. ``on_request(number, code)`` is ``on_answer`` of the
    program's own requests, such as ``register`` and ``call``. FMQ has no ``backlog``.

    A hub that does not lead names the leader (reason 0x9D). It is dialed at once if the dialer has ``aim``; if it does
    not answer, the next dialer follows. So list several hubs.
    """

    client: "Client"

    def __init__(self, client: "Client", dialers: "Sequence[Dialer]" = (), **options: "object"):
        if options.get("backlog") is not None:
            raise ValueError("backlog: not supported by FMQ; use MQTT or leave it out")
        self.on_request = client.on_answer
        super().__init__(client, dialers, **options)  # type: ignore[arg-type]
        # ``connections`` when a named hub was dialed; -1 otherwise.
        self._followed = -1
        self._publish = self._publish_tagged
        self._tags: Bytes = NO_TAGS
        # By index: group, tags, condition, window and whether to acknowledge; the number of the subscription, 0 before
        # it is granted, and that of its CONSUME. Where ``_more`` is 1, the subscription is ended once it is granted:
        # before, it has no id.
        self._asks: list[tuple[Bytes, Sequence[Bytes], Bytes, int, bool]] = [_NONE] * len(self._filters)
        self._numbers = array("H", self._ids)
        self._consumes = array("H", self._ids)

    def publish(
        self, topic: "Bytes", payload: "Bytes", qos: int = 0, retain: bool = False, tags: "Bytes" = NO_TAGS
    ) -> int:
        """Publish, connected or not. Arguments and results are those of ``Client.publish``.

        The outbox holds messages at QoS 1 and 2. E_OFFLINE is returned at QoS 0 without a connection, and before a hub
        has assigned a process number. With ``block_ms``, E_WINDOW, E_AGAIN and E_OFFLINE are returned only after that
        time, and in a handler, which must not block.
        """
        self._tags = tags
        return enqueue(self, topic, payload, qos, retain)

    def _publish_tagged(self, topic: "Bytes", payload: "Bytes", qos: int, retain: bool) -> int:
        return self.client.publish(topic, payload, qos, retain, self._tags)

    def subscribe(self, topic_filter: "Bytes", tags: "Sequence[Bytes]" = (), condition: "Bytes" = b"") -> int:
        """Subscribe now or once connected, and again if the hub has lost the session. Return 0 or an error.

        Errors: E_FILTER, E_ARGUMENT; E_WINDOW if there are ``subscriptions`` already. Subscribing to the same filter
        again changes tags and condition.
        """
        return self._ask_for(topic_filter, (b"", tags, condition, 0, False))

    def consume(
        self,
        topic_filter: "Bytes",
        group: "Bytes",
        tags: "Sequence[Bytes]" = (),
        condition: "Bytes" = b"",
        window: int = 0,
        need_ack: bool = True,
    ) -> int:
        """Consume with a group, on this and every following connection. Return 0 or an error of ``subscribe``.

        ``window`` and ``need_ack`` are those of ``queues.consume``. In a handler, ``topic_of`` returns the subscription
        of a message.
        """
        if not is_bytes(group) or not group or is_bytes(window) or not 0 <= window <= self._most(need_ack):
            return E_ARGUMENT
        return self._ask_for(topic_filter, (bytes(group), tags, condition, window, need_ack))

    def unsubscribe(self, topic_filter: "Bytes", group: "Bytes" = b"") -> int:
        """End a subscription. Return 0, or E_UNKNOWN_ID."""
        i = self._find(topic_filter, group)
        if i >= 0 and (self._becomes[i] == WANTED or self._becomes[i] == ASKED):
            self._more[i] = 1
            return 0
        return self._take_back(i)

    def topic_of(self, source: int) -> "Bytes":
        """Return the filter of the subscription with the session's ``source``; empty for an unknown one."""
        for i in range(len(self._numbers)):
            if source and self._becomes[i] and self._numbers[i] == source:
                return self._filters[i]
        return b""

    def _most(self, need_ack: bool) -> int:
        return self.client.session.taken.places if need_ack else 1 << 29

    def _ask_for(self, topic_filter: "Bytes", ask: "tuple[Bytes, Sequence[Bytes], Bytes, int, bool]") -> int:
        if not is_bytes(ask[2]) or not (is_bytes(ask[1]) or isinstance(ask[1], _LISTS)):
            return E_ARGUMENT
        try:
            if check_filter(topic_filter):
                return E_FILTER
        except NOT_BYTES:
            return E_ARGUMENT
        topic_filter = bytes(topic_filter)
        old = self._find(topic_filter, ask[0])
        i = self._want(old, topic_filter)
        if i < 0:
            return i
        if old < 0:
            self._numbers[i] = 0
        self._asks[i] = ask
        self._more[i] = 0
        return 0

    def _follow(self, status: int) -> bool:
        # A named hub that names another one is not followed: the next dialer's hub knows more.
        followed = self._followed == self.connections
        self._followed = -1
        if followed or status != E_REFUSED or self.client.session.return_code != _MOVED:
            return False
        if _aim(self.client):
            self._followed = self.connections
        return self._followed >= 0

    def _find(self, topic_filter: "Bytes", group: "Bytes") -> int:
        for i in range(len(self._filters)):
            if self._becomes[i] and self._filters[i] == topic_filter and self._asks[i][0] == group:
                return i
        return -1

    def _settled(self, i: int, code: int) -> int:
        if code:
            return FREE if self._more[i] else REFUSED
        self._numbers[i] = self._ids[i]
        if not self._more[i] and not self._asks[i][0]:
            return GRANTED
        self._wants = True
        return UNWANTED if self._more[i] else IDLE

    def _request(self, i: int, becomes: int) -> int:
        group, tags, condition, window, need_ack = self._asks[i]
        if becomes == UNWANTED:
            return self.client.unsubscribe(self._numbers[i])
        if becomes == WANTED:
            return self.client.subscribe(self._filters[i], tags, condition, group)
        n = send_request(self.client, consume(self.client.session, self._numbers[i], window, need_ack))
        if n > 0:
            self._consumes[i] = n
        return n

    def _answered(self, number: int, code: int) -> bool:
        for i in range(len(self._consumes)):
            if self._consumes[i] == number and self._becomes[i] == CONSUMING:
                self._becomes[i] = ENDED
                if self.on_answer is not None:
                    self.on_answer(self._filters[i], code)
                return True
        if super()._answered(number, code):
            return True
        if self.on_request is not None:
            self.on_request(number, code)
        return False


def _aim(client: "Client") -> bool:
    """Aim the dialer at the hub that the refusal names. Allocates, so it is not part of ``_follow``."""
    host, _, port = client.session.reason().rpartition(b":")
    try:
        client.dialer.aim(str(host, "utf-8").strip("[]"), int(port))  # type: ignore[attr-defined]
    except (AttributeError, ValueError):
        return False
    return True
