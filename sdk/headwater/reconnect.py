"""Reconnect a client of any protocol: the base of ``headwater.mqtt.keeper`` and ``headwater.fmq.keeper``.

A round of attempts tries each dialer once, without a pause in between. After a failed round or a lost connection the
keeper pauses for a random time (full jitter). The upper limit of the pause doubles from ``first_ms`` to ``longest_ms``,
and is ``first_ms`` again after a connection that has lasted ``longest_ms``.

With a ``network`` (``headwater.types.Network``), the keeper also starts and polls the network interface, and attempts
to connect only while it is up.

Nothing here allocates, not even reconnecting; a dialer may allocate when it opens a transport.
"""

from array import array

from headwater.connection import ONLINE as SESSION_ONLINE
from headwater.connection import idle
from headwater.errors import (
    CALLER,
    E_AGAIN,
    E_OFFLINE,
    E_REFUSED,
    E_STATE,
    E_TIMEOUT,
    E_TOO_LARGE,
    E_UNKNOWN_ID,
    E_UNREACHABLE,
    E_WINDOW,
    blame,
)
from headwater.wire import TICKS_MASK, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from headwater.types import Bytes, Dialer, Network

#: Not started, or stopped.
OFF = const(0)
#: Between two rounds of attempts: a pause of ``pause_ms`` from the time ``since`` on.
PAUSE = const(1)
CONNECTING = const(2)
ONLINE = const(3)
#: Gave up, because another attempt cannot succeed; ``status`` has the reason.
GIVEN_UP = const(4)

# States of a subscription. GRANTED and REFUSED are the server's answers and last as long as its session. GRANTED is
# final except for a consumer of FMQ: it goes on to IDLE, to CONSUMING once CONSUME is sent, and to ENDED when the hub
# ends the consuming.
FREE = const(0)
WANTED = const(1)
ASKED = const(2)
GRANTED = const(3)
REFUSED = const(4)
UNWANTED = const(5)
TAKEN_BACK = const(6)
IDLE = const(7)
CONSUMING = const(8)
ENDED = const(9)

#: The state of a subscription on a new connection, by its last state: unanswered requests are repeated. The second
#: row applies if the server has lost the session.
_ONLINE_AGAIN = (
    b"\x00\x01\x01\x03\x04\x05\x05\x07\x07\x07",
    b"\x00\x01\x01\x01\x01\x05\x05\x01\x01\x01",
)
# States with a request to send; once it is sent, the state is the next higher one.
_TO_ASK = (WANTED, UNWANTED, IDLE)
#: Return codes of MQTT 3.1.1, and reason codes of 5.0 and FMQ, after which another attempt may succeed: the server is
#: unavailable, busy, over quota, moved or at its connection limit.
PASSING = b"\x03\x88\x89\x97\x9c\x9d\x9f"
# Temporary errors of ``publish``.
_LATER = (E_WINDOW, E_AGAIN, E_OFFLINE)
_TURN_MS = const(20)


