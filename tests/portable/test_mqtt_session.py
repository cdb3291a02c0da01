# heap: 768K
"""How connections of MQTT begin: what the server sees of the client, refusals, sessions that were kept."""

from pipe import FIRST, Ends, drain, feed, receive, send
from states import CONNACK, SESSION_KEPT, client_in, online

from headwater import errors
from headwater.connection import CLOSING, CONNECTING, ERROR, FIRST_REQUEST_ID, IDLE, ONLINE, REL
from headwater.mqtt.manual_ack import ManualAck
from headwater.mqtt.server import SESSION_PRESENT, ServerSession
from headwater.mqtt.session import ClientSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet
    from headwater.mqtt.packets_server import Connect


def test_the_server_sees_what_connect_says() -> None:
    seen: list[tuple[object, ...]] = []

    def look(c: "Connect", p: "Packet") -> int:
        buf = p.buf

        def cut(at: int, end: int) -> "bytes | None":
            return bytes(buf[at:end]) if at >= 0 else None

        seen.append(
            (
                cut(c.client_id_at, c.client_id_end),
                c.keep_alive,
                c.clean_start(),
                cut(c.will_topic_at, c.will_topic_end),
                cut(c.will_payload_at, c.will_payload_end),
                c.will_qos(),
                c.will_retain(),
                cut(c.user_at, c.user_end),
                cut(c.password_at, c.password_end),
            )
        )
        return 0

    client = ClientSession(b"board-1", 77, True, b"me", b"\x00pw\xff", tx_size=128)
    server = ServerSession()
    server.on_connect = look
    e = Ends(client, server)
    e.connect()
    assert client.set_will(b"gone", b"\xff\x00", 2, True) == 0
    e.lose()
    e.connect()
    assert client.set_will(b"gone", b"", 1) == 0
    e.lose()
    e.connect()
    assert client.set_will(None) == 0
    e.lose()
    e.connect()
    start = (b"board-1", 77, True)
    login = (b"me", b"\x00pw\xff")
    none = (None, None, 0, False)
    assert seen == [
        start + none + login,
        start + (b"gone", b"\xff\x00", 2, True) + login,
        start + (b"gone", b"", 1, False) + login,
        start + none + login,
    ]
    # What was absent in the next CONNECT does not show from the one before.
    plain = Ends(ClientSession(b"", 0), server)
    server.lost()
    plain.connect()
    assert seen[-1] == (b"", 0, True) + none + (None, None)


def test_refusals() -> None:
    for code in range(1, 6):
        c = client_in(CONNECTING)
        status = feed(c, bytes([0x20, 2, 0, code]))
        assert status == errors.E_REFUSED == c.status == c.poll(1)
        assert c.return_code == code and c.state == ERROR
        assert errors.blame(status) == errors.CONNECTION
        assert c.connect(2) == 0
        assert c.return_code == 0 and c.status == 0
        drain(c)
        assert feed(c, CONNACK) == 0 and c.state == ONLINE


def test_a_server_refuses_with_each_code() -> None:
    for code in range(1, 6):
        e = Ends(ClientSession(b"c"), ServerSession())
        e.server.on_connect = lambda c, p, code=code: code
        e.open()
        send(e.client, e.link().up)
        assert receive(e.server, e.link().up) >= 0
        assert e.server.state == CLOSING and e.server.closing()
        send(e.server, e.link().down)
        assert e.server.out() == 0
        assert receive(e.client, e.link().down) == errors.E_REFUSED
        assert e.client.return_code == code


def test_a_client_that_asks_for_a_clean_session_gets_one() -> None:
    """Even from an application that would rather go on with the old one [MQTT-3.2.2-1]."""
    e = Ends(ClientSession(b"c", clean_start=True), ServerSession())
    e.server.on_connect = lambda c, p: SESSION_PRESENT
    e.connect()
    assert not e.client.session_present
    # And a server that says otherwise is in error.
    c = client_in(CONNECTING)
    assert feed(c, SESSION_KEPT) == errors.E_CODE


