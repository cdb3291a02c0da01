# heap: 768K
"""The client at MQTT 5.0 and 3.1: any session goes into it, and ``Client5`` passes properties on."""

from client_pair import Dialer, raised
from pipe import packets
from sessions import server5, session5, session31
from states5 import made, number_in, text_in

from headwater import errors
from headwater.connection import CLOSING
from headwater.mqtt import spec5
from headwater.mqtt.client import Client
from headwater.mqtt.client5 import Client5
from headwater.mqtt.server import ServerSession
from headwater.mqtt.server31 import ServerSession31
from headwater.mqtt.session import ClientSession
from headwater.mqtt.topic_aliases import IncomingAliases, OutgoingAliases
from headwater.mqtt.v31 import V31

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet

TOPIC = b"topic"


class Pair5:
    """A connected client and what its server has got: payload and content type of each message."""

    def __init__(self, **options: object):
        self.server = server5(aliases_in=IncomingAliases(4, 16))
        self.dialer = Dialer(self.server)
        self.client = Client5(self.dialer, session=session5(b"c", **options))
        self.got: list[tuple[bytes, bytes, bytes | None]] = []
        self.server.on_message = self.message
        self.client.connect()

    def message(self, p: "Packet") -> None:
        self.got.append((p.topic_bytes(), p.payload_bytes(), text_in(p, spec5.CONTENT_TYPE)))

    def settle(self) -> None:
        for _ in range(100):
            assert self.client.poll() == 0
            self.dialer.serve()


def test_any_session_goes_into_a_client() -> None:
    for session, server in (
        (session31(b"c", clean_start=False), ServerSession31()),
        (ClientSession(b"c", clean_start=False), ServerSession31()),
        (ClientSession(b"c", clean_start=False), ServerSession()),
        (session5(b"c", clean_start=False), server5()),
    ):
        dialer = Dialer(server)
        client = Client(dialer, session=session)
        got: list[bytes] = []
        server.on_message = client.on_message = lambda p, got=got: got.append(p.payload_bytes())
        delivered: list[int] = []
        client.on_delivered = delivered.append
        assert client.connect() is False
        for k in range(3):
            for qos in (0, 1, 2):
                assert client.publish(TOPIC, b"%d%d" % (k, qos), qos) >= 0
        assert client.subscribe(b"a/#", 1) > 0
        assert server.publish(TOPIC, b"down", 2) > 0
        for _ in range(100):
            assert client.poll() == 0
            dialer.serve()
        assert sorted(got) == sorted([b"%d%d" % (k, qos) for k in range(3) for qos in (0, 1, 2)] + [b"down"])
        assert sorted(delivered) == [1, 2, 3, 4, 5, 6]
        client.disconnect()
        dialer.serve()
        assert server.graceful
        assert client.connect() is (not isinstance(session.version, V31))


def test_the_packet_that_is_ready_has_nobody_s_properties() -> None:
    """What is sent again with another payload is a message without properties, and with its topic's alias."""
    for options in ({}, {"aliases_out": OutgoingAliases(2)}):
        p = Pair5(**options)
        kind = made((spec5.CONTENT_TYPE, b"kind"))
        expected = []
        for n in range(12):
            block = kind if n % 5 == 3 else spec5.NO_PROPERTIES
            topic = b"other" if n == 7 else TOPIC
            assert p.client.publish(topic, b"%d" % n, 0, False, block) == 0
            expected.append((topic, b"%d" % n, b"kind" if n % 5 == 3 else None))
            if n % 2:
                p.dialer.serve()
        p.dialer.serve()
        assert p.got == expected
        bare = [
            1
            for head, at, _ in packets(p.dialer.line().up.log)
            if p.dialer.line().up.log[at + 2 : at + 4] == b"\x00\x00"
        ]
        assert len(bare) == (10 if options else 0)


