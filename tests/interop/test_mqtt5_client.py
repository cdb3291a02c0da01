"""What MQTT 5.0 has beyond 3.1.1, against mosquitto."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pipe import packets
from states5 import made, number_in, text_in

from headwater import errors
from headwater.errors import HeadwaterError
from headwater.mqtt import spec5
from headwater.mqtt.client5 import Client5
from headwater.mqtt.packets import BAD_UTF8, Packet
from headwater.mqtt.topic_aliases import IncomingAliases, OutgoingAliases
from headwater.mqtt.v5 import ClientV5
from tests.interop.dialer import SocketDialer
from tools.broker import Broker, Mosquitto

Start = Callable[..., Mosquitto]
WAIT_S = 200.0

pytestmark = pytest.mark.needs_mosquitto


#: Keywords that are of the version, and not of the session.
OF_5 = ("session_expiry", "max_packet", "aliases_in", "aliases_out", "properties_size", "receive_maximum")


@dataclass
class Message:
    """What arrived, with its properties as they stood in the packet."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    numbers: dict[int, int] = field(default_factory=dict)
    texts: dict[int, bytes] = field(default_factory=dict)


class Peer:
    """A client of 5.0 and what it has got."""

    def __init__(self, broker: Broker, name: str, **options: object):
        self.dialer = SocketDialer(broker.port)
        of_5 = {name: options.pop(name) for name in OF_5 if name in options}
        version = ClientV5(**of_5)  # type: ignore[arg-type]
        self.client = Client5(self.dialer, name.encode(), version=version, **options)  # type: ignore[arg-type]
        self.got: list[Message] = []
        self.answers: dict[int, int] = {}
        self.refused: dict[int, int] = {}
        self.delivered: list[int] = []
        self.client.on_message = self._message
        self.client.on_delivered = self.delivered.append
        self.client.session.on_answer = self.answers.__setitem__
        self.client.session.v5.on_refused = self.refused.__setitem__

    def _message(self, m: Packet) -> None:
        message = Message(m.topic_text(), m.payload_bytes(), m.qos(), m.retain())
        for ident in (
            spec5.PAYLOAD_FORMAT_INDICATOR,
            spec5.MESSAGE_EXPIRY_INTERVAL,
            spec5.SUBSCRIPTION_IDENTIFIER,
        ):
            if (number := number_in(m, ident)) >= 0:
                message.numbers[ident] = number
        for ident in (spec5.CONTENT_TYPE, spec5.RESPONSE_TOPIC, spec5.CORRELATION_DATA, spec5.USER_PROPERTY):
            if (text := text_in(m, ident)) is not None:
                message.texts[ident] = text
        self.got.append(message)

    def payloads(self) -> list[bytes]:
        return [m.payload for m in self.got]

    def until(self, done: Callable[[], bool], what: str = "what was waited for") -> None:
        deadline = time.monotonic() + WAIT_S
        while not done():
            assert self.client.wait(10) == 0, self.client.status
            assert time.monotonic() < deadline, f"{what} did not come about: {self.got}"

    def until_gone(self) -> int:
        deadline = time.monotonic() + WAIT_S
        while self.client.wait(10) == 0:
            assert time.monotonic() < deadline
        return self.client.status

    def subscribe(self, topic_filter: bytes, options: int = 0, properties: bytes = b"\x00") -> int:
        packet_id = self.client.subscribe(topic_filter, options, properties)
        assert packet_id > 0, packet_id
        self.until(lambda: packet_id in self.answers, "SUBACK")
        return self.answers[packet_id]

    def settle(self, ms: int = 100) -> None:
        assert self.client.wait(ms) == 0


Make = Callable[..., Peer]


@pytest.fixture(scope="module")
def broker(mosquitto: Start) -> Mosquitto:
    return mosquitto()


