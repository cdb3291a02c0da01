# heap: 512K
"""MQTT 5.0: enhanced authentication (4.12), at the beginning of a connection and within it."""

from pipe import Link, Wire, drain, feed, receive, send
from sessions import server5, session5
from states5 import Ends5, made, online5, text_in

from headwater import errors
from headwater.connection import CLOSING, CONNECTING, ERROR, IDLE, ONLINE
from headwater.mqtt import spec5
from headwater.mqtt.server import SESSION_PRESENT
from headwater.mqtt.session import ClientSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet
    from headwater.mqtt.properties import Packet5
    from headwater.types import Bytes


def step(n: int) -> bytes:
    return made((spec5.AUTHENTICATION_METHOD, b"STEPS"), (spec5.AUTHENTICATION_DATA, b"%d" % n))


class Steps:
    """Both ends count to ``last`` together: whoever is told n answers n + 1."""

    def __init__(self, last: int = 5, links: "tuple[Link, ...]" = ()):
        self.last = last
        self.done = 0
        self.told: list[int] = []
        self.answer: Bytes | None = None
        client = session5(b"c", 0, False)
        assert client.v5.connect_properties.add(spec5.AUTHENTICATION_METHOD, b"STEPS") == 0
        assert client.v5.connect_properties.add(spec5.AUTHENTICATION_DATA, b"0") == 0
        server = server5()
        self.e = Ends5(client, server, links)
        client.v5.on_auth = self.at_client
        server.v5.on_auth = self.at_server
        server.on_connect = self.on_connect

    def on_connect(self, connect: object, p: "Packet") -> int:
        c = self.e.server.connect_packet
        assert b"STEPS" in bytes(p.buf[c.props_at : c.props_end])
        self.e.server.v5.reply = step(1)
        return spec5.CONTINUE_AUTHENTICATION

    def at_client(self, p: "Packet5") -> "Bytes | None":
        data = text_in(p, spec5.AUTHENTICATION_DATA)
        if p.code == 0:
            self.done += 1
            return None
        assert p.code == spec5.CONTINUE_AUTHENTICATION and data is not None
        self.told.append(int(data))
        return self.answer or step(int(data) + 1)

    def at_server(self, p: "Packet5") -> int:
        data = text_in(p, spec5.AUTHENTICATION_DATA)
        assert data is not None
        n = int(data)
        if n >= self.last:
            self.e.server.v5.reply = made((spec5.AUTHENTICATION_METHOD, b"STEPS"))
            return SESSION_PRESENT if self.e.server.has_session else 0
        self.e.server.v5.reply = step(n + 1)
        return spec5.CONTINUE_AUTHENTICATION


def test_a_connection_that_authenticates() -> None:
    for last in (2, 4, 6):
        s = Steps(last)
        s.e.connect()
        assert s.told == list(range(1, last, 2))
        assert s.done == 0 and not s.e.client.session_present
        s.e.from_client.publish(b"t", b"m", 1)
        s.e.run()
        s.e.quiet()
        s.e.lose()
        s.e.connect()
        assert s.e.client.session_present


def test_a_connection_cut_while_it_authenticates() -> None:
    whole = Steps()
    whole.e.connect()
    for k in range(len(whole.e.link().up.log) + 1):
        Steps(links=(Link(Wire(5, 3, 0, k)),)).e.connect()
    for k in range(len(whole.e.link().down.log) + 1):
        Steps(links=(Link(down=Wire(5, 3, 0, k)),)).e.connect()


def test_authenticating_again() -> None:
    """Messages go on meanwhile."""
    s = Steps()
    s.e.connect()
    s.told.clear()
    client = s.e.client
    s.e.from_client.publish(b"t", b"before", 1)
    assert client.v5.authenticate(step(2)) == 0
    assert client.v5.authenticate(step(2)) == errors.E_STATE
    s.e.from_client.publish(b"t", b"behind", 2)
    s.e.run()
    assert s.told == [3, 5] and s.done == 1
    s.e.quiet()
    assert [m[1] for m in s.e.at_server.got] == [b"before", b"behind"]
    # And again, at once.
    s.last = 0
    assert client.v5.authenticate(step(0)) == 0
    s.e.run()
    assert s.done == 2 and client.state == ONLINE


