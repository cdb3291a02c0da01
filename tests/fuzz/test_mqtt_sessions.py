"""Sessions under arbitrary input in arbitrary pieces, and a client and a server over a link that breaks at will."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pipe import Ends, Inbox, Outgoing, Sink
from sessions import server5, session5, session31

from headwater import errors
from headwater.mqtt.manual_ack import ManualAck
from headwater.mqtt.packets import Packet
from headwater.mqtt.server import ServerSession
from headwater.mqtt.server31 import ServerSession31
from headwater.mqtt.session import ClientSession
from headwater.streaming import stream_to
from tests.fuzz.ends import KINDS, Kind, Raised, Watched
from tests.fuzz.packets import damaged, sensible
from tests.fuzz.target_sessions import session


def _streams(level: int) -> st.SearchStrategy[bytes]:
    whole = sensible(level)
    return st.lists(whole | damaged(whole) | st.binary(max_size=6), max_size=8).map(b"".join)


#: An end, and what may arrive there.
_fed = st.sampled_from(sorted(KINDS.values(), key=lambda kind: kind.name)).flatmap(
    lambda kind: st.tuples(st.just(kind), _streams(kind.level))
)


@settings(max_examples=300)
@given(_fed, st.integers(0, 15), st.integers(0, 15))
def test_any_stream(fed: tuple[Kind, bytes], options: int, shape: int) -> None:
    kind, stream = fed
    session(kind, bytes([options, shape]) + stream)


@given(_fed)
def test_the_size_of_the_buffer_makes_little_difference(fed: tuple[Kind, bytes]) -> None:
    """With a sink, a small buffer delivers what a large one does, until something does not fit."""
    kind, stream = fed
    small = Watched(kind, 64)
    large = Watched(kind, 4096)
    status = small.feed(stream, [1000])
    large.feed(stream, [1000])
    if status == errors.E_RX_TOO_LARGE:
        assert small.seen == large.seen[: len(small.seen)]
    elif not small.end.skipped:
        assert small.seen == large.seen
        if large.end.status or large.end.rx.start == large.end.rx.end:
            # Otherwise the large buffer waits for the end of a packet of which the small one has seen a part already.
            assert small.outcome() == large.outcome()


#: By version: both ends, and the sizes of transmit buffers into which a CONNECT fits.
_ENDS: dict[str, tuple[Any, Any, tuple[int, int]]] = {
    "3.1": (session31, ServerSession31, (24, 40)),
    "3.1.1": (ClientSession, ServerSession, (16, 40)),
    "5.0": (session5, server5, (32, 64)),
}


class Delivery(RuleBasedStateMachine):
    """Both ends publish, over links that take, give and break as they like; both acknowledge when they like.

    Handlers raise now and then, and the server forgets the session: what that may cost is known, and nothing else does.
    """

    @initialize(
        version=st.sampled_from(sorted(_ENDS)),
        rx=st.sampled_from([40, 64, 200]),
        more=st.booleans(),
        window=st.integers(1, 5),
    )
    def begin(self, version: str, rx: int, more: bool, window: int) -> None:
        self.version = version
        client, server, sizes = _ENDS[version]
        tx = sizes[more]
        self.ends = Ends(
            client(
                b"c",
                0,
                False,
                rx_size=rx,
                tx_size=tx,
                outbox_size=400,
                slots=5,
                window=window,
                receive_window=5,
            ),
            server(rx, tx, 400, slots=5, window=window, receive_window=8),
        )
        e = self.ends
        self.client_sink = Sink(e.at_client)
        stream_to(e.client, self.client_sink)
        self.server_sink = Sink(e.at_server)
        stream_to(e.server, self.server_sink)
        self.number = 0
        #: Payloads: at which a handler has raised; which the server has forgotten; which it may take for new ones.
        self.raised: set[bytes] = set()
        self.forgotten: set[bytes] = set()
        self.renewed: set[bytes] = set()
        self.raises = {e.client: False, e.server: False}
        for end, inbox in ((e.client, e.at_client), (e.server, e.at_server)):
            end.on_message = lambda p, end=end, take=inbox.message: self.message(end, p, take)
        e.connect()

    def message(self, end: Any, p: Packet, take: Any) -> None:
        if self.raises[end]:
            self.raises[end] = False
            self.raised.add(p.payload_bytes())
            raise Raised
        take(p)

    def step(self) -> None:
        """Carry once; where a handler raises, feeding goes on behind its message."""
        e = self.ends
        try:
            moved = e.step()
            assert moved >= 0, moved
        except Raised:
            assert e.client.feed(0) == e.server.feed(0) == 0

    def _payload(self, size: int) -> bytes:
        self.number += 1
        return self.number.to_bytes(2, "big") + bytes(size)

    @rule(up=st.booleans(), qos=st.integers(0, 2), size=st.integers(0, 30) | st.integers(150, 200))
    def publish(self, up: bool, qos: int, size: int) -> None:
        if not up and not self.ends.server.has_session:
            # There is nobody to keep it for: the session begins with the next CONNECT, and with nothing in it.
            return
        outgoing = self.ends.from_client if up else self.ends.from_server
        status = outgoing.publish(b"t", self._payload(size), qos)
        allowed = (errors.E_AGAIN, errors.E_TOO_LARGE, errors.E_OFFLINE) if qos == 0 else (errors.E_WINDOW,)
        assert status >= 0 or status in allowed, status

    @rule(times=st.integers(1, 6))
    def carry(self, times: int) -> None:
        for _ in range(times):
            self.step()

    @rule(client=st.booleans())
    def raise_at_the_next_message(self, client: bool) -> None:
        self.raises[self.ends.client if client else self.ends.server] = True

    @rule(up=st.booleans(), take=st.integers(0, 9), chunk=st.integers(0, 9), room=st.integers(0, 20))
    def change_the_wire(self, up: bool, take: int, chunk: int, room: int) -> None:
        link = self.ends.link()
        wire = link.up if up else link.down
        wire.take, wire.chunk, wire.room = take, chunk, room

    @rule(again=st.booleans())
    def cut(self, again: bool) -> None:
        self.ends.lose()
        assert self.client_sink.idle() and self.server_sink.idle()
        self.ends.open()
        if again:
            self.step()

    @precondition(lambda self: self.version != "3.1")
    @rule()
    def forget(self) -> None:
        """The server loses the session, and says so. (At 3.1 it cannot.)"""
        e = self.ends
        e.lose()
        e.server.outbox.clear()
        e.server.has_session = False
        self.forgotten |= set(e.from_server.pending.values())
        e.from_server.pending.clear()
        self.renewed |= set(e.from_client.pending.values())
        e.open()

    @rule(client=st.booleans(), on=st.booleans())
    def leave_acknowledging(self, client: bool, on: bool) -> None:
        end = self.ends.client if client else self.ends.server
        (end.acks or ManualAck(end)).automatic = on

    @precondition(
        lambda self: any(end.acks and not end.acks.automatic for end in (self.ends.client, self.ends.server))
    )
    @rule(data=st.data(), client=st.booleans())
    def acknowledge(self, data: st.DataObject, client: bool) -> None:
        end, inbox = (
            (self.ends.client, self.ends.at_client) if client else (self.ends.server, self.ends.at_server)
        )
        ids = sorted({m[5] for m in inbox.got if m[2] == 2}) or [1]
        status = (end.acks or ManualAck(end, automatic=True)).acknowledge(
            data.draw(st.sampled_from(ids)), 2, end.epoch
        )
        assert status in (0, errors.E_AGAIN, errors.E_UNKNOWN_ID)

    @invariant()
    def windows_and_buffers_hold(self) -> None:
        for end in (self.ends.client, self.ends.server):
            assert 0 <= end.in_flight <= end.window
            assert 0 <= end.tx_end <= end.tx_size == len(end.tx)
            assert 0 <= end.rx.start <= end.rx.end <= end.rx.size
            assert end.outbox.count <= end.outbox.slots
            assert end.status == 0

    @invariant()
    def nothing_twice_at_qos_2(self) -> None:
        for inbox in (self.ends.at_client, self.ends.at_server):
            got = [payload for payload in inbox.payloads(2) if payload not in self.renewed]
            assert len(got) == len(set(got))

    def teardown(self) -> None:
        if not hasattr(self, "ends"):
            return
        e = self.ends
        self.raises = {e.client: False, e.server: False}
        e.lose()
        e.connect()
        # What the application has not acknowledged so far, it does now, on whichever connection it came.
        for end, inbox in ((e.client, e.at_client), (e.server, e.at_server)):
            (end.acks or ManualAck(end)).automatic = True
            for packet_id in {m[5] for m in inbox.got if m[2] == 2}:
                for epoch in range(end.epoch + 1):
                    assert end.acks.acknowledge(packet_id, 2, epoch) in (0, errors.E_UNKNOWN_ID)
                    e.run()
        # At QoS 1 that takes another connection.
        e.lose()
        e.connect()
        e.quiet()
        assert self.client_sink.idle() and self.server_sink.idle()
        for outgoing, inbox in ((e.from_client, e.at_server), (e.from_server, e.at_client)):
            self.check(outgoing, inbox)

    def check(self, outgoing: Outgoing, inbox: Inbox) -> None:
        """What was published has arrived: all of it, but for what the server has forgotten; in order, but for what a
        handler did not take at first; once at QoS 2, if the server did not forget that it had it."""
        for qos in (1, 2):
            sent = outgoing.payloads(qos)
            got = inbox.payloads(qos)
            first = list(dict.fromkeys(got))
            missing = set(sent) - set(first)
            assert missing <= self.forgotten and set(first) <= set(sent)
            orderly = [payload for payload in first if payload not in self.raised]
            assert orderly == [payload for payload in sent if payload not in self.raised | missing]
            if qos == 2:
                again = [payload for payload in first if got.count(payload) > 1]
                assert set(again) <= self.renewed
        seen = set()
        for _, payload, qos, _, dup, _ in inbox.got:
            # In a new session it is a new message, wherever it was before.
            repeated = payload in seen and payload not in self.renewed
            assert qos == 0 or dup or not repeated, "a repetition without DUP"
            seen.add(payload)
        sent = outgoing.payloads(0)
        assert inbox.payloads(0) == [payload for payload in sent if payload in set(inbox.payloads(0))]
        published = {payload for payload, qos in outgoing.published if qos}
        delivered = outgoing.delivered
        assert len(delivered) == len(set(delivered))
        assert set(delivered) <= published and published - set(delivered) <= self.forgotten


TestDelivery = Delivery.TestCase
TestDelivery.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