@pytest.fixture
def peer(broker: Mosquitto) -> Iterator[Make]:
    made_: list[Peer] = []

    def connected(name: str, on: Broker = broker, **options: object) -> Peer:
        made_.append(Peer(on, name, **options))
        made_[-1].client.connect()
        return made_[-1]

    yield connected
    for one in made_:
        one.client.close()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_arrive(peer: Make, qos: int) -> None:
    listener, talker = peer("listener"), peer("talker")
    assert listener.subscribe(b"props/#", qos) == qos
    block = made(
        (spec5.PAYLOAD_FORMAT_INDICATOR, 1),
        (spec5.MESSAGE_EXPIRY_INTERVAL, 3600),
        (spec5.CONTENT_TYPE, b"text/plain"),
        (spec5.RESPONSE_TOPIC, b"answers/7"),
        (spec5.CORRELATION_DATA, b"\x00\xff"),
        (spec5.USER_PROPERTY, b"unit"),
    )
    assert talker.client.publish(b"props/x", b"21.5", qos, properties=block) >= 0
    assert talker.client.publish(b"props/x", b"plain", qos) >= 0
    talker.client.flush(5000)
    listener.until(lambda: len(listener.got) == 2)
    first, second = listener.got
    assert (first.topic, first.payload, first.qos) == ("props/x", b"21.5", qos)
    assert first.numbers[spec5.PAYLOAD_FORMAT_INDICATOR] == 1
    assert 3500 <= first.numbers[spec5.MESSAGE_EXPIRY_INTERVAL] <= 3600
    assert first.texts == {
        spec5.CONTENT_TYPE: b"text/plain",
        spec5.RESPONSE_TOPIC: b"answers/7",
        spec5.CORRELATION_DATA: b"\x00\xff",
        spec5.USER_PROPERTY: b"unit",
    }
    assert second == Message("props/x", b"plain", qos, False)


def test_request_and_response(peer: Make) -> None:
    asking, answering = peer("asking"), peer("answering")
    asking.subscribe(b"asking/answers", 1)
    answering.subscribe(b"service", 1)
    question = made((spec5.RESPONSE_TOPIC, b"asking/answers"), (spec5.CORRELATION_DATA, b"q1"))
    asking.client.publish(b"service", b"?", 1, properties=question)
    asking.client.flush(5000)
    answering.until(lambda: bool(answering.got))
    texts = answering.got[0].texts
    data = made((spec5.CORRELATION_DATA, texts[spec5.CORRELATION_DATA]))
    answering.client.publish(texts[spec5.RESPONSE_TOPIC], b"42", 1, properties=data)
    answering.client.flush(5000)
    asking.until(lambda: bool(asking.got))
    assert (asking.got[0].payload, asking.got[0].texts) == (b"42", {spec5.CORRELATION_DATA: b"q1"})


def test_aliases_up(peer: Make) -> None:
    listener = peer("listener", rx_size=2048)
    listener.subscribe(b"alias/#", 0)
    talker = peer("talker", aliases_out=OutgoingAliases(3))
    limit = talker.client.session.v5.limits[spec5.TOPIC_ALIAS_MAXIMUM]
    assert limit == 10
    topics = [b"alias/a-long-topic/%d" % n for n in range(4)]
    for k in range(5):
        for topic in topics:
            assert talker.client.publish(topic, b"%d" % k) == 0
    listener.until(lambda: len(listener.got) == 20)
    assert [m.topic.encode() for m in listener.got] == topics * 5
    sent = talker.dialer.opened[-1].sent
    bare = sum(head == 0x30 and sent[at + 2 : at + 4] == b"\x00\x00" for head, at, _ in packets(sent))
    assert bare == 12
    # Numbers do not outlive their connection.
    talker.client.connect()
    assert talker.client.publish(topics[0], b"again") == 0
    listener.until(lambda: len(listener.got) == 21)
    assert listener.got[-1].topic.encode() == topics[0]


def test_the_server_may_send_aliases(peer: Make) -> None:
    """Whether it does is its own affair: the topics are right."""
    listener, talker = peer("listener", rx_size=2048, aliases_in=IncomingAliases(5, 40)), peer("talker")
    listener.subscribe(b"down/#", 1)
    for k in range(4):
        for n in range(3):
            assert talker.client.publish(b"down/%d" % n, b"%d" % k, k % 2) >= 0
    talker.client.flush(5000)
    listener.until(lambda: len(listener.got) == 12)
    assert sorted(m.topic for m in listener.got) == sorted(["down/0", "down/1", "down/2"] * 4)