def test_authenticate_says_what_is_wrong() -> None:
    s = Steps()
    assert s.e.client.v5.authenticate(step(0)) == errors.E_OFFLINE
    s.e.connect()
    assert s.e.client.v5.authenticate(5) == errors.E_ARGUMENT
    # The method of CONNECT, and no other.
    for method in (b"", b"STEP", b"STEPS1", b"OTHER"):
        assert s.e.client.v5.authenticate(made((spec5.AUTHENTICATION_METHOD, method))) == errors.E_ARGUMENT
    assert s.e.client.v5.authenticate(made((spec5.AUTHENTICATION_DATA, b"2"))) == errors.E_ARGUMENT
    assert s.e.client.out() == 0
    assert online5().client.v5.authenticate(step(0)) == errors.E_STATE
    small = session5(b"c", tx_size=40)
    small.v5.on_auth = lambda p: None
    assert small.v5.connect_properties.add(spec5.AUTHENTICATION_METHOD, b"STEPS") == 0
    small.connect(0)
    drain(small)
    assert feed(small, b"\x20\x03\x00\x00\x00") == 0
    long = made((spec5.AUTHENTICATION_METHOD, b"STEPS"), (spec5.AUTHENTICATION_DATA, bytes(50)))
    assert small.v5.authenticate(long) == errors.E_TOO_LARGE
    small.publish(b"t", bytes(20))
    assert small.v5.authenticate(step(0)) == errors.E_AGAIN


def test_the_server_refuses() -> None:
    for again in (False, True):
        s = Steps()
        if again:
            s.e.connect()
        s.e.server.v5.on_auth = lambda p: spec5.NOT_AUTHORIZED
        s.e.reconnect = False
        if again:
            s.e.client.v5.authenticate(step(2))
        else:
            s.e.open()
        status = 1
        bad = 0
        while status > 0:
            send(s.e.client, s.e.link().up)
            bad = receive(s.e.server, s.e.link().up)
            send(s.e.server, s.e.link().down)
            status = receive(s.e.client, s.e.link().down)
        assert s.e.client.return_code == spec5.NOT_AUTHORIZED
        assert status == (errors.E_DISCONNECTED if again else errors.E_REFUSED)
        assert s.e.server.state == (ERROR if again else CLOSING)
        assert bad == (errors.E_AUTH if again else bad)


def test_the_client_gives_up() -> None:
    s = Steps()
    s.e.client.v5.on_auth = lambda p: None
    s.e.open()
    status = 0
    for end, up in ((s.e.client, True), (s.e.server, False)):
        send(end, s.e.link().up if up else s.e.link().down)
        status = receive(s.e.server if up else s.e.client, s.e.link().up if up else s.e.link().down)
    assert status == errors.E_AUTH and s.e.client.state == ERROR
    # Again, within a connection: there DISCONNECT says why.
    s = Steps()
    s.e.connect()
    s.e.client.v5.on_auth = lambda p: None
    s.e.client.v5.authenticate(step(0))
    send(s.e.client, s.e.link().up)
    receive(s.e.server, s.e.link().up)
    send(s.e.server, s.e.link().down)
    assert receive(s.e.client, s.e.link().down) == errors.E_AUTH
    assert drain(s.e.client) == bytes([0xE0, 1, spec5.BAD_AUTHENTICATION_METHOD])


