# paths: publish qos 0, publish qos 1, publish qos 2, receive qos 0, receive qos 1, receive qos 2, poll
# paths: keep-alive, large message to a sink, large message skipped, acknowledged by the application
# paths: session refusals, publish again after a cut, publish again after a cut at PUBREL
# paths: client publish qos 0, client window of qos 1, client publish qos 2, client receive qos 2
# paths: client against a full transport, a repetition is answered
# paths: properties up at qos 0, properties up at qos 1, properties up at qos 2
# paths: properties down at qos 0, properties down at qos 1, properties down at qos 2
# paths: aliases up, aliases up with properties, aliases down, aliases of two topics in turn
# paths: large message with properties and an alias, refused by the application, an id that is not known
# paths: properties set anew, more than the server takes, the last word
# frames: publish qos 0, publish qos 1, publish qos 2, receive qos 0, receive qos 1, receive qos 2
# frames: keep-alive, large message to a sink, large message skipped, acknowledged by the application
# frames: session refusals, publish again after a cut, publish again after a cut at PUBREL
# frames: client publish qos 0, client window of qos 1, client publish qos 2, client receive qos 2
# frames: client against a full transport, a repetition is answered
# frames: properties up at qos 0, properties up at qos 1, properties up at qos 2
# frames: properties down at qos 0, properties down at qos 1, properties down at qos 2
# frames: aliases up, aliases up with properties, aliases down, aliases of two topics in turn
# frames: large message with properties and an alias, refused by the application, an id that is not known
# frames: properties set anew, more than the server takes, the last word
"""MQTT 5.0, at every QoS: what holds at 3.1.1, and with properties, topic aliases and reason codes."""

from pairs import LARGE, PAYLOAD, TOPIC, OnLine, Pair, prove_client
from prove import With, prove, prove_session

from headwater.errors import E_LIMIT, E_TOO_LARGE, E_TYPE
from headwater.mqtt import spec5
from headwater.mqtt.properties import Properties, find
from headwater.mqtt.server import ServerSession
from headwater.mqtt.server5 import ServerV5
from headwater.mqtt.session import ClientSession
from headwater.mqtt.topic_aliases import IncomingAliases, OutgoingAliases
from headwater.mqtt.v5 import ClientV5
from headwater.wire import get_u16

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet
    from headwater.mqtt.properties import Packet5

OTHER = b"board/other"
TOPICS = (TOPIC, OTHER)
TAG = b"0007"


def ends() -> Pair:
    client = ClientSession(
        b"board",
        10,
        False,
        rx_size=256,
        tx_size=128,
        outbox_size=2048,
        slots=4,
        window=4,
        receive_window=8,
        version=ClientV5(),
    )
    server = ServerSession(rx_size=256, tx_size=128, outbox_size=2048, slots=4, window=4, version=ServerV5())
    return Pair(client, server)