class BaseKeeper:
    """Reconnects ``client`` automatically from ``start`` to ``stop``; call ``poll`` to drive it. Times are in ms.

    ``dialers`` lead to one server or several, in the order of the attempts; by default only the client's dialer. They
    share one clock, that of the client's dialer.

    ``seed`` and the client identifier make the pauses differ between boards. A port with a better random source
    replaces ``below``, which returns a number from 0 to n - 1.

    ``connect_ms`` limits each attempt. ``answer_ms`` limits the wait for SUBACK, UNSUBACK and the acknowledgement of
    the oldest message; after it the connection counts as lost (0: no limit). The session's keep-alive detects half-open
    connections.

    ``refused_ms`` limits the pause if every server of a round refuses the client permanently (identifier, credentials,
    rights); with 0 the keeper gives up. It always gives up if CONNECT cannot be encoded.

    If the outbox is full, ``publish`` waits up to ``block_ms`` before it returns an error; by default it returns the
    error at once. With a ``backlog`` it returns no such error: the oldest message there is dropped for the newest
    (``Backlog``).

    ``network`` is started and polled with the keeper, which reports failed attempts to it. If the network is lost, a
    connection or an attempt ends with E_UNREACHABLE, and the state is PAUSE. The next attempt follows within
    ``first_ms`` after the network is up again, the first one after ``start`` at once. ``stop`` leaves the network up.

    The keeper replaces the session's ``on_answer`` and the client's ``on_delivered``. Set the keeper's own handlers
    instead. They may do what a client's handlers may, and call ``stop``.
    """

    def __init__(
        self,
        client: "Any",
        dialers: "Sequence[Dialer]" = (),
        seed: int = 0,
        first_ms: int = 1000,
        longest_ms: int = 60000,
        refused_ms: int = 300000,
        connect_ms: int = 20000,
        answer_ms: int = 30000,
        block_ms: int = 0,
        backlog: "Any" = None,
        subscriptions: int = 8,
        network: "Network | None" = None,
    ):
        if not 0 < first_ms <= longest_ms < 1 << 29 or not 0 <= refused_ms < 1 << 29 or connect_ms <= 0:
            raise ValueError(
                "first_ms %r, longest_ms %r, refused_ms %r, connect_ms %r: need 0 < first_ms <= longest_ms < 2**29, "
                "0 <= refused_ms < 2**29 and connect_ms > 0" % (first_ms, longest_ms, refused_ms, connect_ms)
            )
        if answer_ms < 0 or block_ms < 0 or subscriptions < 0:
            raise ValueError(
                "answer_ms %r, block_ms %r, subscriptions %r: none may be negative"
                % (answer_ms, block_ms, subscriptions)
            )
        self.client = client
        self.dialers = tuple(dialers) or (client.dialer,)
        self.first_ms = first_ms
        self.longest_ms = longest_ms
        self.refused_ms = refused_ms
        self.connect_ms = connect_ms
        self.answer_ms = answer_ms
        self.block_ms = block_ms
        self.backlog = backlog
        self.network = network
        self._up = False
        self.state = OFF
        #: The error of the last attempt or connection, a code of ``headwater.errors``; 0 at first.
        self.status = 0
        #: The time of the last change of ``state``, and the length of the pause.
        self.since = 0
        self.pause_ms = 0
        #: Consecutive failed rounds and short connections.
        self.failures = 0
        #: The number of accepted connections.
        self.connections = 0
        self.on_online: Callable[[bool], object] | None = None
        self.on_offline: Callable[[int], object] | None = None
        #: ``on_answer(topic_filter, code)``: the granted QoS, a refusal from 0x80 on, 0 after UNSUBACK, or a negative
        #: status if the request cannot be sent.
        self.on_answer: Callable[[Bytes, int], object] | None = None
        self.on_delivered: Callable[[int], object] | None = None
        self._answer = 0
        # Bound once, because binding allocates.
        self._publish: Callable[[Bytes, Bytes, int, bool], int] = client.publish
        self._ticks = client.dialer.ticks_ms
        self._at = 0
        self._tries = 0
        self._refusals = 0
        self._filters: list[Bytes] = [b""] * subscriptions
        self._becomes = bytearray(subscriptions)
        # Protocol-specific data of each subscription.
        self._more = bytearray(subscriptions)
        self._ids = array("H", [0] * subscriptions)
        # True if there are requests to send; the number of unanswered requests, and when the first was sent.
        self._wants = False
        self._asked = 0
        self._asked_at = 0
        # When the oldest unacknowledged message last changed, and its index.
        self._progress_at = 0
        self._head = 0
        self._random = seed % 65536
        for c in client.session.client_id:
            self._random = (self._random * 31 + c) % 65536
        self._random += 1
        client.session.on_answer = self._answered
        client.on_delivered = self._delivered

    def below(self, n: int) -> int:
        """Return a random number from 0 to n - 1; n is at most 2**29."""
        # Multiplication by a primitive root of a prime visits all numbers below it except 0 (Lehmer).
        high = self._random * 75 % 65537
        self._random = low = high * 75 % 65537
        return ((high & 0x3FFF) << 15 | low & 0x7FFF) % n

    # -- the connection ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to connect at the next ``poll``, also after giving up. Does nothing while the keeper runs."""
        if self.state == OFF or self.state == GIVEN_UP:
            self.status = self.failures = self._at = self._tries = self._refusals = 0
            _pause(self, 0)
            if self.network is not None:
                self._up = False
                self.network.start()

    def poll(self) -> int:
        """Drive the connection; call this several times a second. Blocks only as long as a dialer's ``ready`` and
        ``open``.

        Returns 0, connected or not (see ``state``); the status with which the keeper gave up; or E_OFFLINE before
        ``start``.
        """
        state = OFF if self.network is not None and not _networked(self) else self.state
        if state == ONLINE:
            status = self.client.poll()
            if self.state == ONLINE:
                if status:
                    _lost(self, status)
                else:
                    _tend(self)
        elif state == CONNECTING:
            status = self.client.poll()
            if self.state == CONNECTING:
                _connecting(self, status)
        elif state == PAUSE:
            if (self._ticks() - self.since) & TICKS_MASK >= self.pause_ms:
                _attempt(self)
        return 0 if OFF < self.state < GIVEN_UP else self.status or E_OFFLINE

    def wait(self, ms: int) -> int:
        """Poll for ``ms`` milliseconds, idle in between. Return the status of ``poll``."""
        begin = self._ticks()
        while True:
            status = self.poll()
            left = ms - ((self._ticks() - begin) & TICKS_MASK)
            if status or left <= 0:
                return status
            idle(self.client, min(left, _TURN_MS))

    def flush(self, timeout_ms: int) -> int:
        """Wait until all messages are acknowledged, or sent at QoS 0, over several connections if needed.

        Returns 0, E_TIMEOUT, E_STATE in a handler (acknowledgements are read only after it returns), or an error of
        ``poll``.
        """
        if self.client.session.feeding:
            return E_STATE
        begin = self._ticks()
        while True:
            status = self.poll()
            if status or not self.waiting():
                return status
            if (self._ticks() - begin) & TICKS_MASK >= timeout_ms:
                return E_TIMEOUT
            idle(self.client, _TURN_MS)

    def waiting(self) -> int:
        """Return the number of unacknowledged and unsent messages; unsent ones at QoS 0 count as one."""
        session = self.client.session
        n: int = session.outbox.count + (1 if session.tx_end or session.out_n else 0)
        return n if self.backlog is None else n + self.backlog.count

    def stop(self, timeout_ms: int = 0) -> int:
        """Flush for up to ``timeout_ms``, send DISCONNECT and close. Return the status of ``flush``.

        Unacknowledged messages stay in the outbox and are retransmitted after the next ``start``.
        """
        status = self.flush(timeout_ms) if timeout_ms and OFF < self.state < GIVEN_UP else 0
        self.state = OFF
        self.status = 0
        self.client.disconnect()
        return status

    # -- messages ------------------------------------------------------------------------------------------------------

    def _delivered(self, packet_id: int) -> None:
        self._progress_at = self.client.session.now
        if self.on_delivered is not None:
            self.on_delivered(packet_id)

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def _follow(self, status: int) -> bool:
        """Aim the dialer at the server that a refusal names. Return whether to dial now. FMQ only."""
        return False

    def _want(self, i: int, topic_filter: "Bytes") -> int:
        """Request the subscription at index ``i``, or at a free index if negative. Return the index, or E_WINDOW if
        none is free."""
        if i < 0:
            i = self._becomes.find(b"\x00")
            if i < 0:
                return E_WINDOW
        self._filters[i] = topic_filter
        self._forget_answer(i)
        self._becomes[i] = WANTED
        self._wants = True
        return i

    def _take_back(self, i: int) -> int:
        if i < 0:
            return E_UNKNOWN_ID
        self._forget_answer(i)
        self._becomes[i] = UNWANTED
        self._wants = True
        return 0

    def _forget_answer(self, i: int) -> None:
        if self._becomes[i] in (ASKED, TAKEN_BACK):
            self._asked -= 1

    def _answered(self, number: int, code: int) -> bool:
        """Handle the answer to a request. Return whether it was a request of the keeper."""
        for i in range(len(self._ids)):
            becomes = self._becomes[i]
            if self._ids[i] == number and (becomes in (ASKED, TAKEN_BACK)):
                self._asked -= 1
                self._becomes[i] = FREE if becomes == TAKEN_BACK else self._settled(i, code)
                if self.on_answer is not None:
                    self.on_answer(self._filters[i], code)
                return True
        return False

    def _settled(self, i: int, code: int) -> int:
        """Return the state of subscription ``i`` after the server's answer."""
        return REFUSED if code & 0x80 else GRANTED

    def _request(self, i: int, becomes: int) -> int:
        """Send the request that leads subscription ``i`` to the state ``becomes``. Return its number, or an error."""
        raise NotImplementedError


