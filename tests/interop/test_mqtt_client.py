"""The core's client against mosquitto, at every version of MQTT: QoS, sessions, wills, dying brokers, cuts anywhere."""

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from pipe import packets

from headwater import errors
from headwater.errors import HeadwaterError
from headwater.mqtt import spec5
from headwater.mqtt.client import Client
from headwater.mqtt.manual_ack import ManualAck
from headwater.mqtt.packets import Packet
from headwater.mqtt.session import ClientSession
from headwater.mqtt.v5 import ClientV5
from headwater.mqtt.v31 import V31
from headwater.streaming import stream_to
from headwater.types import Bytes
from tests.interop.dialer import SocketDialer
from tools.broker import Broker, Mosquitto

Start = Callable[..., Mosquitto]
Message = tuple[str, bytes, int, bool, bool]
WAIT_S = 200.0
VERSIONS: dict[str, Callable[[], object]] = {"3.1": V31, "3.1.1": lambda: None, "5.0": ClientV5}

pytestmark = pytest.mark.needs_mosquitto


@pytest.fixture(autouse=True, params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """The version that the clients of a test speak."""
    Peer.version = request.param
    return Peer.version


class Peer:
    """A client and what it has got."""

    version = ""

    def __init__(
        self, broker: Broker, name: str, cuts: list[tuple[int, int]] | None = None, **options: object
    ):
        self.dialer = SocketDialer(broker.port, cuts)
        options.setdefault("clean_start", True)
        session = ClientSession(name.encode(), version=VERSIONS[self.version](), **options)  # type: ignore[arg-type]
        self.client = Client(self.dialer, session=session)
        self.got: list[Message] = []
        self.answers: dict[int, int] = {}
        self.delivered: list[int] = []
        self.client.on_message = self._message
        self.client.on_delivered = self.delivered.append
        self.client.session.on_answer = self.answers.__setitem__

    def _message(self, m: Packet) -> None:
        self.got.append((m.topic_text(), m.payload_bytes(), m.qos(), m.retain(), m.dup()))

    def payloads(self) -> list[bytes]:
        return [m[1] for m in self.got]

    def numbers(self, qos: int) -> list[int]:
        """The first bytes of what came at a QoS; mosquitto keeps the order within a QoS, not between them."""
        return [m[1][0] for m in self.got if m[2] == qos]

    def until(self, done: Callable[[], bool], what: str = "what was waited for") -> None:
        """Poll until something is so."""
        deadline = time.monotonic() + WAIT_S
        while not done():
            assert self.client.wait(10) == 0, self.client.status
            assert time.monotonic() < deadline, f"{what} did not come about: {self.got}"

    def subscribe(self, topic_filter: bytes, qos: int) -> None:
        packet_id = self.client.subscribe(topic_filter, qos)
        assert packet_id > 0
        self.until(lambda: packet_id in self.answers, "SUBACK")
        assert self.answers[packet_id] == qos

    def knows(self, kept: bool) -> bool:
        """What ``connect`` says when the server had ``kept`` the session: at 3.1 it cannot tell."""
        return kept and self.version != "3.1"

    def settle(self, ms: int = 100) -> None:
        """Nothing more is expected: what came within a moment is all."""
        assert self.client.wait(ms) == 0


@pytest.fixture(scope="module")
def broker(mosquitto: Start) -> Mosquitto:
    return mosquitto()


@pytest.fixture
def peer(broker: Mosquitto) -> Iterator[Callable[..., Peer]]:
    made: list[Peer] = []

    def connected(name: str, **options: object) -> Peer:
        made.append(Peer(broker, name, **options))  # type: ignore[arg-type]
        made[-1].client.connect()
        return made[-1]

    yield connected
    for one in made:
        one.client.close()


@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_qos_both_ways(peer: Callable[..., Peer], qos: int, granted: int) -> None:
    listener, talker = peer("listener"), peer("talker")
    listener.subscribe(b"both/#", granted)
    payloads = [bytes([n]) * (n * 7) for n in range(40)]
    ids = []
    for n, payload in enumerate(payloads):
        status = talker.client.publish(b"both/%d" % (n % 3), payload, qos)
        while status in (errors.E_WINDOW, errors.E_AGAIN):
            assert talker.client.wait(5) == 0
            status = talker.client.publish(b"both/%d" % (n % 3), payload, qos)
        assert status >= 0
        ids.append(status)
    talker.client.flush(5000)
    listener.until(lambda: len(listener.got) >= 40)
    listener.settle()
    assert listener.got == [
        (f"both/{n % 3}", payload, min(qos, granted), False, False) for n, payload in enumerate(payloads)
    ]
    assert talker.delivered == ([] if qos == 0 else ids)


def test_retained(peer: Callable[..., Peer]) -> None:
    talker = peer("talker")
    for qos in (0, 1, 2):
        talker.client.publish(b"kept/%d" % qos, b"last word", qos, True)
    talker.client.flush(5000)
    late = peer("late")
    late.subscribe(b"kept/+", 2)
    late.until(lambda: len(late.got) == 3)
    assert sorted(late.got) == [(f"kept/{qos}", b"last word", qos, True, False) for qos in (0, 1, 2)]
    for qos in (0, 1, 2):
        talker.client.publish(b"kept/%d" % qos, b"", qos, True)
    talker.client.flush(5000)
    # Told as it happens, without RETAIN; and whoever comes later sees nothing.
    late.until(lambda: len(late.got) == 6)
    assert sorted(late.got[3:]) == [(f"kept/{qos}", b"", qos, False, False) for qos in (0, 1, 2)]
    later = peer("later")
    later.subscribe(b"kept/+", 2)
    later.settle()
    assert later.got == []


def test_unsubscribe(peer: Callable[..., Peer]) -> None:
    one = peer("one")
    one.subscribe(b"some/+", 1)
    packet_id = one.client.unsubscribe(b"some/+")
    one.until(lambda: packet_id in one.answers, "UNSUBACK")
    one.client.publish(b"some/thing", b"", 1)
    one.client.flush(5000)
    one.settle()
    assert one.got == []


@pytest.mark.parametrize("how", ["close", "disconnect"])
def test_will(peer: Callable[..., Peer], how: str) -> None:
    witness = peer("witness")
    witness.subscribe(b"wills/#", 2)
    mortal = with_will(peer)
    if how == "close":
        mortal.client.close()
        witness.until(lambda: bool(witness.got), "the will")
        assert witness.got == [("wills/mortal", b"\x00gone", 1, False, False)]
    else:
        mortal.client.disconnect()
        witness.settle(300)
        assert witness.got == []


def with_will(peer: Callable[..., Peer]) -> Peer:
    mortal = peer("mortal")
    mortal.client.close()
    assert mortal.client.session.set_will(b"wills/mortal", b"\x00gone", 1) == 0
    mortal.client.connect()
    return mortal


def test_a_session_is_kept_while_its_client_is_away(peer: Callable[..., Peer]) -> None:
    listener = peer("away", clean_start=False)
    assert listener.client.session_present is False
    listener.subscribe(b"away/#", 2)
    listener.client.disconnect()
    talker = peer("talker")
    for n in range(10):
        assert talker.client.publish(b"away/x", bytes([n]), 1 + n % 2) > 0
    talker.client.flush(5000)
    assert listener.client.connect() is listener.knows(True)
    listener.until(lambda: len(listener.got) == 10)
    listener.settle()
    assert (listener.numbers(1), listener.numbers(2)) == ([0, 2, 4, 6, 8], [1, 3, 5, 7, 9])
    listener.client.session.clean_start = True
    assert listener.client.connect() is False


def test_messages_published_while_offline(peer: Callable[..., Peer]) -> None:
    listener, talker = peer("listener"), peer("offline", clean_start=False)
    listener.subscribe(b"offline/#", 2)
    talker.client.close()
    for n in range(6):
        assert talker.client.publish(b"offline/x", bytes([n]), 1 + n % 2) > 0
    assert talker.client.publish(b"offline/x", b"", 0) == errors.E_OFFLINE
    talker.client.connect()
    talker.client.flush(5000)
    listener.until(lambda: len(listener.got) == 6)
    assert (listener.numbers(1), listener.numbers(2)) == ([0, 2, 4], [1, 3, 5])


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("up", [True, False])
def test_cut_at_every_byte_while_publishing(broker: Mosquitto, qos: int, up: bool) -> None:
    """Two messages; the connection breaks behind each byte of either direction; at QoS 2 nothing comes twice."""
    topic = b"cut/%d/%d" % (qos, up)
    listener = Peer(broker, f"listener-{qos}-{up}", slots=16)
    listener.client.connect()
    listener.subscribe(topic, 2)
    whole = cut_once(broker, topic, qos, 0, (-1, -1))
    total = len(whole.dialer.opened[0].sent if up else whole.dialer.opened[0].received)
    expected = [b"0a", b"0b"]
    for k in range(1, total):
        one = cut_once(broker, topic, qos, k, (k, -1) if up else (-1, k))
        assert len(one.dialer.opened) >= 2, "it was not cut"
        expected += [b"%da" % k, b"%db" % k]
        listener.until(lambda last=expected[-1]: last in listener.payloads())  # type: ignore[misc]
    listener.settle()
    if qos == 2:
        assert listener.payloads() == expected
    else:
        assert [p for n, p in enumerate(listener.payloads()) if p not in listener.payloads()[:n]] == expected
    listener.client.close()


def cut_once(broker: Mosquitto, topic: bytes, qos: int, number: int, cut: tuple[int, int]) -> Peer:
    """A new client, its first connection cut; what it was given goes out, over as many connections as it takes."""
    one = Peer(broker, f"cut-{qos}-{number}-{cut[0] >= 0}", [cut], clean_start=False, keep_alive=0)
    for payload in (b"%da" % number, b"%db" % number):
        assert one.client.publish(topic, payload, qos) > 0
    for _ in range(5):
        try:
            one.client.connect()
            one.client.flush(5000)
            break
        except HeadwaterError as error:
            assert error.code == errors.E_CLOSED  # noqa: PT017
    assert sorted(one.delivered) == [1, 2]
    # DUP on all that goes out again, and on nothing that goes out over the first connection.
    seen: set[bytes] = set()
    for transport in one.dialer.opened:
        sent = transport.sent
        whole = [
            (head, bytes(sent[at + 2 : end]))
            for head, at, end in packets(sent)
            if head >> 4 == 3 and end - at > 1 and end - at == 2 + sent[at + 1]
        ]
        for head, body in whole:
            assert head & 8 if body in seen else transport is not one.dialer.opened[0] or not head & 8
        seen.update(body for _, body in whole)
    one.client.session.clean_start = True
    one.client.connect()
    one.client.disconnect()
    return one


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("up", [True, False])
def test_cut_at_every_byte_while_receiving(broker: Mosquitto, qos: int, up: bool) -> None:
    topic = b"down/%d/%d" % (qos, up)
    talker = Peer(broker, f"talker-{qos}-{up}")
    talker.client.connect()

    def receive(number: int, cut: tuple[int, int]) -> Peer:
        one = Peer(broker, f"down-{qos}-{number}-{up}", [(-1, -1), cut], clean_start=False, keep_alive=0)
        one.client.connect()
        one.subscribe(topic, qos)
        one.client.disconnect()
        for payload in (b"%da" % number, b"%db" % number):
            talker.client.publish(topic, payload, qos)
        talker.client.flush(5000)
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                if not one.client.connected:
                    assert one.client.connect() is one.knows(True)
                one.client.wait(15 if one.dialer.cuts == [] and len(set(one.payloads())) == 2 else 5)
            except HeadwaterError as error:
                assert error.code == errors.E_CLOSED  # noqa: PT017
            if len(set(one.payloads())) == 2 and one.client.connected and one.client.wait(15) == 0:
                break
            assert time.monotonic() < deadline, (number, cut, one.got)
        first = [p for n, p in enumerate(one.payloads()) if p not in one.payloads()[:n]]
        assert first == [b"%da" % number, b"%db" % number], (number, cut)
        if qos == 2:
            assert len(one.got) == 2, (number, cut, one.got)
        one.client.session.clean_start = True
        one.client.connect()
        one.client.disconnect()
        return one

    whole = receive(0, (-1, -1)).dialer.opened[1]
    for k in range(1, len(whole.sent if up else whole.received)):
        receive(k, (k, -1) if up else (-1, k))
    talker.client.close()


def test_redelivery_by_the_broker_until_it_is_acknowledged(peer: Callable[..., Peer]) -> None:
    listener, talker = peer("slow", clean_start=False), peer("talker")
    ManualAck(listener.client.session)
    listener.subscribe(b"slow/#", 2)
    for qos in (1, 2):
        talker.client.publish(b"slow/x", b"%d" % qos, qos)
    talker.client.flush(5000)
    listener.until(lambda: len(listener.got) == 2)
    assert listener.client.connect() is listener.knows(True)
    # QoS 1 comes again, with DUP; QoS 2 is known, and not delivered again.
    listener.until(lambda: len(listener.got) == 3)
    listener.settle()
    assert listener.got[2] == ("slow/x", b"1", 1, False, True)
    session = listener.client.session
    assert session.duplicates == 1
    listener.client.session.acks.automatic = True
    assert session.acks.acknowledge(session.open_ids[0], 2, session.acks._epochs[0]) == 0
    listener.settle()
    assert listener.client.connect() is listener.knows(True)
    listener.until(lambda: len(listener.got) == 4)
    listener.settle()
    assert listener.client.connect() is listener.knows(True)
    listener.settle()
    assert len(listener.got) == 4
    assert not any(session.open_ids)


# -- brokers that die --------------------------------------------------------------------------------------------------


def reconnect(one: Peer) -> bool:
    """Connect, as soon as the broker is there again; whether the session was."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return one.client.connect()
        except (OSError, HeadwaterError):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def until_gone(one: Peer) -> None:
    deadline = time.monotonic() + WAIT_S
    while one.client.wait(10) == 0:
        assert time.monotonic() < deadline
    # At 5.0 a server in good order says why.
    assert one.client.status in (errors.E_CLOSED, errors.E_DISCONNECTED)


def test_a_broker_that_restarts_in_good_order(mosquitto: Start) -> None:
    """Twenty messages around a restart: at QoS 2 each once, at QoS 1 each at least once."""
    with mosquitto(persistence=True) as broker:
        listener = Peer(broker, "listener", clean_start=False)
        talker = Peer(broker, "talker", clean_start=False, slots=32, outbox_size=4096)
        for one in (listener, talker):
            one.client.connect()
        listener.subscribe(b"restart/#", 2)
        for n in range(10):
            assert talker.client.publish(b"restart/x", bytes([n]), 1 + n % 2) > 0
        broker.restart()
        for one in (listener, talker):
            until_gone(one)
        for n in range(10, 20):
            assert talker.client.publish(b"restart/x", bytes([n]), 1 + n % 2) > 0
        assert reconnect(listener) is listener.knows(True)
        assert reconnect(talker) is talker.knows(True)
        talker.client.flush(5000)
        listener.until(lambda: len(set(listener.payloads())) == 20)
        listener.settle()
        assert listener.numbers(2) == list(range(1, 20, 2))
        assert sorted(set(listener.numbers(1))) == list(range(0, 20, 2))
        for one in (listener, talker):
            one.client.disconnect()


def test_a_broker_that_is_killed(mosquitto: Start) -> None:
    """It stands still when the messages come, and dies: they were sent, not answered, and go out again with DUP."""
    with mosquitto(persistence=True) as broker:
        listener = Peer(broker, "listener", clean_start=False)
        talker = Peer(broker, "talker", clean_start=False)
        for one in (listener, talker):
            one.client.connect()
        listener.subscribe(b"killed/#", 2)
        database = broker.directory / "mosquitto.db"
        deadline = time.monotonic() + WAIT_S
        # Its sessions are on disk from here on.
        while not database.exists() or b"killed/#" not in database.read_bytes():
            assert time.monotonic() < deadline
            listener.client.wait(20)
        # At 3.1 the ids of a forgotten life are released before the first message at QoS 2, by a broker that answers.
        assert talker.client.publish(b"before", b"", 2) > 0
        talker.client.flush(5000)
        os.kill(broker.pid, signal.SIGSTOP)
        for n in range(8):
            assert talker.client.publish(b"killed/x", bytes([n]), 1 + n % 2) > 0
        assert talker.client.wait(50) == 0
        first = talker.dialer.opened[-1]
        assert sum(head >> 4 == 3 for head, _, _ in packets(first.sent)) == 1 + 8
        broker.kill()
        broker.start()
        for one in (listener, talker):
            until_gone(one)
        assert reconnect(listener) is listener.knows(True)
        # Whether the broker had it on disk is its affair: to a new session they are new messages. 3.1 cannot tell.
        kept = reconnect(talker) or talker.version == "3.1"
        talker.client.flush(5000)
        again = [head for head, _, _ in packets(talker.dialer.opened[-1].sent) if head >> 4 == 3]
        assert again == ([0x3A, 0x3C] if kept else [0x32, 0x34]) * 4
        listener.until(lambda: len(set(listener.payloads())) == 8)
        listener.settle()
        assert (listener.numbers(1), listener.numbers(2)) == ([0, 2, 4, 6], [1, 3, 5, 7])
        assert len(talker.delivered) == 1 + 8
        for one in (listener, talker):
            one.client.disconnect()


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_a_connection_that_is_refused(mosquitto: Start) -> None:
    with mosquitto(settings={"allow_anonymous": "false"}) as broker:
        one = Peer(broker, "nobody")
        with pytest.raises(HeadwaterError) as refusal:
            one.client.connect()
        assert refusal.value.code == errors.E_REFUSED
        assert one.client.session.return_code == (spec5.NOT_AUTHORIZED if one.version == "5.0" else 5)


def test_the_same_client_id_twice(peer: Callable[..., Peer]) -> None:
    first = peer("twin")
    second = peer("twin")
    until_gone(first)
    second.settle()


def test_keep_alive(peer: Callable[..., Peer]) -> None:
    """Silence for longer than the server allows for a keep-alive of one second: pings keep the connection."""
    one = peer("quiet", keep_alive=1)
    begin, pings = time.monotonic(), 0
    while pings < 3 or time.monotonic() - begin < 2.5:
        assert one.client.wait(50) == 0
        pings = sum(head == 0xC0 for head, _, _ in packets(one.dialer.opened[-1].sent))


class Gather:
    """A sink that puts messages together."""

    def __init__(self) -> None:
        self.whole: list[bytes] = []
        self._payload = bytearray()

    def open(self, m: Packet, size: int) -> bool:
        self._payload.clear()
        return True

    def write(self, buf: Bytes, at: int, n: int) -> None:
        self._payload += buf[at : at + n]

    def close(self, complete: bool) -> None:
        if complete:
            self.whole.append(bytes(self._payload))


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_larger_than_the_buffers(peer: Callable[..., Peer], qos: int) -> None:
    payload = os.urandom(100_000)
    listener, skipping = peer("listener"), peer("skipping")
    talker = peer("talker", outbox_size=200_000, tx_size=200_000)
    sink = Gather()
    stream_to(listener.client.session, sink)
    for one in (listener, skipping):
        one.subscribe(b"large/#", 2)
    assert talker.client.publish(b"large/x", payload, qos) >= 0
    assert talker.client.publish(b"large/x", b"small", qos) >= 0
    talker.client.flush(5000)
    for one in (listener, skipping):
        one.until(lambda one=one: bool(one.got))  # type: ignore[misc]
        assert one.got == [("large/x", b"small", qos, False, False)]
        one.settle()
    assert sink.whole == [payload]
    assert skipping.client.session.skipped == 1
