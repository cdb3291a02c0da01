# heap: 1M
"""FMQ's session at the client's end, against a scripted hub: what it says, what it takes, what it refuses."""

from fmq_hub import PROCESS, TIME, Hub, Pair, small
from pipe import receive, send

from headwater import errors
from headwater.errors import (
    E_AGAIN,
    E_ARGUMENT,
    E_DISCONNECTED,
    E_FILTER,
    E_OFFLINE,
    E_QOS,
    E_REFUSED,
    E_RX_TOO_LARGE,
    E_RX_WINDOW,
    E_TIMEOUT,
    E_TOO_LARGE,
    E_TOPIC,
    E_UNEXPECTED,
    E_UNKNOWN_ID,
    E_WINDOW,
)
from headwater.fmq import spec
from headwater.fmq.encode import tag_list
from headwater.fmq.session import ClientSession
from headwater.mqtt.transitions import CLOSING, ERROR, IDLE, ONLINE
from headwater.store import RamOutbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headwater.fmq.decode import Frame
    from headwater.types import Bytes


def pair(**options: "Any") -> Pair:
    p = Pair(small(**options))
    p.connect()
    return p


def only(hub: Hub) -> int:
    """The only subscription's id."""
    (found,) = hub.subscriptions
    return found


def consumed(**options: "Any") -> "tuple[Pair, int, int]":
    """A subscription with a group, granted: the pair, its number, and the hub's id of it."""
    p = pair(**options)
    number = p.client.subscribe(b"jobs", group=b"g")
    assert number > 0 and p.run() == 0
    assert p.at.answers == [(number, 0, b"")]
    return p, number, only(p.hub)


# -- AUTH --------------------------------------------------------------------------------------------------------------


def test_auth_says_who_we_are_and_what_our_will_is() -> None:
    client = ClientSession(b"c", 30, False, b"user", b"secret")
    assert client.set_will(b"gone", b"away", 1, True) == 0
    p = Pair(client)
    p.connect()
    assert p.hub.auth == (b"c", b"user", b"secret", 30, False, b"gone", 1, True)
    assert client.set_will(None) == 0
    p.lose()
    p.connect()
    assert len(p.hub.auth) == 5


def test_who_is_nobody_says_nothing() -> None:
    p = Pair(ClientSession(keep_alive=0))
    p.connect()
    assert p.hub.auth == ()


def test_a_will_is_checked() -> None:
    client = ClientSession()
    assert client.set_will(b"a/#") == E_TOPIC
    assert client.set_will(b"a", b"", 3) == E_QOS
    assert client.set_will("text") == E_ARGUMENT  # type: ignore[arg-type]
    client.set_will(b"a", b"x" * 600)
    assert client.connect(0) == E_TOO_LARGE
    assert client.state == IDLE


def test_the_hub_gives_process_number_and_time() -> None:
    p = pair()
    assert p.client.process == bytes([PROCESS])
    assert p.client.publish(b"t", b"x", 1) == 1
    p.run()
    (ident,) = p.hub.ids
    # PUBLISH and one byte of process number; thread 0; the hub's time.
    assert ident[:3] == b"\x31\x05\x00" and ident[3] == 0xB0
    assert int.from_bytes(ident[4:], "little") > 1795000000000000000


def test_a_session_is_present_when_the_hub_has_kept_it() -> None:
    p = pair()
    assert p.at.online == [False] and not p.client.session_present
    p.lose()
    p.connect()
    assert p.at.online == [False, True] and p.client.session_present


def test_a_refused_auth_says_why() -> None:
    p = Pair(small())
    p.hub.refuse = (spec.AUTH, 0x9D, b"10.0.0.7:7443")
    p.open()
    assert p.run() == E_REFUSED
    assert (p.client.return_code, p.client.reason(), p.client.state) == (0x9D, b"10.0.0.7:7443", ERROR)
    assert p.client.poll(1) == p.client.feed(0) == E_REFUSED
    p.hub.refuse = None
    p.lose()
    p.connect()
    assert p.client.return_code == 0


def answered_auth(*values: "Any", **options: "Any") -> Pair:
    """The hub answers AUTH with this."""
    p = Pair(small(**options))
    p.open()
    p.step_up()
    p.hub._out = bytearray()
    p.hub.say(spec.ACK << 4, p.hub.log[-1][2], *values)
    return p


def test_an_answer_to_auth_has_four_values() -> None:
    assert answered_auth(0, 300, False, TIME).run() == 0
    assert answered_auth().run() == errors.E_FIELD
    # A session that was not to be kept.
    client = answered_auth(0, 1, True, TIME)
    client.client.clean = True
    assert client.run() == errors.E_CODE
    # A process number that leaves no room for a time.
    assert answered_auth(0, b"\x68\x01\x09" + b"\x01" * 9, False, TIME).run() == spec.E_FORM
    p = answered_auth(0, 0, False, TIME)
    assert p.run() == 0 and p.client.process == b""
    assert p.client.publish(b"t", b"x", 1) == E_OFFLINE