def enqueue(k: BaseKeeper, topic: "Bytes", payload: "Bytes", qos: int, retain: bool) -> int:
    """Publish, connected or not. Return the packet identifier, 0 at QoS 0 or in the backlog, or an error."""
    if k.backlog is None or (k.state == ONLINE and not k.backlog.count):
        k._answer = k._publish(topic, payload, qos, retain)
        if k._answer not in _LATER:
            return k._answer
    return _put_off(k, topic, payload, qos, retain)


def _put_off(k: BaseKeeper, topic: "Bytes", payload: "Bytes", qos: int, retain: bool) -> int:
    if k.backlog is not None:
        k._answer = k.backlog.put(k.client.session, topic, payload, qos, retain)
        return k._answer
    status = k._answer
    if not k.block_ms or k.client.session.feeding:
        return status
    begin = k._ticks()
    while True:
        bad = k.poll()
        status = k._publish(topic, payload, qos, retain)
        if status not in _LATER:
            return status
        if bad or (k._ticks() - begin) & TICKS_MASK >= k.block_ms:
            return status
        idle(k.client, _TURN_MS)


def _pause(k: BaseKeeper, limit: int) -> None:
    k.state = PAUSE
    k.since = k._ticks()
    k.pause_ms = k.below(limit + 1) if limit else 0


