"""Sessions under arbitrary input in arbitrary pieces, and a client and a server over a link that breaks at will."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pipe import Ends, Sink, drain, feed

from headwater import errors
from headwater.mqtt.decode import Packet
from headwater.mqtt.server import ServerSession
from headwater.mqtt.session import ClientSession
from headwater.mqtt.transitions import CLOSING, ERROR, ONLINE
from headwater.reasons import REASONS
from headwater.types import Bytes
from tests.fuzz.packets import broken, sensible

CONNACK = b"\x20\x02\x00\x00"
CONNECT = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00"


class Watched:
    """A session that is online, and everything that can be seen of it while it is fed."""

    def __init__(self, server: bool, rx_size: int, sink: bool) -> None:
        self.seen: list[Any] = []
        self.out = b""
        self.end: ClientSession | ServerSession
        if server:
            self.end = ServerSession(rx_size, 64, receive_window=4)
            self.end.listen(0)
            assert feed(self.end, CONNECT) == 0
            self.end.on_subscribe = self.subscribed
        else:
            self.end = ClientSession(b"c", 0, False, rx_size=rx_size, tx_size=64, receive_window=4)
            assert self.end.connect(0) == 0
            drain(self.end)
            assert feed(self.end, CONNACK) == 0
            self.end.on_answer = lambda packet_id, code: self.seen.append((packet_id, code))
        drain(self.end)
        self.end.on_message = self.message
        self.end.on_delivered = lambda packet_id: self.seen.append(packet_id)
        if sink:
            self.end.sink = self
        self._large: list[Any] = []
        # Something that acknowledgements may meet.
        for qos in (1, 2, 1):
            assert self.end.publish(b"t", b"ours", qos) > 0
        drain(self.end)

    def message(self, p: Packet) -> None:
        self.seen.append((p.topic_text(), p.payload_bytes(), p.qos(), p.retain(), p.dup(), p.packet_id))

    def subscribed(self, p: Packet, qos: int) -> int:
        self.seen.append((p.topic_text(), qos))
        return qos

    # A sink, too: what it gets counts as a message.

    def open(self, p: Packet, size: int) -> bool:
        self._large = [p.topic_text(), b"", p.qos(), p.retain(), p.dup(), p.packet_id, size]
        return True

    def write(self, buf: Bytes, at: int, n: int) -> None:
        self._large[1] += bytes(buf[at : at + n])

    def close(self, complete: bool) -> None:
        size = self._large.pop()
        if complete:
            assert len(self._large[1]) == size
            self.seen.append(tuple(self._large))

    def feed(self, data: bytes, pieces: list[int]) -> int:
        """Feed in pieces, sending what there is to send in between; the status."""
        end = self.end
        at = k = 0
        status = 0
        while at < len(data) or end.stalled:
            room = end.rx.window()
            n = min(room, pieces[k % len(pieces)], len(data) - at)
            k += 1
            end.rx.view[:n] = data[at : at + n]
            at += n
            status = end.feed(n)
            self.out += drain(end)
            assert end.tx_size == len(end.tx) and 0 <= end.tx_end <= len(end.tx)
            if status:
                assert status in REASONS and end.state == ERROR and end.status == status
                assert end.feed(0) == end.out() == end.poll(1) == status
                break
        return status

    def outcome(self) -> tuple[Any, ...]:
        """All of it but what was sent."""
        end = self.end
        return (self.seen, end.status, end.state, end.strays, end.duplicates, end.in_flight)


_streams = st.lists(
    sensible.map(lambda packet: packet.encoded) | broken | st.binary(max_size=6), max_size=8
).map(b"".join)
_pieces = st.lists(st.integers(1, 70), min_size=1, max_size=5)


@given(_streams, _pieces, st.booleans(), st.sampled_from([16, 29, 64, 512]))
def test_the_pieces_make_no_difference(stream: bytes, pieces: list[int], server: bool, size: int) -> None:
    size = max(size, 29) if server else size
    sessions = []
    for cut in ([1], pieces, [100000]):
        one = Watched(server, size, sink=True)
        one.feed(stream, cut)
        sessions.append(one)
    byte_by_byte = sessions[0]
    for one in sessions[1:]:
        assert one.outcome() == byte_by_byte.outcome()
        # What breaks a connection may come in one piece with what was to be answered: the answer is not sent then.
        sent = byte_by_byte.out
        assert one.out == (sent[: len(one.out)] if one.end.status else sent)


@given(_streams, st.booleans())
def test_the_size_of_the_buffer_makes_little_difference(stream: bytes, server: bool) -> None:
    """With a sink, a small buffer delivers what a large one does, until something does not fit."""
    small = Watched(server, 64, sink=True)
    large = Watched(server, 4096, sink=True)
    status = small.feed(stream, [1000])
    large.feed(stream, [1000])
    if status == errors.E_RX_TOO_LARGE:
        assert small.seen == large.seen[: len(small.seen)]
    elif not small.end.skipped:
        assert small.seen == large.seen
        if large.end.status or large.end.rx.start == large.end.rx.end:
            # Otherwise the large buffer waits for the end of a packet of which the small one has seen a part already.
            assert small.outcome() == large.outcome()


@given(_streams, _streams)
def test_a_broken_session_connects_again(first: bytes, second: bytes) -> None:
    one = Watched(False, 64, sink=True)
    end = one.end
    assert isinstance(end, ClientSession)
    one.feed(first, [7])
    end.lost()
    assert end.connect(5) == 0
    assert drain(end) == b"\x10\x0d\x00\x04MQTT\x04\x00\x00\x00\x00\x01c"
    assert feed(end, b"\x20\x02\x01\x00") == 0 and end.state == ONLINE
    drain(end)
    one.feed(second, [9])


@given(st.binary(max_size=40), st.booleans())
def test_anything_instead_of_the_handshake(data: bytes, server: bool) -> None:
    end: ClientSession | ServerSession
    if server:
        end = ServerSession(64, 64)
        end.listen(0)
    else:
        end = ClientSession(b"c", rx_size=64)
        assert end.connect(0) == 0
        drain(end)
    got: list[int] = []
    end.on_message = lambda p: got.append(1)
    for at in range(len(data)):
        if end.rx.window() == 0 or feed(end, data[at : at + 1]):
            break
    assert not got or end.state in (ONLINE, ERROR, CLOSING)


class Delivery(RuleBasedStateMachine):
    """Both ends publish, over links that take, give and break as they like; both acknowledge when they like."""

    @initialize(rx=st.sampled_from([32, 64, 200]), tx=st.sampled_from([16, 40]), window=st.integers(1, 5))
    def begin(self, rx: int, tx: int, window: int) -> None:
        self.ends = Ends(
            ClientSession(
                b"c",
                0,
                False,
                None,
                None,
                rx,
                tx,
                outbox_size=400,
                slots=5,
                window=window,
                receive_window=5,
            ),
            ServerSession(rx, tx, 400, slots=5, window=window, receive_window=8),
        )
        e = self.ends
        e.client.sink = self.client_sink = Sink(e.at_client)
        e.server.sink = self.server_sink = Sink(e.at_server)
        self.number = 0
        e.connect()

    def _payload(self, size: int) -> bytes:
        self.number += 1
        return self.number.to_bytes(2, "big") + bytes(size)

    @rule(up=st.booleans(), qos=st.integers(0, 2), size=st.integers(0, 30) | st.integers(150, 200))
    def publish(self, up: bool, qos: int, size: int) -> None:
        outgoing = self.ends.from_client if up else self.ends.from_server
        status = outgoing.publish(b"t", self._payload(size), qos)
        allowed = (errors.E_AGAIN, errors.E_TOO_LARGE, errors.E_OFFLINE) if qos == 0 else (errors.E_WINDOW,)
        assert status >= 0 or status in allowed, status

    @rule(times=st.integers(1, 6))
    def carry(self, times: int) -> None:
        for _ in range(times):
            moved = self.ends.step()
            assert moved >= 0, moved

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
            self.ends.step()

    @rule(client=st.booleans(), on=st.booleans())
    def leave_acknowledging(self, client: bool, on: bool) -> None:
        end = self.ends.client if client else self.ends.server
        end.auto_ack = on

    @precondition(lambda self: not (self.ends.client.auto_ack and self.ends.server.auto_ack))
    @rule(data=st.data(), client=st.booleans())
    def acknowledge(self, data: st.DataObject, client: bool) -> None:
        end, inbox = (
            (self.ends.client, self.ends.at_client) if client else (self.ends.server, self.ends.at_server)
        )
        ids = sorted({m[5] for m in inbox.got if m[2] == 2}) or [1]
        status = end.acknowledge(data.draw(st.sampled_from(ids)), 2, end.epoch)
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
            got = inbox.payloads(2)
            assert len(got) == len(set(got))

    def teardown(self) -> None:
        if not hasattr(self, "ends"):
            return
        e = self.ends
        e.lose()
        e.connect()
        # What the application has not acknowledged so far, it does now, on whichever connection it came.
        for end, inbox in ((e.client, e.at_client), (e.server, e.at_server)):
            end.auto_ack = True
            for packet_id in {m[5] for m in inbox.got if m[2] == 2}:
                for epoch in range(end.epoch + 1):
                    assert end.acknowledge(packet_id, 2, epoch) in (0, errors.E_UNKNOWN_ID)
                    e.run()
        # At QoS 1 that takes another connection.
        e.lose()
        e.connect()
        e.quiet()
        assert self.client_sink.idle() and self.server_sink.idle()
        for outgoing, inbox in ((e.from_client, e.at_server), (e.from_server, e.at_client)):
            assert inbox.payloads(2) == outgoing.payloads(2)
            first: list[bytes] = []
            for message in inbox.got:
                if message[2] == 1 and message[1] not in first:
                    first.append(message[1])
                elif message[2] == 1:
                    assert message[4], "a repetition without DUP"
            assert first == outgoing.payloads(1)
            sent = outgoing.payloads(0)
            assert inbox.payloads(0) == [payload for payload in sent if payload in set(inbox.payloads(0))]
            assert sorted(outgoing.delivered) == sorted(p for p, qos in outgoing.published if qos)


TestDelivery = Delivery.TestCase
TestDelivery.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