def test_nothing_but_the_answer_to_auth_may_come_first() -> None:
    p = Pair(small())
    p.open()
    p.hub.say(spec.PUBLISH << 4, p.hub.ident(), b"t", (), b"x")
    assert p.run() == E_UNEXPECTED
    assert p.at.got == []
    p = Pair(small())
    p.open()
    p.hub.say(spec.ACK << 4, p.hub.ident(spec.PINGREQ))
    assert p.run() == E_UNEXPECTED


def test_the_hub_may_end_the_connection() -> None:
    p = pair()
    p.hub.say(spec.ACK << 4, p.hub.log[0][2], 0x8B, b"going down")
    assert p.run() == E_DISCONNECTED
    assert (p.client.return_code, p.client.reason()) == (0x8B, b"going down")


def test_disconnect_answers_auth() -> None:
    p = pair()
    assert p.client.disconnect() == 0 and p.client.disconnect() == 0
    assert p.client.state == CLOSING
    p.hub.publish(b"t", b"late")
    p.run()
    assert p.hub.ended and p.at.got == []
    p.client.lost()
    assert p.client.state == IDLE


# -- publishing --------------------------------------------------------------------------------------------------------


def test_messages_at_every_qos() -> None:
    p = pair()
    assert [p.client.publish(b"a/b", b"%d" % qos, qos, qos == 1) for qos in (0, 1, 2)] == [0, 1, 2]
    assert p.run() == 0
    assert p.hub.stored == [(b"a/b", b"%d" % qos, qos, qos == 1) for qos in (0, 1, 2)]
    assert p.at.delivered == [1, 2]
    p.quiet()


def test_tags_go_along() -> None:
    p = pair()
    seen = []
    take = p.hub._publish

    def look(f: "Frame", ident: bytes) -> None:
        seen.append(bytes(f.buf[f.tags_at : f.payload_at]))
        take(f, ident)

    p.hub._publish = look  # type: ignore[method-assign]
    tags = tag_list((b"urgent", b"eu"))
    assert p.client.publish(b"t", b"x", 1, tags=tags) == 1
    assert p.client.publish(b"t", b"x", 0, tags=tags) == 0
    p.run()
    assert seen == [tags, tags]


def test_publish_refuses() -> None:
    p = pair()
    client = p.client
    for topic in (b"", b"a/+", b"#", b"\xff", b"a\0"):
        assert client.publish(topic, b"") == E_TOPIC
    assert client.publish(b"t", b"", 3) == E_QOS
    assert client.publish("t", b"", 0) == E_ARGUMENT  # type: ignore[arg-type]
    assert client.publish(b"t", 5, 1) == E_ARGUMENT  # type: ignore[arg-type]
    assert client.publish(b"t", b"x" * 200) == E_TOO_LARGE
    assert client.publish(b"t", b"x" * 600, 1) == E_TOO_LARGE
    n = 0
    while client.publish(b"t", b"x" * 20) == 0:
        n += 1
    assert n == 3 and client.publish(b"t", b"x" * 20) == E_AGAIN
    while client.publish(b"t", b"x", 1) > 0:
        n += 1
    assert n == 9 and client.publish(b"t", b"x", 2) == E_WINDOW
    assert p.run() == 0
    assert len(p.hub.stored) == 9
    p.lose()
    assert client.publish(b"t", b"x") == E_OFFLINE
    assert client.publish(b"t", b"x", 1) > 0


def test_before_there_is_a_process_number_nothing_can_be_kept() -> None:
    client = small()
    assert client.publish(b"t", b"x", 1) == E_OFFLINE
    known = small(process=bytes([PROCESS]), boot=3)
    assert known.publish(b"t", b"first", 1) == 1
    p = Pair(known)
    p.connect()
    assert known.publish(b"t", b"second", 1) == 2
    p.run()
    assert [one[1] for one in p.hub.stored] == [b"first", b"second"]
    p.quiet()


def test_no_more_are_under_way_than_the_window() -> None:
    p = pair(window=2)
    for _ in range(5):
        assert p.client.publish(b"t", b"x", 1) > 0
    p.step_up()
    assert p.client.in_flight == 2 and len(p.hub.stored) == 2
    p.run()
    assert len(p.hub.stored) == 5


def test_answers_in_another_order_find_their_messages() -> None:
    p = pair()
    for qos in (1, 2, 1):
        p.client.publish(b"t", b"x", qos)
    p.step_up()
    p.hub._out = bytearray()
    a, b, c = p.hub.ids
    p.hub.say(spec.ACK << 4, c)
    p.hub.say(spec.PUBREC << 4, b)
    p.hub.say(spec.ACK << 4, a)
    p.run()
    assert p.at.delivered == [3, 1, 2]
    p.quiet()


def test_an_answer_to_what_was_not_sent_is_none() -> None:
    p = pair(window=1)
    p.client.publish(b"t", b"one", 1)
    p.client.publish(b"t", b"two", 1)
    box = p.client.outbox
    p.hub.say(spec.ACK << 4, bytes(box.buf[box.at[1] + 1 : box.at[1] + 13]))
    p.step_down()
    assert p.client.strays == 1 and p.at.delivered == []
    p.run()
    assert p.at.delivered == [1, 2]
    p.quiet()


