# heap: 1M
"""FMQ's client over transports that take and give what they like, and close; a hub is behind them."""

from fmq_hub import Got, Hub
from fmq_kept import Dialer
from pipe import Line, receive

from headwater import errors
from headwater.errors import E_ARGUMENT, E_CLOSED, E_OFFLINE, E_QOS, E_REFUSED, E_TIMEOUT, HeadwaterError
from headwater.fmq import spec
from headwater.fmq.calls import Calls
from headwater.fmq.client import Client
from headwater.fmq.frames import tag_list
from headwater.fmq.manual_ack import acknowledge
from headwater.fmq.queues import consume, register, unregister
from headwater.fmq.session import ClientSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headwater.fmq.frames import Frame


class On:
    def __init__(self, **options: "Any"):
        self.hub = Hub()
        self.dialer = Dialer(self.hub)
        options.setdefault("clean_start", False)
        self.client = Client(self.dialer, b"c", **options)
        self.at = Got(self.client.session)

    def settle(self) -> None:
        for _ in range(40):
            assert self.client.poll() == 0
            self.dialer.serve()

    def line(self) -> Line:
        return self.dialer.lines[-1]


def online(**options: "Any") -> On:
    on = On(**options)
    on.client.connect()
    return on


def raised(call: "Any", *arguments: "Any") -> int:
    try:
        call(*arguments)
    except HeadwaterError as error:
        return error.code
    raise AssertionError("nothing was raised")


def test_connect_says_whether_the_session_was_kept() -> None:
    on = On()
    assert on.client.poll() == E_OFFLINE and not on.client.connected
    assert on.client.connect() is False
    assert on.client.connected and on.client.transport is on.line()
    assert on.client.connect() is True and on.client.session_present
    assert [line.closed for line in on.dialer.lines] == [1, 0]


def test_connecting_without_waiting() -> None:
    on = On()
    assert on.client.begin_connect() == 0 and not on.client.connected
    on.settle()
    assert on.client.connected


def test_connect_fails() -> None:
    on = On()
    on.hub.refuse = (spec.AUTH, 0x86, b"bad password")
    assert raised(on.client.connect) == E_REFUSED
    assert (on.client.session.return_code, on.client.session.reason()) == (0x86, b"bad password")
    on.hub.refuse = None
    on.dialer.deaf = True
    assert raised(on.client.connect) == E_TIMEOUT
    assert raised(Client(on.dialer, 7).connect) == E_ARGUMENT  # type: ignore[arg-type]
    assert raised(Client(on.dialer, b"x" * 600).connect) == errors.E_TOO_LARGE


def test_a_session_may_be_given() -> None:
    on = On()
    session = ClientSession(b"mine", user=b"me", password=b"secret")
    client = Client(on.dialer, session=session)
    client.connect()
    assert client.session is session and on.hub.auth[:3] == (b"mine", b"me", b"secret")


def test_messages_go_both_ways() -> None:
    for faults in ((0, 0, 0), (5, 3, 0), (2, 0, 6)):
        on = On()
        on.dialer.faults = faults
        on.client.connect()
        assert [on.client.publish(b"t", b"%d" % qos, qos, True) for qos in (0, 1, 2)] == [0, 1, 2]
        on.client.flush(10000)
        assert on.hub.stored == [(b"t", b"%d" % qos, qos, True) for qos in (0, 1, 2)]
        for qos in (0, 1, 2):
            on.hub.publish(b"t", b"%d" % qos, qos)
        on.settle()
        assert [m[1] for m in on.at.got] == [b"0", b"1", b"2"]
        assert on.at.delivered == [1, 2]


def test_publish_refuses() -> None:
    on = online()
    assert on.client.publish(b"t", b"", 3) == E_QOS
    assert on.client.publish(b"#", b"") == errors.E_TOPIC
    on.client.close()
    assert on.client.publish(b"t", b"x") == E_OFFLINE
    assert on.client.publish(b"t", b"x", 1) == 1


def test_a_full_transmit_buffer_is_sent_first() -> None:
    on = online(tx_size=100)
    for _ in range(20):
        assert on.client.publish(b"t", b"x" * 30) == 0
    on.settle()
    assert len(on.hub.stored) == 20