def test_session_present() -> None:
    e = Ends(ClientSession(b"c", clean_start=False), ServerSession())
    said: list[bool] = []
    e.client.on_online = said.append
    e.connect()
    for _ in range(2):
        e.lose()
        e.connect()
    e.client.clean_start = True
    e.lose()
    e.connect()
    e.client.clean_start = False
    e.lose()
    e.connect()
    assert said == [False, True, True, False, False]
    assert e.client.session_present is False


def test_a_server_that_lost_the_session() -> None:
    """QoS 1 and 2 without PUBREC go out again, to a new session: without DUP. What had its PUBREC is delivered, and ids
    that were open are not."""
    e = online()
    ManualAck(e.server)
    ids = [e.from_client.publish(b"t", bytes([n]), 1 + n % 2) for n in range(4)]
    e.from_server.publish(b"t", b"down", 2)
    e.run()
    # PUBREC for the second message only, and no PUBCOMP.
    assert e.server.acks.acknowledge(ids[1], 2, FIRST) == 0
    send(e.server, e.link().down)
    assert receive(e.client, e.link().down) >= 0
    assert e.client.outbox.state[ids[1] - 1] == REL
    e.lose()
    e.server = ServerSession()
    second = Ends(e.client, e.server)
    second.from_client.pending = e.from_client.pending
    second.connect()
    assert not e.client.session_present
    assert [m[1] for m in second.at_server.got] == [b"\x00", b"\x02", b"\x03"]
    assert not any(m[4] for m in second.at_server.got)
    assert sorted(second.from_client.delivered) == [b"\x00", b"\x01", b"\x02", b"\x03"]
    # The server's id 1 means another message now.
    second.from_server.publish(b"t", b"new", 2)
    second.run()
    assert second.at_client.payloads(2) == [b"new"]
    second.quiet()


def test_a_clean_session_still_loses_nothing() -> None:
    e = online(clean_start=True)
    e.reconnect = False
    link = e.link()
    link.up.cut = len(link.up.log) + 3
    for n in range(3):
        e.from_client.publish(b"t", bytes([n]), 1 + n % 2)
    e.run()
    e.lose()
    e.reconnect = True
    e.connect()
    assert [m[1] for m in e.at_server.got] == [b"\x00", b"\x01", b"\x02"]
    e.quiet()


def test_connect_that_cannot_be_built() -> None:
    cases: list[tuple[ClientSession, int]] = [
        (ClientSession(b"x" * 600, tx_size=512), errors.E_TOO_LARGE),
        (ClientSession(b"", clean_start=False), errors.E_ARGUMENT),
        (ClientSession(b"c", keep_alive=65536), errors.E_ARGUMENT),
        (ClientSession(b"c", keep_alive=-1), errors.E_ARGUMENT),
        (ClientSession(b"c", password=b"p"), errors.E_ARGUMENT),
        (ClientSession(b"x" * 65536, tx_size=70000), errors.E_ARGUMENT),
        (ClientSession("text"), errors.E_ARGUMENT),  # type: ignore[arg-type]
        (ClientSession(b"c", user="me"), errors.E_ARGUMENT),  # type: ignore[arg-type]
        (ClientSession(b"c", user=b"u", password=7), errors.E_ARGUMENT),  # type: ignore[arg-type]
        (ClientSession(None), errors.E_ARGUMENT),  # type: ignore[arg-type]
    ]
    for c, status in cases:
        for _ in range(2):
            assert c.connect(0) == status, (c.client_id, status)
            assert c.state == IDLE and c.out() == 0 and c.poll(1) == 0
    # Also from within a connection: that is over then.
    c = client_in(ONLINE)
    c.publish(b"t", b"x", 1)
    c.keep_alive = -1
    assert c.connect(0) == errors.E_ARGUMENT
    assert c.state == IDLE and c.out() == 0 and c.outbox.count == 1
    c.keep_alive = 0
    assert c.connect(0) == 0


def test_constructors_refuse_what_cannot_work() -> None:
    for make in (
        lambda: ClientSession(b"c", rx_size=15),
        lambda: ClientSession(b"c", tx_size=15),
        lambda: ClientSession(b"c", outbox_size=7),
        lambda: ClientSession(b"c", slots=0),
        lambda: ClientSession(b"c", slots=FIRST_REQUEST_ID),
        lambda: ServerSession(tx_size=4),
    ):
        try:
            make()
        except ValueError:
            continue
        raise AssertionError("taken")