def test_what_has_left_in_part_is_a_repetition() -> None:
    p = pair()
    p.client.publish(b"t", b"x", 1)
    assert p.client.out() > 5
    p.client.sent(5)
    p.lose()
    p.connect()
    assert [head for kind, head, _ in p.hub.log if kind == spec.PUBLISH] == [0x3A]
    p.quiet()


def test_answers_to_nothing_are_counted() -> None:
    p = pair()
    ident = p.hub.ident()
    for kind in (spec.ACK, spec.PUBREC, spec.PUBCOMP, spec.PUBREL):
        p.hub.say(kind << 4, ident)
    p.hub.say(spec.ACK << 4, p.hub.ident(spec.SUBSCRIBE), 0, 7)
    assert p.run() == 0
    # The sixth is the answer to what is answered here.
    assert p.client.strays == 6
    # So that the hub can forget its ids.
    assert [kind for kind, _, _ in p.hub.log[1:]] == [spec.PUBREL, spec.PUBCOMP]


def test_an_answer_of_the_wrong_kind_ends_the_connection() -> None:
    for qos, kind in ((1, spec.PUBREC), (1, spec.PUBCOMP), (2, spec.ACK), (2, spec.PUBCOMP)):
        p = pair()
        p.client.publish(b"t", b"x", qos)
        p.step_up()
        p.hub._out = bytearray()
        p.hub.say(kind << 4, p.hub.ids[0])
        assert p.run() == errors.E_ACK_KIND
        assert p.hub.refused == [(p.hub.ids[0], 0x82)]
        assert p.client.outbox.count == 1


def test_a_message_that_the_hub_refuses_is_over() -> None:
    p = pair()
    p.hub.refuse = (spec.PUBLISH, 0x87, b"no")
    for qos in (1, 2, 0):
        p.client.publish(b"t", b"x", qos)
    p.run()
    assert sorted(p.at.refused) == [(0, 0x87, b"no"), (1, 0x87, b"no"), (2, 0x87, b"no")]
    assert p.at.delivered == []
    p.quiet()


def test_the_same_bytes_go_out_again_with_dup() -> None:
    p = pair()
    p.client.publish(b"t", b"one", 1)
    p.client.publish(b"t", b"two", 2)
    p.step_up()
    up = bytes(p.link().up.log)
    first = up[up.index(p.hub.ids[0]) - 1 :]
    p.lose()
    p.connect()
    again = bytes(p.link().up.log)
    again = again[again.index(p.hub.ids[0]) - 1 :]
    # But for DUP, in the first byte of each.
    n = len(first) // 2
    assert first[0] | 8 == again[0] and first[1:n] == again[1:n]
    assert first[n] | 8 == again[n] and first[n + 1 :] == again[n + 1 : 2 * n]
    assert p.hub.duplicates == 2 and len(p.hub.stored) == 2
    p.quiet()


def test_pubrel_goes_out_again_and_publish_does_not() -> None:
    p = pair()
    p.client.publish(b"t", b"x", 2)
    p.step_up()
    p.step_down()
    p.lose()
    p.hub.log = []
    p.connect()
    assert [kind for kind, _, _ in p.hub.log] == [spec.AUTH, spec.PUBREL]
    assert p.hub.duplicates == 0
    p.quiet()