def test_subscription_identifiers_and_options(peer: Make) -> None:
    one, other = peer("one"), peer("other")
    one.subscribe(b"opt/+", 1 | spec5.NO_LOCAL, made((spec5.SUBSCRIPTION_IDENTIFIER, 300)))
    one.client.publish(b"opt/x", b"own", 1)
    other.client.publish(b"opt/x", b"other's", 1)
    for talker in (one, other):
        talker.client.flush(5000)
    one.until(lambda: bool(one.got))
    one.settle()
    assert one.payloads() == [b"other's"]
    assert one.got[0].numbers == {spec5.SUBSCRIPTION_IDENTIFIER: 300}


def test_retain_options(peer: Make) -> None:
    talker = peer("talker")
    talker.client.publish(b"kept/x", b"kept", 1, True)
    talker.client.flush(5000)
    never, always = peer("never"), peer("always")
    never.subscribe(b"kept/x", 1 | 2 << spec5.RETAIN_HANDLING_SHIFT)
    always.subscribe(b"kept/x", 1 | spec5.RETAIN_AS_PUBLISHED)
    always.until(lambda: bool(always.got))
    talker.client.publish(b"kept/x", b"", 1, True)
    talker.client.flush(5000)
    always.until(lambda: len(always.got) == 2)
    never.until(lambda: bool(never.got))
    assert [(m.payload, m.retain) for m in always.got] == [(b"kept", True), (b"", True)]
    assert [(m.payload, m.retain) for m in never.got] == [(b"", False)]


def test_shared_subscriptions(peer: Make) -> None:
    one, two, talker = peer("one"), peer("two"), peer("talker")
    for member in (one, two):
        assert member.subscribe(b"$share/workers/jobs/#", 1) == 1
    for n in range(10):
        talker.client.publish(b"jobs/x", bytes([n]), 1)
    talker.client.flush(5000)
    deadline = time.monotonic() + WAIT_S
    while len(one.got) + len(two.got) < 10:
        one.settle(10)
        two.settle(10)
        assert time.monotonic() < deadline
    assert sorted(one.payloads() + two.payloads()) == [bytes([n]) for n in range(10)]
    assert one.got
    assert two.got


def test_unsubscribe_says_whether_there_was_anything(peer: Make) -> None:
    one = peer("one")
    one.subscribe(b"there", 1)
    for topic_filter, code in ((b"there", 0), (b"there", spec5.NO_SUBSCRIPTION_EXISTED)):
        packet_id = one.client.unsubscribe(topic_filter)
        one.until(lambda: packet_id in one.answers)  # noqa: B023
        assert one.answers[packet_id] == code


def test_nobody_listens(peer: Make) -> None:
    """PUBACK and PUBREC say so (0x10): delivered all the same."""
    talker = peer("talker")
    for qos in (1, 2):
        assert talker.client.publish(b"nobody/here", b"", qos) > 0
    talker.client.flush(5000)
    assert len(talker.delivered) == 2
    assert not talker.refused
    received = bytes(talker.dialer.opened[-1].received)
    assert bytes([0x40, 3, 0, 1, spec5.NO_MATCHING_SUBSCRIBERS]) in received


def test_an_assigned_client_id(peer: Make) -> None:
    one = peer("", session_expiry=60)
    name = one.client.session.client_id
    assert len(name) > 8
    one.client.session.clean_start = False
    assert one.client.connect() is True
    assert one.client.session.client_id == name


def test_session_expiry(peer: Make) -> None:
    one = peer("expiring", clean_start=False, session_expiry=1)
    one.subscribe(b"expiring", 1)
    assert one.client.connect() is True
    one.client.disconnect(0, made((spec5.SESSION_EXPIRY_INTERVAL, 0)))
    assert one.client.connect() is False