class Pair5(Pair):
    """With properties and topic aliases both ways; every message that arrives has its properties looked at."""

    client: ClientSession
    server: ServerSession

    def __init__(self, aliases: bool) -> None:
        self.block = Properties(60)
        assert self.block.add(spec5.CORRELATION_DATA, TAG) == 0
        assert self.block.add(spec5.MESSAGE_EXPIRY_INTERVAL, 60) == 0
        assert self.block.add(spec5.USER_PROPERTY, b"unit", b"kelvin") == 0
        self.properties = self.block.block
        self.tagged = 0
        Pair.__init__(
            self,
            ClientSession(
                b"board",
                0,
                False,
                rx_size=256,
                tx_size=128,
                outbox_size=2048,
                slots=4,
                window=4,
                receive_window=8,
                version=ClientV5(
                    aliases_in=IncomingAliases(4, 32) if aliases else None,
                    aliases_out=OutgoingAliases(4) if aliases else None,
                ),
            ),
            ServerSession(
                rx_size=256,
                tx_size=128,
                outbox_size=2048,
                slots=4,
                window=4,
                version=ServerV5(
                    aliases_in=IncomingAliases(4, 32) if aliases else None,
                    aliases_out=OutgoingAliases(4) if aliases else None,
                ),
            ),
        )
        self.client.on_message = self.server.on_message = self._tagged

    def _tagged(self, p: "Packet") -> None:
        self._look(p)  # type: ignore[arg-type]

    def _look(self, p: "Packet5") -> None:
        at = find(p.buf, p.props_at, p.props_end, spec5.CORRELATION_DATA)
        if at >= 0:
            assert get_u16(p.buf, at) == 4
            assert p.buf[at + 5] == TAG[3]
            self.tagged += 1
        self.up.messages += 1

    def _both(self, up: bool, qos: int, times: int = 1) -> None:
        before = self.tagged
        for _ in range(times):
            if up:
                assert self.client.publish(TOPIC, PAYLOAD, qos, False, self.properties) >= 0
            else:
                assert self.server.publish(TOPIC, PAYLOAD, qos, False, self.properties) >= 0
            self._settle()
        assert self.tagged == before + times
        assert self.client.outbox.count == self.server.outbox.count == 0

    def tagged_up(self, qos: int) -> None:
        self._both(True, qos)

    def tagged_down(self, qos: int) -> None:
        self._both(False, qos)

    def set_anew(self) -> None:
        assert self.block.set(spec5.CORRELATION_DATA, TAG) == 0
        assert self.block.set(spec5.MESSAGE_EXPIRY_INTERVAL, 61) == 0
        self._both(True, 0)

    def two_topics(self) -> None:
        before = self.up.messages
        for topic in TOPICS:
            assert self.client.publish(topic, PAYLOAD) == 0
            assert self.client.publish(topic, PAYLOAD) == 0
            self._settle()
        assert self.up.messages == before + 4

    def large(self) -> None:
        self.client.stream = self.streaming
        before = self.down.messages
        for _ in range(2):
            assert self.server.publish(TOPIC, LARGE, 1, False, self.properties) > 0
            self._settle()
        assert self.down.messages == before + 2
        self.client.stream = None

    def refuse(self) -> None:
        client = self._by_hand()
        for qos in (1, 2):
            packet_id = self.server.publish(TOPIC, PAYLOAD, qos)
            self._settle()
            assert client.acks.acknowledge(packet_id, qos, client.epoch, spec5.QUOTA_EXCEEDED) == 0
            self._settle()
        client.acks.automatic = True
        assert self.server.outbox.count == 0

    def unknown_id(self) -> None:
        before = self.server.strays
        client = self.client
        client.tx[0] = 0x62
        client.tx[1] = 2
        client.tx[2] = 0
        client.tx[3] = 99
        client.tx_end = 4
        self._settle()
        assert self.server.strays == before + 1

    def too_much(self) -> None:
        client = self.client
        client.v5._takes_flags = 0xF
        client.most = 30
        assert client.publish(TOPIC, PAYLOAD, 2) == E_LIMIT
        assert client.publish(TOPIC, PAYLOAD, 1, False, self.properties) == E_TOO_LARGE
        assert client.publish(TOPIC, PAYLOAD, 1) == E_TOO_LARGE
        client.v5._takes_flags = 0x3F
        client.most = 0x3FFFFFFF

    def last_word(self) -> None:
        client = self.client
        assert client.fail(E_TYPE) == E_TYPE
        assert client.out() == 3
        client.sent(3)
        self._lose()
        self._connect()


prove_session(ends())
prove_client(
    OnLine(
        ClientSession(b"board", clean_start=False, keep_alive=0, version=ClientV5()),
        ServerSession(rx_size=2048, tx_size=512, outbox_size=512, slots=4, version=ServerV5()),
    )
)
plain = Pair5(False)
for qos in (0, 1, 2):
    prove("properties up at qos %d" % qos, With(plain.tagged_up, qos).call)
    prove("properties down at qos %d" % qos, With(plain.tagged_down, qos).call)
prove("properties set anew", plain.set_anew)
prove("refused by the application", plain.refuse)
prove("an id that is not known", plain.unknown_id)
prove("more than the server takes", plain.too_much)
prove("the last word", plain.last_word)
aliased = Pair5(True)
prove("aliases up", With(aliased.publish, 0).call)
prove("aliases up with properties", With(aliased.tagged_up, 0).call)
prove("aliases down", With(aliased.tagged_down, 0).call)
prove("aliases of two topics in turn", aliased.two_topics)
prove("large message with properties and an alias", aliased.large, 20)