def test_what_a_store_has_kept_goes_out_again() -> None:
    """Restored as a message is, with DUP on its first byte: also when it had become a PUBREL by then."""
    box = RamOutbox(512, 6)
    p = Pair(small(outbox=box))
    p.connect()
    p.client.publish(b"t", b"one", 2)
    p.client.publish(b"t", b"two", 2)
    p.step_up()
    p.hub._out = p.hub._out[: len(p.hub._out) // 2]
    p.step_down()
    for i in range(2):
        box.buf[box.at[i]] |= 8
    hub = p.hub
    again = Pair(small(outbox=box))
    again.hub = hub
    hub.lost()
    hub.log = []
    again.connect()
    assert [kind for kind, _, _ in hub.log] == [spec.AUTH, spec.PUBREL, spec.PUBLISH, spec.PUBREL]
    assert [one[1] for one in hub.stored] == [b"one", b"two"]
    assert again.at.delivered == [1, 2]
    again.quiet()


# -- receiving ---------------------------------------------------------------------------------------------------------


def test_pushed_messages_at_every_qos() -> None:
    p = pair()
    for qos in (0, 1, 2):
        p.hub.publish(b"a/b", b"%d" % qos, qos, True)
    p.run()
    assert p.at.got == [(b"a/b", b"%d" % qos, qos, True, 0) for qos in (0, 1, 2)]
    assert len(p.hub.delivered) == 2
    p.quiet()


def test_a_message_at_qos_2_comes_once() -> None:
    p = pair()
    p.hub.publish(b"t", b"x", 2)
    # The answer is lost with the connection.
    p.step_down()
    p.lose()
    p.connect()
    assert p.at.payloads(2) == [b"x"]
    assert p.client.duplicates == 1
    p.quiet()


def test_more_at_qos_2_than_there_is_room_for() -> None:
    p = pair()
    for n in range(5):
        p.hub.say(0x34, p.hub.ident(), b"t", (), b"%d" % n)
    assert p.run() == E_RX_WINDOW
    assert p.at.payloads(2) == [b"0", b"1", b"2", b"3"]
    # Those that were taken are answered first, so that the next connection brings others.
    assert [kind for kind, _, _ in p.hub.log[1:]] == [spec.PUBREC] * 4 + [spec.ACK]


def test_the_application_acknowledges() -> None:
    p = pair()
    p.client.auto_ack = False
    for qos in (0, 1, 2):
        p.hub.publish(b"t", b"%d" % qos, qos)
    p.run()
    none, one, two = p.at.receipts
    assert none == 0 and len(p.hub.delivered) == 0
    while p.client.publish(b"t", b"") == 0:
        pass
    assert p.client.acknowledge(one) == E_AGAIN
    p.run()
    assert p.client.acknowledge(two) == p.client.acknowledge(one) == 0
    assert p.client.acknowledge(one) == p.client.acknowledge(two) == E_UNKNOWN_ID
    assert p.client.acknowledge(0) == p.client.acknowledge(-7) == p.client.acknowledge(99) == E_UNKNOWN_ID
    p.run()
    assert len(p.hub.delivered) == 2
    p.quiet()


def test_a_receipt_of_an_earlier_connection() -> None:
    p = pair()
    p.client.auto_ack = False
    p.hub.publish(b"t", b"one", 1)
    p.hub.publish(b"t", b"two", 2)
    p.run()
    one, two = p.at.receipts
    p.lose()
    assert p.client.acknowledge(one) == E_UNKNOWN_ID
    p.connect()
    # At QoS 1 it has come again; at QoS 2 it is one message.
    assert [m[1] for m in p.at.got] == [b"one", b"two", b"one"]
    assert p.client.acknowledge(one) == E_UNKNOWN_ID
    assert p.client.acknowledge(two) == 0
    assert p.client.acknowledge(p.at.receipts[2]) == 0
    p.run()
    assert len(p.hub.delivered) == 2
    p.quiet()


def test_acknowledged_while_there_is_no_connection() -> None:
    p = pair()
    p.client.auto_ack = False
    p.hub.publish(b"t", b"x", 2)
    p.run()
    p.lose()
    assert p.client.acknowledge(p.at.receipts[0]) == 0
    p.connect()
    assert p.at.payloads(2) == [b"x"] and p.client.duplicates == 1
    p.quiet()


def test_acknowledged_before_its_repetition_comes() -> None:
    p = pair()
    p.client.auto_ack = False
    p.hub.publish(b"t", b"x", 2)
    p.run()
    p.lose()
    waiting, p.hub.pending = p.hub.pending, []
    p.connect()
    assert p.client.acknowledge(p.at.receipts[0]) == 0
    # Nothing is to be said of what this connection has not brought.
    assert p.client.out() == 0
    p.hub.pending = waiting
    p.hub._send(waiting[0])
    p.run()
    assert p.at.payloads(2) == [b"x"] and p.client.duplicates == 1
    p.quiet()


def test_what_raises_has_not_come() -> None:
    p = pair()
    good = p.client.on_message

    def bad(f: "Frame") -> None:
        raise ValueError

    for qos in (1, 2):
        p.client.on_message = bad
        p.hub.publish(b"t", b"%d" % qos, qos)
        p.hub.publish(b"t", b"behind")
        try:
            p.run()
            raise AssertionError("it was caught")
        except ValueError:
            pass
        p.client.on_message = good
        assert p.client.feed(0) == 0
        assert p.run() == 0
        assert p.at.payloads(0)[-1] == b"behind" and p.at.payloads(qos) == []
        p.lose()
        p.connect()
        assert p.at.payloads(qos) == [b"%d" % qos]
    p.quiet()


def test_a_handler_may_end_the_connection_and_begin_another() -> None:
    p = pair()

    def again(f: "Frame") -> None:
        p.at.message(f)
        p.client.on_message = p.at.message
        p.lose()
        p.open()

    for qos in (0, 1, 2):
        p.client.on_message = again
        p.hub.publish(b"t", b"%d" % qos, qos)
        p.hub.publish(b"t", b"lost")
        assert p.run() == 0
    assert [m[1] for m in p.at.got] == [b"0", b"1", b"1", b"2"]
    p.quiet()


def test_handlers_may_fill_the_transmit_buffer() -> None:
    p = pair()

    def fill(f: "Frame") -> None:
        p.at.message(f)
        while p.client.publish(b"t", b"x" * 10) == 0:
            pass

    p.client.on_message = fill
    for n in range(6):
        p.hub.publish(b"t", b"%d" % n, n % 3)
    assert p.run() == 0
    assert len(p.at.got) == 6
    p.quiet()


def test_a_ping_of_the_hub_is_answered() -> None:
    p = pair()
    p.hub.say(spec.PINGREQ << 4, p.hub.ident(spec.PINGREQ))
    p.run()
    assert p.hub.log[-1][0] == spec.ACK


# -- requests ----------------------------------------------------------------------------------------------------------


def test_topics_are_registered_and_unregistered() -> None:
    p = pair()
    numbers = [p.client.register(b"one"), p.client.register(b"two", 8), p.client.unregister(b"one")]
    numbers.append(p.client.unregister(b"none"))
    p.run()
    assert p.hub.topics == {b"two": 8}
    assert p.at.answers == [(n, 0, b"") for n in numbers[:3]] + [(numbers[3], 0x8F, b"no such topic")]
    p.quiet()


def test_a_subscription_says_what_is_wanted() -> None:
    p = pair()
    client = p.client
    numbers = [
        client.subscribe(b"a/+/#"),
        client.subscribe(b"b", (b"x", b"y")),
        client.subscribe(b"c", condition=b"t > 5"),
        client.subscribe(b"d", group=b"g"),
    ]
    p.run()
    assert sorted(p.hub.subscriptions.values()) == [
        (b"a/+/#",),
        (b"b", (b"x", b"y")),
        (b"c", (), b"t > 5"),
        (b"d", (), b"", b"g"),
    ]
    assert p.at.answers == [(n, 0, b"") for n in numbers]
    again = client.subscribe(b"a/+/#")
    p.run()
    assert len(p.hub.subscriptions) == 4 and again != numbers[0]
    # It is one subscription, under its newer number.
    assert client.unsubscribe(numbers[0]) == E_UNKNOWN_ID
    ended = client.unsubscribe(again)
    p.run()
    assert len(p.hub.subscriptions) == 3
    assert p.at.answers[-1] == (ended, 0, b"")
    assert client.unsubscribe(again) == client.consume(again) == E_UNKNOWN_ID
    p.quiet()


def test_requests_are_checked() -> None:
    p = pair()
    client = p.client
    for topic in (b"", b"a/b#", b"#/a", b"a+", b"+a", b"\xff"):
        assert client.subscribe(topic) == E_FILTER
    for topic in (b"", b"+"):
        assert client.register(topic) == client.unregister(topic) == client.call(topic) == E_TOPIC
    assert client.subscribe("text") == client.register(7) == E_ARGUMENT  # type: ignore[arg-type]
    assert client.subscribe(b"t", 7) == client.subscribe(b"t", (7,)) == E_ARGUMENT  # type: ignore[arg-type]
    assert client.subscribe(b"t", (), None) == client.subscribe(b"t", (), b"", "g") == E_ARGUMENT  # type: ignore[arg-type]
    assert client.consume_once(b"t", (), b"", 7) == client.call(b"t", 7) == E_ARGUMENT  # type: ignore[arg-type]
    assert client.register(b"t", -1) == client.register(b"t", 0) == client.register(b"t", b"1") == E_ARGUMENT  # type: ignore[arg-type]
    assert client.subscribe(b"t" * 200) == E_TOO_LARGE
    assert client.consume(1) == client.unsubscribe(0) == E_UNKNOWN_ID
    assert client.out() == 0
    p.lose()
    assert client.subscribe(b"t") == client.register(b"t") == client.call(b"t") == E_OFFLINE
    assert client.reply(b"\xa0\x00\xb1\x00", b"") == E_OFFLINE


def test_no_more_requests_than_there_are_places() -> None:
    p = pair(requests=3)
    # AUTH has one.
    assert p.client.register(b"a") > 0 and p.client.register(b"b") > 0
    assert p.client.register(b"c") == E_AGAIN
    p.run()
    assert p.client.register(b"c") > 0


def test_a_refused_request_says_why() -> None:
    p = pair()
    p.hub.refuse = (spec.SUBSCRIBE, 0x8F, b"column 3")
    number = p.client.subscribe(b"t", condition=b"t >")
    p.run()
    assert p.at.answers == [(number, 0x8F, b"column 3")]
    assert p.client.consume(number) == E_UNKNOWN_ID


def test_requests_end_with_their_connection_and_subscriptions_do_not() -> None:
    p, number, sid = consumed()
    assert p.client.consume(number, 2, True) > 0
    assert p.client.register(b"lost") > 0
    p.lose()
    p.connect()
    assert p.hub.subscriptions == {sid: (b"jobs", (), b"", b"g")} and p.hub.consumers == {}
    assert p.at.answers == [(number, 0, b"")]
    assert p.client.consume(number, 2, True) > 0
    p.run()
    assert p.hub.consumers[sid][1:] == (2, True)
    p.hub.keeps = False
    p.lose()
    p.connect()
    assert p.client.consume(number) == E_UNKNOWN_ID


# -- consuming ---------------------------------------------------------------------------------------------------------


def test_what_is_consumed_belongs_to_its_subscription() -> None:
    p, number, sid = consumed()
    assert p.client.consume(number) > 0
    p.hub.give(sid, b"jobs", b"one")
    p.hub.give(sid, None, b"two")
    p.run()
    assert p.at.got == [(b"jobs", b"one", "c", False, number), (b"", b"two", "c", False, number)]
    assert p.at.receipts == [0, 0]
    assert spec.ACK not in [kind for kind, _, _ in p.hub.log]
    p.quiet()


def test_consumed_messages_are_acknowledged() -> None:
    p, number, sid = consumed()
    assert p.client.consume(number, 3, True) > 0
    p.run()
    assert p.hub.consumers[sid][1:] == (3, True)
    ident = p.hub.give(sid, None, b"one")
    p.run()
    assert p.hub.delivered == [ident]
    p.client.auto_ack = False
    p.hub.give(sid, None, b"two")
    p.run()
    assert len(p.hub.delivered) == 1 and p.at.payloads("c") == [b"one", b"two"]
    assert p.client.acknowledge(p.at.receipts[1]) == 0
    p.run()
    assert len(p.hub.delivered) == 2
    p.quiet()


def test_a_consumer_stays_when_its_subscription_is_asked_for_again() -> None:
    p, number, sid = consumed()
    p.client.auto_ack = False
    assert p.client.consume(number, 3, True) > 0
    p.run()
    again = p.client.subscribe(b"jobs", group=b"g")
    p.run()
    p.hub.give(sid, None, b"x")
    p.run()
    assert p.at.got == [(b"", b"x", "c", False, again)]
    assert p.client.acknowledge(p.at.receipts[0]) == 0
    p.run()
    assert len(p.hub.delivered) == 1
    p.quiet()


def test_what_was_not_acknowledged_comes_again() -> None:
    p, number, sid = consumed()
    p.client.auto_ack = False
    p.client.consume(number, 0, True)
    p.run()
    assert p.hub.consumers[sid][1] == 4
    p.hub.give(sid, None, b"x")
    p.run()
    p.lose()
    p.connect()
    assert p.client.acknowledge(p.at.receipts[0]) == E_UNKNOWN_ID
    p.client.consume(number, 0, True)
    p.run()
    assert p.at.payloads("c") == [b"x", b"x"]
    assert p.client.acknowledge(p.at.receipts[1]) == 0
    p.run()
    p.quiet()


def test_a_window_is_no_larger_than_the_room() -> None:
    p, number, _ = consumed()
    assert p.client.consume(number, 5, True) == p.client.consume(number, -1) == E_ARGUMENT
    assert p.client.consume(number, 500) > 0


def test_the_hub_ends_a_consumer() -> None:
    p, number, sid = consumed()
    consumer = p.client.consume(number)
    p.run()
    p.hub.end_consumer(sid, 0x8F, b"topic gone")
    p.run()
    assert p.at.answers[1:] == [(consumer, 0x8F, b"topic gone")]
    assert p.client.consume(number) > 0
    p.run()
    p.client.unsubscribe(number)
    p.run()
    assert [code for _, code, _ in p.at.answers[2:]] == [0, 0]


def test_messages_of_nobody_are_counted() -> None:
    p, _, sid = consumed()
    p.hub.say(spec.CONSUMERESP << 4, p.hub.ident(), sid + 1, None, (), b"x")
    p.hub.say(spec.CONSUMERESP << 4, p.hub.ident(), p.hub.ident(spec.CONSUME), None, (), b"x")
    assert p.run() == 0
    assert p.client.strays == 2 and p.at.got == [] and p.at.results == []


def test_one_message_is_consumed() -> None:
    p = pair()
    call = b""
    for need_ack in (False, True):
        number = p.client.consume_once(b"jobs", (b"x",), b"a == 1", b"g", need_ack)
        p.run()
        call = p.hub.calls[-1][0]
        p.hub.result(call, b"it")
        p.run()
        assert p.at.results[-1] == (number, b"it")
    # A second result is nobody's.
    p.hub.result(call, b"again")
    p.run()
    assert len(p.at.results) == 2 and p.client.strays == 1


def test_no_message_to_consume() -> None:
    p = pair()
    number = p.client.consume_once(b"jobs")
    p.run()
    p.hub.say(spec.ACK << 4, p.hub.calls[0][0], 0x10)
    p.run()
    assert p.at.answers == [(number, 0x10, b"")] and p.at.results == []
    p.quiet()


# -- RPC ---------------------------------------------------------------------------------------------------------------


def test_calls_have_results() -> None:
    p = pair()
    numbers = [p.client.call(b"sum", b"1 2"), p.client.call(b"sum", b"3 4")]
    p.run()
    (a, _, first, _), (b, _, second, _) = p.hub.calls
    assert (first, second) == (b"1 2", b"3 4")
    p.hub.result(b, b"7")
    p.hub.result(a, b"3")
    p.run()
    assert p.at.results == [(numbers[1], b"7"), (numbers[0], b"3")]
    p.quiet()


def test_a_call_that_nobody_serves() -> None:
    p = pair()
    number = p.client.call(b"sum")
    p.run()
    p.hub.say(spec.ACK << 4, p.hub.calls[0][0], 0x10, b"no responder")
    p.run()
    assert p.at.answers == [(number, 0x10, b"no responder")]


def test_calls_are_served() -> None:
    p = pair()
    later: list[bytes] = []

    def serve(f: "Frame") -> None:
        assert f.topic_is(b"$rpc/sum")
        if f.payload_bytes() == b"now":
            assert p.client.reply(f, b"result") == 0
        else:
            later.append(bytes(f.buf[f.id_at : f.id_end]))

    p.client.on_call = serve
    a = p.hub.call(b"sum", b"now")
    b = p.hub.call(b"sum", b"later")
    p.run()
    assert p.hub.replies == [(a, b"result")] and p.at.got == []
    assert p.client.reply(later[0], b"late") == 0
    p.run()
    assert p.hub.replies[1:] == [(b, b"late")]
    assert p.client.reply(b, b"x" * 200) == E_TOO_LARGE
    assert p.client.reply(b, 5) == E_ARGUMENT  # type: ignore[arg-type]
    p.client.on_call = None
    p.hub.call(b"sum", b"now")
    p.run()
    assert p.at.payloads(0) == [b"now"]


# -- between hubs ------------------------------------------------------------------------------------------------------


def test_frames_of_elections_and_slaves() -> None:
    p = pair()
    address = b"\x44\x01\x00\x00\x7f\x5b\x07"
    numbers = [
        p.client.request(spec.ELECT << 4, (address, 17)),
        p.client.request(spec.SLAVEOF << 4, (address, address)),
        p.client.request(spec.SLAVEOF << 4 | spec.REG, ()),
    ]
    slaves = []

    def answer(n: int, code: int) -> None:
        p.at.answers.append((n, code, b""))
        f = p.client.frame
        if f.asked() == spec.SLAVEOF and f.count == 2:
            slaves.append(bytes(f.buf[f.at[1] : f.end]))

    p.client.on_answer = answer
    p.run()
    assert p.at.answers == [(n, 0, b"") for n in numbers]
    assert slaves == [address]


# -- large messages ----------------------------------------------------------------------------------------------------


class Sink:
    def __init__(self, p: Pair):
        self.p = p
        self.got: list[tuple[bytes, int, int]] = []
        self.cut = 0
        self.takes = True
        self._payload = bytearray()
        self._source = 0

    def open(self, f: "Frame", size: int) -> bool:
        self._payload = bytearray()
        self._source = self.p.client.source
        return self.takes

    def write(self, buf: "Bytes", at: int, n: int) -> None:
        self._payload += bytes(buf[at : at + n])

    def close(self, complete: bool) -> None:
        if complete:
            self.got.append((bytes(self._payload), self._source, self.p.client.receipt))
        else:
            self.cut += 1


LARGE = bytes([i & 255 for i in range(700)])


def test_large_messages_pass_through_a_sink() -> None:
    p, number, sid = consumed()
    sink = p.client.sink = Sink(p)
    p.client.consume(number, 2, True)
    for qos in (0, 1, 2):
        p.hub.publish(b"t", LARGE, qos)
    p.run()
    p.hub.give(sid, None, LARGE)
    p.run()
    assert sink.got == [(LARGE, 0, sink.got[0][2])] * 2 + [(LARGE, 0, sink.got[2][2]), (LARGE, number, 0)]
    call = p.client.call(b"sum")
    p.run()
    p.hub.result(p.hub.calls[0][0], LARGE)
    p.run()
    assert sink.got[-1][:2] == (LARGE, call)
    assert p.client.skipped == 0 and p.at.got == []
    p.quiet()


def test_large_messages_are_skipped() -> None:
    p, number, sid = consumed()
    p.client.auto_ack = False
    p.client.consume(number, 2, True)
    for qos in (0, 1, 2):
        p.hub.publish(b"t", LARGE, qos)
    p.run()
    p.hub.give(sid, None, LARGE)
    p.hub.publish(b"t", b"behind")
    p.run()
    assert p.client.skipped == 4 and len(p.hub.delivered) == 3
    assert [m[1] for m in p.at.got] == [b"behind"]
    p.quiet()


def test_a_topic_that_does_not_fit_is_skipped() -> None:
    p = pair()
    sink = p.client.sink = Sink(p)
    p.hub.publish(b"t" * 300, b"x", 1)
    p.hub.publish(b"t", b"behind")
    p.run()
    assert p.client.skipped == 1 and sink.got == [] and p.at.payloads(0) == [b"behind"]
    p.quiet()


def test_the_application_acknowledges_what_a_sink_took() -> None:
    p = pair()
    p.client.auto_ack = False
    sink = p.client.sink = Sink(p)
    p.hub.publish(b"t", LARGE, 1)
    p.hub.publish(b"t", LARGE, 2)
    p.run()
    assert len(p.hub.delivered) == 0
    for _, _, receipt in sink.got:
        assert p.client.acknowledge(receipt) == 0
    p.run()
    assert len(p.hub.delivered) == 2
    p.quiet()


def test_a_sink_is_told_of_a_lost_connection() -> None:
    p = pair()
    sink = p.client.sink = Sink(p)
    p.hub.publish(b"t", LARGE, 2)
    hub: Any = p.hub
    client: Any = p.client
    send(hub, p.link().down)
    receive(client, p.link().down)
    p.lose()
    assert sink.cut == 1
    p.connect()
    assert [one[0] for one in sink.got] == [LARGE]
    p.quiet()


def test_a_sink_that_raises() -> None:
    p = pair()
    sink = Sink(p)
    p.client.sink = sink

    def write(buf: "Bytes", at: int, n: int) -> None:
        raise ValueError

    sink.write = write  # type: ignore[method-assign]
    p.hub.publish(b"t", LARGE, 1)
    p.hub.publish(b"t", b"behind")
    try:
        p.run()
        raise AssertionError("it was caught")
    except ValueError:
        pass
    assert p.client.feed(0) == 0 and p.run() == 0
    assert sink.cut == 1 and sink.got == [] and p.hub.delivered == []
    assert p.at.payloads(0) == [b"behind"]
    p.client.sink = Sink(p)
    p.lose()
    p.connect()
    assert p.client.sink.got == [(LARGE, 0, 0)]
    p.quiet()


def test_a_sink_may_fill_the_transmit_buffer() -> None:
    # How much room is left behind what fits is another each time.
    for tx_size in range(100, 120):
        p = pair(tx_size=tx_size)
        sink = p.client.sink = Sink(p)
        write = sink.write

        def fill(buf: "Bytes", at: int, n: int) -> None:
            write(buf, at, n)  # noqa: B023
            while p.client.publish(b"t", b"") == 0:  # noqa: B023
                pass

        sink.write = fill  # type: ignore[method-assign]
        p.hub.publish(b"t", LARGE, 1)
        p.hub.publish(b"t", LARGE, 2)
        # As long as the hub's turn lasts, nothing leaves between the pieces.
        p.step_down()
        assert p.run() == 0
        assert [one[0] for one in sink.got] == [LARGE, LARGE] and len(p.hub.delivered) == 2
        p.quiet()


def test_a_request_s_answer_must_fit() -> None:
    p = pair()
    number = p.client.register(b"t")
    p.step_up()
    p.hub._out = bytearray()
    p.hub.say(spec.ACK << 4, p.hub.log[-1][2], 0x80, b"why " * 100)
    assert p.run() == E_RX_TOO_LARGE
    assert p.at.answers == [] and number > 0
    # The hub is told that its frame is too large.
    assert p.hub.refused == [(p.hub.log[-1][2], 0x95)]


def test_a_body_above_the_limit_ends_the_connection() -> None:
    p = pair(max_body=500)
    p.hub.publish(b"t", LARGE)
    assert p.run() == E_RX_TOO_LARGE


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_what_is_wrong_ends_the_connection_with_a_reason() -> None:
    ident = b"\x31\x07\x00\xb0\x15\xcd\x4e\x2b\x84\x5b\xd7\x18"
    for data, status, code in (
        (b"\x40", errors.E_TYPE, 0),
        (b"\x36" + ident + b"\x00", errors.E_RX_QOS, 0x81),
        (b"\xe1" + ident + b"\x00", errors.E_FLAGS, 0x81),
        (b"\x30" + ident + b"\x02\x11\x05", errors.E_FIELD, 0x81),
        (b"\x30" + ident + b"\x05\x11\x01\xff\xd0x", errors.E_UTF8, 0x81),
        (b"\x30\xff\xff\xff", spec.E_ID, 0),
        (b"\x80" + ident + b"\x03\x11\x01t", E_UNEXPECTED, 0x82),
        (b"\x00" + ident + b"\x00", E_UNEXPECTED, 0x82),
    ):
        p = pair()
        p.hub._out += data
        assert p.run() == status, data
        assert p.client.status == status and p.client.state == ERROR
        assert p.hub.refused == ([(ident, code)] if code else []), data
        p.lose()
        p.connect()


def test_the_last_word_does_not_stand_in_a_frame() -> None:
    p = pair()
    p.client.publish(b"t", b"half of it")
    assert p.client.out() > 0
    p.client.sent(3)
    p.hub._out += b"\xe1" + p.hub.ident() + b"\x00"
    p.step_down()
    assert p.client.out() == p.client.status == errors.E_FLAGS


# -- time --------------------------------------------------------------------------------------------------------------


def test_keep_alive() -> None:
    """40 seconds of silence: a ping every 7.5 of them."""
    p = pair()
    for _ in range(80):
        p.now += 500
        assert p.client.poll(p.now) == 0
        assert p.run() == 0
    assert [kind for kind, _, _ in p.hub.log] == [spec.AUTH] + [spec.PINGREQ] * 5
    assert not p.client.pinged


def test_a_hub_that_does_not_answer() -> None:
    p = Pair(small())
    p.open()
    p.step_up()
    assert p.client.poll(9999) == 0
    assert p.client.poll(10000) == E_TIMEOUT
    p = pair()
    assert p.client.poll(7500) == 0
    p.step_up()
    assert p.client.poll(7501) == 0
    # The silence of 10 seconds, and those since the ping left.
    assert p.client.poll(17499) == 0
    p.step_up()
    assert p.client.poll(17501) == E_TIMEOUT
    assert p.client.out() == E_TIMEOUT
    p = pair()
    assert p.client.publish(b"t", b"x") == 0
    assert p.client.out() > 0
    assert p.client.poll(5) == 0 and p.client.poll(10004) == 0
    assert p.client.poll(10005) == E_TIMEOUT
    assert p.client.state == ERROR != ONLINE