def test_a_call_for_each_that_takes_properties() -> None:
    p = Pair5()
    filters: list[int] = []

    def granted(packet: "Packet", options: int) -> int:
        filters.append(number_in(packet, spec5.SUBSCRIPTION_IDENTIFIER))
        return options & 3

    p.server.on_subscribe = granted
    answers: dict[int, int] = {}
    p.client.session.on_answer = answers.__setitem__
    ident = made((spec5.SUBSCRIPTION_IDENTIFIER, 9))
    user = b"\x07\x26\x00\x01k\x00\x01v"
    asked = p.client.subscribe(b"a", 1 | spec5.NO_LOCAL, ident)
    back = p.client.unsubscribe(b"a", user)
    p.settle()
    assert answers == {asked: 1, back: 0} and filters == [9]
    assert p.client.subscribe(b"", 1, ident) == errors.E_FILTER
    assert p.client.unsubscribe(b"a", 5) == errors.E_ARGUMENT  # type: ignore[arg-type]
    assert p.client.publish(TOPIC, b"", 1, False, ident) == errors.E_ARGUMENT
    for qos in (1, 2):
        assert p.client.publish(TOPIC, b"x", qos, properties=made((spec5.CONTENT_TYPE, b"t"))) > 0
    p.client.flush(1000)
    assert p.got == [(TOPIC, b"x", b"t")] * 2
    assert p.client.authenticate(user) == errors.E_STATE
    p.client.disconnect(spec5.DISCONNECT_WITH_WILL, user)
    p.dialer.serve()
    assert p.server.state == CLOSING and p.server.v5.return_code == spec5.DISCONNECT_WITH_WILL
    assert bytes(p.dialer.lines[-1].up.log[-11:]) == b"\xe0\x09\x04" + user


def test_a_full_transmit_buffer_is_sent_first() -> None:
    p = Pair5(tx_size=80)
    block = made((spec5.CONTENT_TYPE, bytes(b"x" * 20)))
    p.dialer.line().up.room = 1
    assert p.client.publish(TOPIC, bytes(30), 0, False, block) == 0
    assert p.client.publish(TOPIC, bytes(30), 0, False, block) == errors.E_AGAIN
    p.dialer.line().up.room = 0
    assert p.client.publish(TOPIC, bytes(30), 0, False, block) == 0
    p.dialer.serve()
    assert len(p.got) == 2


def test_the_last_word_is_written_and_the_transport_closed() -> None:
    p = Pair5()
    line = p.dialer.line()
    line.down.log += b"\x00\x00"
    assert p.client.poll() == errors.E_TYPE
    assert bytes(line.up.log[-3:]) == bytes([0xE0, 1, spec5.MALFORMED_PACKET])
    assert line.closed == 1 and p.client.status == errors.E_TYPE
    # A transport that fails at that: it was to be closed anyway.
    p = Pair5()
    line = p.dialer.line()
    line.down.log += b"\x00\x00"
    line.write_error = OSError(104)
    assert p.client.poll() == errors.E_TYPE
    assert line.closed == 1
    # 3.1.1 has no such word.
    dialer = Dialer(ServerSession())
    client = Client(dialer, b"c")
    client.connect()
    sent = len(dialer.line().up.log)
    dialer.line().down.log += b"\x00\x00"
    assert client.poll() == errors.E_TYPE
    assert len(dialer.line().up.log) == sent


def test_connect_says_why_not() -> None:
    server = server5()
    server.on_connect = lambda connect, packet: spec5.SERVER_BUSY
    client = Client5(Dialer(server), b"c")
    assert raised(client.connect) == errors.E_REFUSED
    assert client.session.return_code == spec5.SERVER_BUSY
    server.on_connect = None
    client.connect()
    assert server.disconnect(spec5.USE_ANOTHER_SERVER, made((spec5.SERVER_REFERENCE, b"b:1"))) == 0
    client.dialer.serve()  # type: ignore[attr-defined]
    assert client.poll() == errors.E_DISCONNECTED
    assert client.session.return_code == spec5.USE_ANOTHER_SERVER
    assert text_in(client.session.packet, spec5.SERVER_REFERENCE) == b"b:1"