def test_a_lost_connection_is_told_and_messages_go_out_again() -> None:
    on = online()
    assert on.client.publish(b"t", b"kept", 2) == 1
    on.line().hung_up = True
    assert on.client.poll() == E_CLOSED
    assert on.client.status == E_CLOSED and not on.client.connected and on.line().closed == 1
    on.client.connect()
    on.client.flush(10000)
    on.line().write_error = OSError(104)
    assert on.client.publish(b"t", b"lost") == E_CLOSED
    assert [m[1] for m in on.hub.stored] == [b"kept"]


def test_a_program_that_has_enough_still_gets_its_answers() -> None:
    """With ``reading`` off messages wait in the transport, unless something is due behind them."""
    for ask in ("publish 1", "publish 2", "register", "subscribe", "call", "flush"):
        on = online()
        client = on.client
        number = client.subscribe(b"jobs", group=b"g")
        on.settle()
        # A consumer has no answer before it ends.
        assert consume(client.session, number) > 0
        on.settle()
        client.reading = False
        for n in range(20):
            on.hub.publish(b"t", bytes([n]) * 40, 0)
        on.settle()
        before = len(on.at.got)
        assert before == 0 and not client.session.awaits()
        if ask == "flush":
            assert client.publish(b"t", b"", 1) > 0
            client.flush(10000)
            assert len(on.hub.stored) == 1
        else:
            if ask[:-1] == "publish ":
                assert client.publish(b"t", b"", int(ask[-1])) > 0
            elif ask == "register":
                assert register(client.session, b"other") > 0
            elif ask == "subscribe":
                assert client.subscribe(b"other") > 0
            else:
                assert Calls(client).call(b"sum", b"1") > 0
                on.dialer.serve()
                on.hub.result(on.hub.calls[-1][0], b"1")
            assert client.session.awaits()
            on.settle()
        # What lay before the answer has come as well; and nothing more is received.
        assert not client.session.awaits() and len(on.at.got) >= 20
        got = len(on.at.got)
        on.hub.publish(b"t", b"later", 0)
        on.settle()
        assert len(on.at.got) == got
        client.reading = True
        on.settle()
        assert len(on.at.got) == got + 1


def test_requests() -> None:
    on = online()
    client = on.client
    topic = register(client.session, b"jobs", 2)
    number = client.subscribe(b"jobs", group=b"g")
    on.settle()
    assert on.at.answers == [(topic, 0, b""), (number, 0, b"")]
    (sid,) = on.hub.subscriptions
    client.session.auto_ack = False
    consumer = consume(client.session, number, 2, True)
    on.settle()
    on.hub.give(sid, None, b"job")
    on.settle()
    assert on.at.got == [(b"", b"job", "c", False, number)]
    assert acknowledge(client.session, on.at.receipts[0]) == 0
    assert client.unsubscribe(number) > 0 and unregister(client.session, b"jobs") > 0
    on.settle()
    assert (consumer, 0, b"") in on.at.answers and on.hub.quiet() and not on.hub.topics
    assert client.unsubscribe(number) == errors.E_UNKNOWN_ID


def test_calls_both_ways() -> None:
    on = online()
    client = on.client

    def serve(f: "Frame") -> None:
        assert Calls(client).reply(f, f.payload_bytes() * 2) == 0

    client.session.on_call = serve
    call = on.hub.call(b"double", b"ab")
    number = Calls(client).call(b"sum", b"1 2")
    on.settle()
    assert on.hub.replies == [(call, b"abab")]
    on.hub.result(on.hub.calls[-1][0], b"3")
    on.settle()
    assert on.at.results == [(number, b"3")]


def test_a_broken_session_has_a_last_word() -> None:
    on = online()
    ident = on.hub.ident()
    on.hub._out += b"\xe1" + ident + b"\x00"
    on.dialer.serve()
    assert on.client.poll() == errors.E_FLAGS
    hub: Any = on.hub
    receive(hub, on.line().up)
    assert on.hub.refused == [(ident, 0x81)]


def test_disconnect_says_goodbye() -> None:
    on = online()
    on.client.publish(b"t", b"last")
    on.client.disconnect()
    on.dialer.serve()
    assert on.hub.ended and on.line().closed == 1
    assert [m[1] for m in on.hub.stored] == [b"last"]
    assert on.client.poll() == E_OFFLINE
    on.client.connect()
    on.hub.ended = False
    on.client.close()
    on.dialer.serve()
    assert not on.hub.ended