def test_message_expiry(peer: Make) -> None:
    """What expires while its receiver is away does not come; the rest comes with the time that is left."""
    listener, talker = peer("away", clean_start=False), peer("talker")
    listener.subscribe(b"expiry/#", 1)
    listener.client.disconnect()
    for seconds in (1, 100):
        block = made((spec5.MESSAGE_EXPIRY_INTERVAL, seconds))
        talker.client.publish(b"expiry/x", b"%d" % seconds, 1, properties=block)
    talker.client.flush(5000)
    talker.settle(2200)
    assert listener.client.connect() is True
    listener.until(lambda: bool(listener.got))
    listener.settle()
    assert listener.payloads() == [b"100"]
    assert 50 <= listener.got[0].numbers[spec5.MESSAGE_EXPIRY_INTERVAL] <= 98
    listener.client.session.clean_start = True
    listener.client.connect()


def test_a_will_with_a_delay_and_properties(peer: Make) -> None:
    witness = peer("witness")
    witness.subscribe(b"wills/#", 1)
    mortal = peer("mortal", clean_start=False, session_expiry=60)
    block = made((spec5.WILL_DELAY_INTERVAL, 1), (spec5.CONTENT_TYPE, b"text/will"))
    assert mortal.client.session.set_will(b"wills/mortal", b"gone", 1, False, block) == 0
    mortal.client.connect()
    mortal.client.close()
    begin = time.monotonic()
    witness.until(lambda: bool(witness.got), "the will")
    assert time.monotonic() - begin > 0.5
    assert witness.got[0].texts == {spec5.CONTENT_TYPE: b"text/will"}
    # It comes back in time: no will.
    mortal.client.connect()
    mortal.client.close()
    mortal.client.connect()
    witness.settle(2200)
    assert len(witness.got) == 1


def test_disconnect_with_the_will(peer: Make) -> None:
    witness = peer("witness")
    witness.subscribe(b"wills/#", 1)
    for code, count in ((0, 0), (spec5.DISCONNECT_WITH_WILL, 1)):
        mortal = peer("mortal")
        mortal.client.session.set_will(b"wills/mortal", b"gone", 1)
        mortal.client.connect()
        mortal.client.disconnect(code)
        witness.settle(300)
        assert len(witness.got) == count


def test_another_client_takes_the_session_over(peer: Make) -> None:
    first = peer("twin")
    second = peer("twin")
    # Not every mosquitto says why.
    if first.until_gone() == errors.E_DISCONNECTED:
        assert first.client.session.return_code == spec5.SESSION_TAKEN_OVER
    else:
        assert first.client.status == errors.E_CLOSED
    second.settle()


def test_a_protocol_error_is_told_to_the_server(peer: Make) -> None:
    """As if what came were no UTF-8: our last packet says so."""
    one = peer("complains")
    one.client.session.packet.check = lambda buf, at, end: BAD_UTF8
    one.subscribe(b"bad/utf8", 0)
    one.client.publish(b"bad/utf8", b"x")
    assert one.until_gone() == errors.E_UTF8
    assert bytes(one.dialer.opened[-1].sent[-3:]) == bytes([0xE0, 1, spec5.MALFORMED_PACKET])


# -- the server's limits -----------------------------------------------------------------------------------------------


def test_receive_maximum_and_keep_alive(mosquitto: Start) -> None:
    with mosquitto(settings={"max_inflight_messages": 3, "max_keepalive": 30}) as broker:
        one = Peer(broker, "limited", keep_alive=600, slots=32, outbox_size=4096)
        one.client.connect()
        assert one.client.session.window == 3
        assert one.client.session.keep_alive == 30
        for n in range(30):
            assert one.client.publish(b"t", bytes([n]), 1 + n % 2) > 0
            assert one.client.session.in_flight <= 3
        one.client.flush(5000)
        assert len(one.delivered) == 30
        one.client.close()
        assert (one.client.session.window, one.client.session.keep_alive) == (16, 600)


def test_maximum_packet_size(mosquitto: Start) -> None:
    with mosquitto(settings={"max_packet_size": 100}) as broker:
        one = Peer(broker, "limited", clean_start=False)
        assert one.client.publish(b"t", bytes(200), 1) == 1
        assert one.client.publish(b"t", bytes(20), 1) == 2
        one.client.connect()
        one.client.flush(5000)
        assert (one.refused, one.delivered) == ({1: spec5.PACKET_TOO_LARGE}, [2])
        for qos in (0, 1, 2):
            assert one.client.publish(b"t", bytes(100), qos) == errors.E_TOO_LARGE
        # As large as it may be.
        assert one.client.publish(b"t", bytes(94), 0) == 0
        assert one.client.publish(b"t", bytes(92), 2) > 0
        one.client.flush(5000)
        one.client.disconnect()