def test_what_no_server_may_say() -> None:
    """AUTH without our asking, with another method, of the wrong code, or out of turn."""
    other = made((spec5.AUTHENTICATION_METHOD, b"OTHER"))
    longer = made((spec5.AUTHENTICATION_METHOD, b"STEPS1"))
    for code, block in (
        (spec5.CONTINUE_AUTHENTICATION, other),
        (spec5.CONTINUE_AUTHENTICATION, longer),
        (spec5.RE_AUTHENTICATE, step(1)),
        (spec5.SUCCESS, step(1)),
    ):
        s = Steps()
        s.e.client.connect(0)
        drain(s.e.client)
        assert feed(s.e.client, bytes([0xF0, 1 + len(block), code]) + block) == errors.E_UNEXPECTED
        assert s.told == []
    s = Steps()
    s.e.connect()
    assert feed(s.e.client, b"\xf0" + bytes([1 + len(step(1)), 0x18]) + step(1)) == errors.E_UNEXPECTED
    # Without on_auth, or without a method in CONNECT.
    s = Steps()
    s.e.client.v5.on_auth = None
    s.e.client.connect(0)
    drain(s.e.client)
    assert feed(s.e.client, b"\xf0" + bytes([1 + len(step(1)), 0x18]) + step(1)) == errors.E_UNEXPECTED
    c = session5(b"c")
    c.v5.on_auth = lambda p: step(1)
    c.connect(0)
    drain(c)
    assert feed(c, b"\xf0" + bytes([1 + len(step(1)), 0x18]) + step(1)) == errors.E_UNEXPECTED
    assert feed(ready(), b"\xf0\x01\x18") == errors.E_VALUE


def ready() -> ClientSession:
    s = Steps()
    s.e.client.connect(0)
    drain(s.e.client)
    assert s.e.client.state == CONNECTING
    return s.e.client


def test_what_no_client_may_say() -> None:
    other = made((spec5.AUTHENTICATION_METHOD, b"OTHER"))
    for connected in (False, True):
        for code, block in (
            (spec5.CONTINUE_AUTHENTICATION, other),
            (spec5.SUCCESS, step(1)),
            (spec5.CONTINUE_AUTHENTICATION if connected else spec5.RE_AUTHENTICATE, step(1)),
        ):
            s = Steps()
            if connected:
                s.e.connect()
            else:
                s.e.open()
                send(s.e.client, s.e.link().up)
                assert receive(s.e.server, s.e.link().up) > 0
                drain(s.e.server)
            assert feed(s.e.server, bytes([0xF0, 1 + len(block), code]) + block) == errors.E_UNEXPECTED
    # Nobody to ask; and a client that has no method.
    for e in (online5(), online5()):
        e.server.v5.on_auth = None if e.server.keep_alive else lambda p: 0
        assert feed(e.server, b"\xf0" + bytes([1 + len(step(1)), 0x19]) + step(1)) == errors.E_UNEXPECTED


def test_on_auth_may_end_the_connection() -> None:
    s = Steps()

    def drop(p: "Packet5") -> "Bytes | None":
        s.e.client.lost()
        return step(1)

    s.e.client.v5.on_auth = drop
    s.e.open()
    send(s.e.client, s.e.link().up)
    receive(s.e.server, s.e.link().up)
    send(s.e.server, s.e.link().down)
    assert receive(s.e.client, s.e.link().down) >= 0
    assert s.e.client.state == IDLE and s.e.client.out() == 0


def test_the_answer_waits_for_the_room_it_may_need() -> None:
    s = Steps()
    s.e.connect()
    client = s.e.client
    assert client.v5.authenticate(step(2)) == 0
    drain(client)
    assert client.publish(b"t", b"waits", 0) == 0
    s.told.clear()
    assert feed(client, b"\xf0" + bytes([1 + len(step(7)), 0x18]) + step(7)) == 0
    assert client.stalled and s.told == []
    drain(client)
    assert client.feed(0) == 0 and s.told == [7]
    assert drain(client) == b"\xf0" + bytes([1 + len(step(8)), 0x18]) + step(8)