def test_pings() -> None:
    on = On()
    assert on.client.ping() == E_OFFLINE
    on.client.connect()
    assert on.client.ping() == 0 and on.client.session.pinged
    on.settle()
    assert not on.client.session.pinged
    on.dialer.deaf = True
    assert on.client.wait(100000) == E_TIMEOUT


def test_handlers_are_the_session_s() -> None:
    on = On()
    client, session = on.client, on.client.session
    client.on_message = client.on_delivered = client.on_answer = None
    handlers: tuple[Any, ...] = (session.on_message, session.on_delivered, session.on_answer)
    assert handlers == (None, None, None)
    client.on_message = print
    assert session.on_message is client.on_message is print


def test_what_a_reset_means_for_what_was_received_at_qos_2() -> None:
    """Before the hub has PUBREC, it comes again, with DUP and its id; after that the reset does no harm."""
    for answered in (False, True):
        on = online()
        on.hub.publish(b"t", b"1", 2)
        on.dialer.serve()
        assert on.client.poll() == 0
        assert len(on.at.got) == 1
        if answered:
            # PUBREC arrives; what the hub says to it does not.
            receive(on.hub, on.line().up)  # type: ignore[arg-type]
        client = Client(on.dialer, b"c", clean_start=False)
        again: list[tuple[bytes, bool]] = []
        client.on_message = lambda f, again=again: again.append((f.payload_bytes(), f.dup()))
        assert client.connect() is True
        for _ in range(10):
            assert client.poll() == 0
            on.dialer.serve()
        assert again == ([] if answered else [(b"1", True)])
        assert on.hub.quiet()


def test_the_same_topic_again_and_again() -> None:
    """What is written over the frame before is as if it had been written anew, whatever came in between."""
    on = online(tx_size=5000, outbox_size=6000)
    client, session = on.client, on.client.session
    topic, other = b"a/topic", b"b"
    wanted: list[tuple[bytes, bytes, int, bool]] = []

    def publish(name: bytes, payload: "Any", qos: int = 0, retain: bool = False) -> None:
        assert client.publish(name, payload, qos, retain) >= 0
        wanted.append((name, bytes(payload), qos, retain))

    # The body's length has one byte, two, three: 10 bytes of it are no payload.
    for n in (0, 1, 5, 6, 7, 100, 3, 4085, 4086, 4900, 20, 0, 30):
        publish(topic, bytes([n & 255]) * n)
        publish(topic, bytearray(bytes([n & 255]) * n))
    for between in ("other", "retained", "tags", "qos 1", "reply", "wrong", "too large", "queued", "again"):
        publish(topic, b"before, twenty bytes")
        if between == "other":
            publish(other, b"of nearly the same..")
        elif between == "retained":
            publish(topic, b"retained, 20 bytes..", 0, True)
        elif between == "tags":
            assert client.publish(topic, b"with tags, 20 bytes.", 0, False, tag_list((b"eu",))) == 0
            wanted.append((topic, b"with tags, 20 bytes.", 0, False))
        elif between == "qos 1":
            publish(topic, b"at QoS 1, twenty ...", 1)
        elif between == "reply":
            on.hub.call(b"sum", b"")
            on.dialer.serve()
            session.on_call = lambda f: Calls(client).reply(f, b"a result of 20 bytes")
            assert client.poll() == 0
        elif between == "wrong":
            assert client.publish(topic, 7) == E_ARGUMENT  # type: ignore[arg-type]
            assert client.publish(topic, "text of twenty bytes") == E_ARGUMENT  # type: ignore[arg-type]
        elif between == "too large":
            assert client.publish(topic, bytes(4990)) == errors.E_TOO_LARGE
        elif between == "queued":
            # The frame before has not arrived: there is no room for more.
            on.line().up.room = 1
            for _ in range(3):
                publish(other, b"another one of 20 ..")
                publish(topic, b"queued, twenty bytes")
            assert session.tx_end > 100
            on.line().up.room = 0
        else:
            on.settle()
            client.close()
            assert client.publish(topic, b"while offline, twenty") == E_OFFLINE
            client.connect()
        publish(topic, b"behind, twenty bytes")
        publish(topic, b"and one more behind.")
        on.settle()
    assert on.hub.stored == wanted
    ids = [ident for kind, _, ident in on.hub.log if kind == spec.PUBLISH]
    assert len(set(ids)) == len(ids) == len(wanted) + 1