def pause_limit(failures: int, first: "Any", longest: "Any") -> "Any":
    """Return the limit of the pause after ``failures`` earlier failures, in the unit of ``first`` and ``longest``."""
    while failures and first < longest:
        first *= 2
        failures -= 1
    return min(first, longest)


def _back_off(k: BaseKeeper) -> None:
    limit = pause_limit(k.failures, k.first_ms, k.longest_ms)
    k.failures += 1
    _pause(k, limit)


def _networked(k: BaseKeeper) -> bool:
    """Poll the network. Return whether it is up."""
    state = k.state
    if not OFF < state < GIVEN_UP:
        return False
    up = k.network.poll(state != ONLINE or k.waiting() > 0)  # type: ignore[union-attr]  # the caller has checked
    if up == k._up:
        return up
    k._up = up
    if up:
        # The pause starts only now, so that the boards of one access point do not reconnect all at once.
        k.since = k._ticks()
        return True
    k.failures = k._tries = k._refusals = 0
    _pause(k, k.first_ms)
    k.client.close()
    k.client.status = k.status = E_UNREACHABLE
    if state == ONLINE and k.on_offline is not None:
        k.on_offline(E_UNREACHABLE)
    return False


def _attempt(k: BaseKeeper) -> None:
    client = k.client
    client.dialer = k.dialers[k._at]
    k.state = CONNECTING
    k.since = k._ticks()
    _connecting(k, client.begin_connect())