def _until_it_ends(one: Peer) -> None:
    one.client.flush(5000)
    one.client.wait(5000)
    one.client.flush(0)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_is_too_large_for_what_mosquitto_does_not_announce(mosquitto: Start, qos: int) -> None:
    with mosquitto(settings={"message_size_limit": 100}) as broker:
        one = Peer(broker, "limited", clean_start=False)
        one.client.connect()
        assert one.client.publish(b"t", bytes(200), qos) == 1
        # Mosquitto says why, in PUBACK or PUBREC against the standard, and hangs up: the answer may be all that was
        # waited for, so that the end comes with a later call. Nothing is sent again.
        with pytest.raises(HeadwaterError):
            _until_it_ends(one)
        assert one.refused == {1: spec5.PACKET_TOO_LARGE}
        one.client.connect()
        assert one.client.publish(b"t", bytes(20), qos) == 2
        one.client.flush(5000)
        assert one.delivered == [2]
        one.client.disconnect()


def test_maximum_qos_and_retain(mosquitto: Start) -> None:
    with mosquitto(settings={"max_qos": 1, "retain_available": "false", "max_topic_alias": 0}) as broker:
        one = Peer(broker, "limited", aliases_out=OutgoingAliases(5))
        one.client.connect()
        assert one.client.publish(b"t", b"", 2) == errors.E_LIMIT
        assert one.client.publish(b"t", b"", 1, True) == errors.E_LIMIT
        assert one.client.publish(b"t", b"", 1) > 0
        for _ in range(3):
            assert one.client.publish(b"t", b"", 0) == 0
        one.client.flush(5000)
        one.settle()
        one.client.disconnect()


def test_what_the_server_does_not_permit(mosquitto: Start, tmp_path: Path) -> None:
    """PUBACK with an error: the message is over."""
    rules = tmp_path / "acl"
    rules.write_text("topic write open/#\n")
    rules.chmod(0o644)
    tmp_path.chmod(0o755)
    with mosquitto(settings={"acl_file": rules}) as broker:
        one = Peer(broker, "nobody", clean_start=False)
        one.client.connect()
        ids = [one.client.publish(topic, b"", 1) for topic in (b"open/x", b"shut/x")]
        try:
            one.client.flush(5000)
        except HeadwaterError as error:
            # mosquitto 2.0.11 closes the connection behind a refusal; at QoS 2 even without one.
            assert error.code == errors.E_CLOSED  # noqa: PT017
        assert (one.delivered, one.refused) == ([ids[0]], {ids[1]: spec5.NOT_AUTHORIZED})
        one.client.disconnect()


def test_a_connection_that_is_refused(mosquitto: Start) -> None:
    with mosquitto(settings={"allow_anonymous": "false"}) as broker:
        one = Peer(broker, "nobody")
        with pytest.raises(HeadwaterError) as refusal:
            one.client.connect()
        assert refusal.value.code == errors.E_REFUSED
        assert one.client.session.return_code == spec5.NOT_AUTHORIZED
        # A method that mosquitto does not know.
        one = Peer(broker, "nobody")
        one.client.session.v5.on_auth = lambda p: b"\x00"
        assert one.client.session.v5.connect_properties.add(spec5.AUTHENTICATION_METHOD, b"NONE") == 0
        with pytest.raises(HeadwaterError) as refusal:
            one.client.connect()
        assert refusal.value.code == errors.E_REFUSED
        assert one.client.session.return_code == spec5.BAD_AUTHENTICATION_METHOD


def test_a_server_that_shuts_down_says_so(mosquitto: Start) -> None:
    with mosquitto() as broker:
        one = Peer(broker, "left")
        one.client.connect()
        broker.stop()
        assert one.until_gone() in (errors.E_DISCONNECTED, errors.E_CLOSED)
        if one.client.status == errors.E_DISCONNECTED:
            assert one.client.session.return_code == spec5.SERVER_SHUTTING_DOWN
