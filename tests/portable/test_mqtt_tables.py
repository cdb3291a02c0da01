"""The session follows its tables (``headwater.connection`` and ``headwater.mqtt.session``), cell by cell."""

from pipe import drain, feed
from states import CONNACK, PACKETS, client_in, online, server_in

from headwater import connection as transitions
from headwater import errors
from headwater.connection import CLOSING, CONNECTING, ERROR, EVENTS, IDLE, NEXT, ONLINE, STATES
from headwater.mqtt import spec
from headwater.mqtt.server import ServerSession
from headwater.mqtt.session import CLIENT_TAKES, DELIVERY, SERVER_TAKES, ClientSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# -- the tables --------------------------------------------------------------------------------------------------------


CONNECT = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00"
#: It is answered with CONNACK, and that is the end.
REFUSED = b"\x10\x0c\x00\x04MQTT\x05\x02\x00\x00\x00\x00"
#: How each event comes about at a client, and at a server.
CLIENT_EVENTS: "dict[int, Callable[[ClientSession], object]]" = {
    transitions.OPEN: lambda c: c.connect(0),
    transitions.ACCEPT: lambda c: feed(c, CONNACK),
    transitions.FINISH: lambda c: c.disconnect(),
    transitions.FAIL: lambda c: c.fail(errors.E_TYPE),
    transitions.LOST: lambda c: c.lost(),
}
SERVER_EVENTS: "tuple[tuple[int, Callable[[ServerSession], object]], ...]" = (
    (transitions.OPEN, lambda s: s.listen(0)),
    (transitions.ACCEPT, lambda s: feed(s, CONNECT)),
    (transitions.FINISH, lambda s: feed(s, REFUSED)),
    (transitions.FINISH, lambda s: feed(s, b"\xe0\x00")),
    (transitions.FAIL, lambda s: s.fail(errors.E_TYPE)),
    (transitions.LOST, lambda s: s.lost()),
)


def test_every_connection_cell_by_its_event() -> None:
    """``event`` follows the table, and the table never leaves its states."""
    assert len(NEXT) == STATES * EVENTS
    for state in range(STATES):
        for event in range(EVENTS):
            c = client_in(state)
            c.event(event)
            assert c.state == NEXT[state * EVENTS + event] < STATES


def test_every_connection_cell_at_a_client() -> None:
    for state in range(STATES):
        for event, cause in CLIENT_EVENTS.items():
            c = client_in(state)
            cause(c)
            expected = NEXT[state * EVENTS + event]
            if event == transitions.ACCEPT and state == ONLINE:
                # A second CONNACK is the server's error.
                expected = ERROR
            if event == transitions.ACCEPT and state == CLOSING:
                # What arrives is not looked at.
                assert expected == CLOSING
            assert c.state == expected, (state, event, c.state)
            assert (c.status < 0) == (c.state == ERROR or (event == transitions.FAIL and state == IDLE))


def test_every_connection_cell_at_a_server() -> None:
    for state in range(STATES):
        for k, (event, cause) in enumerate(SERVER_EVENTS):
            s = server_in(state)
            cause(s)
            expected = NEXT[state * EVENTS + event]
            if k in (1, 2) and state == ONLINE:
                # A second CONNECT is the client's error [MQTT-3.1.0-2].
                expected = ERROR
            if k == 3 and state == CONNECTING:
                # So is anything before CONNECT [MQTT-3.1.0-1].
                expected = ERROR
            assert s.state == expected, (state, k, s.state)


def test_every_packet_in_every_state() -> None:
    """What a state does not take is an error in CONNECTING and ONLINE, and nothing at all elsewhere."""
    for state in range(STATES):
        for kind, data in PACKETS.items():
            for end, table in (
                (client_in(state), CLIENT_TAKES),
                (server_in(state), SERVER_TAKES),
            ):
                got: list[int] = []
                end.on_message = lambda p, got=got: got.append(1)
                before = end.status
                status = feed(end, data)
                if table[state] >> kind & 1:
                    assert status == 0, (state, kind, status)
                    assert len(got) == (1 if kind == spec.PUBLISH else 0)
                elif state in (CONNECTING, ONLINE):
                    assert status == errors.E_UNEXPECTED == end.status, (state, kind, status)
                    assert end.state == ERROR and not got
                else:
                    assert status == before and end.state == state and not got, (state, kind)


def test_every_delivery_cell() -> None:
    """A message in each state meets each acknowledgement."""
    acks = {spec.PUBACK: 0x40, spec.PUBREC: 0x50, spec.PUBCOMP: 0x70}
    for state in (transitions.FREE, transitions.AT1, transitions.AT2, transitions.REL, transitions.DONE):
        for kind, head in acks.items():
            e = online()
            c = e.client
            done: list[int] = []
            c.on_delivered = done.append
            first = c.publish(b"t", b"older", 1)
            packet_id = 2
            if state != transitions.FREE:
                packet_id = c.publish(b"t", b"x", 1 if state in (transitions.AT1, transitions.DONE) else 2)
            drain(c)
            if state == transitions.REL:
                assert feed(c, bytes([0x50, 2, 0, packet_id])) == 0
            elif state == transitions.DONE:
                assert feed(c, bytes([0x40, 2, 0, packet_id])) == 0
            drain(c)
            done.clear()
            box = c.outbox
            assert box.state[packet_id - 1] == state, (state, box.state[packet_id - 1])
            flying = c.in_flight
            status = feed(c, bytes([head, 2, 0, packet_id]))
            new = DELIVERY[state * 4 + kind - 4]
            where = (state, kind, status)
            if new == transitions.WRONG:
                assert status == errors.E_ACK_KIND and c.state == ERROR and not done, where
                assert box.state[packet_id - 1] == state, where
                continue
            assert status == 0, where
            answer = drain(c)
            if new == transitions.STRAY:
                assert c.strays == 1 and not done and c.in_flight == flying, where
                assert answer == (bytes([0x62, 2, 0, packet_id]) if kind == spec.PUBREC else b""), where
                assert box.state[packet_id - 1] == state, where
            elif new == transitions.REL:
                assert answer == bytes([0x62, 2, 0, packet_id]) and not done, where
                assert box.state[packet_id - 1] == transitions.REL and c.in_flight == flying, where
            else:
                assert new == transitions.DONE
                assert done == [packet_id] and c.in_flight == flying - 1 and not answer, where
                assert box.state[packet_id - 1] == transitions.DONE, where
            assert box.state[first - 1] == transitions.AT1