def _connecting(k: BaseKeeper, status: int) -> None:
    """Continue an attempt; ``status`` is not 0 if it has ended."""
    client = k.client
    if status == 0:
        if client.session.state == SESSION_ONLINE:
            _online(k)
            return
        if (k._ticks() - k.since) & TICKS_MASK < k.connect_ms:
            return
        client.close()
        status = client.status = E_TIMEOUT
    k.status = status
    if k.network is not None:
        k.network.failed(status, client.errno)
    if status == E_TOO_LARGE or blame(status) == CALLER:
        # CONNECT cannot be encoded, so every later attempt would fail too.
        k.state = GIVEN_UP
        return
    if k._follow(status):
        _pause(k, 0)
        return
    n = len(k.dialers)
    k._at = (k._at + 1) % n
    k._tries += 1
    if status == E_REFUSED and client.session.return_code not in PASSING:
        k._refusals += 1
    if k._tries < n:
        _pause(k, 0)
        return
    refused = k._refusals == n
    k._tries = k._refusals = 0
    if not refused:
        _back_off(k)
    elif k.refused_ms:
        _pause(k, k.refused_ms)
    else:
        k.state = GIVEN_UP


def _online(k: BaseKeeper) -> None:
    session = k.client.session
    k.state = ONLINE
    k.since = k._asked_at = k._progress_at = k._ticks()
    k._tries = k._refusals = k._asked = 0
    k.connections += 1
    if k.network is not None:
        k.network.works()
    again = _ONLINE_AGAIN[0 if session.session_present else 1]
    for i in range(len(k._becomes)):
        k._becomes[i] = again[k._becomes[i]]
    k._wants = True
    if k.on_online is not None:
        k.on_online(session.session_present)


def _lost(k: BaseKeeper, status: int) -> None:
    k.status = status
    _back_off(k)
    if k.network is not None:
        k.network.failed(status, 0)
    if k.on_offline is not None:
        k.on_offline(status)


def _tend(k: BaseKeeper) -> None:
    """Do the work of an established connection."""
    client = k.client
    if k.failures and (k._ticks() - k.since) & TICKS_MASK >= k.longest_ms:
        k.failures = 0
    if k._wants:
        _ask(k)
    if k.backlog is not None and k.backlog.count:
        k.backlog.drain(client)
    if k.answer_ms and not client.behind:
        _watch(k, k._ticks())


def _ask(k: BaseKeeper) -> None:
    """Send the outstanding requests to subscribe, unsubscribe and consume, as far as possible now."""
    for i in range(len(k._becomes)):
        becomes = k._becomes[i]
        if becomes in _TO_ASK:
            status = k._request(i, becomes)
            if status == E_AGAIN or k.state != ONLINE or k.client.session.state != SESSION_ONLINE:
                return
            if status < 0:
                k._becomes[i] = FREE if becomes == UNWANTED else REFUSED
                if k.on_answer is not None:
                    # The server no longer has the subscription: it is removed.
                    k.on_answer(k._filters[i], 0 if status == E_UNKNOWN_ID else status)
            else:
                k._becomes[i] = becomes + 1
                if becomes != IDLE:
                    if not k._asked:
                        k._asked_at = k._ticks()
                    k._asked += 1
                    k._ids[i] = status
    k._wants = False


def _watch(k: BaseKeeper, now: int) -> None:
    """Close a connection on which the server stops answering requests or messages."""
    client = k.client
    session = client.session
    if not session.in_flight or session.outbox.head != k._head:
        k._head = session.outbox.head
        k._progress_at = now
    if not k._asked:
        k._asked_at = now
    if (now - k._progress_at) & TICKS_MASK >= k.answer_ms or (now - k._asked_at) & TICKS_MASK >= k.answer_ms:
        client.close()
        client.status = E_TIMEOUT
        _lost(k, E_TIMEOUT)
