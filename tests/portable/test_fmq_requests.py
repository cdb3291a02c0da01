# heap: 1M
"""Requests of FMQ's session to a scripted hub: topics, subscriptions, consumers, calls."""

from client_pair import raised
from fmq_hub import consumed, pair

from headwater.errors import (
    E_AGAIN,
    E_ARGUMENT,
    E_FILTER,
    E_OFFLINE,
    E_REFUSED,
    E_TOO_LARGE,
    E_TOPIC,
    E_UNKNOWN_ID,
)
from headwater.fmq import calls, spec
from headwater.fmq.manual_ack import acknowledge
from headwater.fmq.queues import consume, register, unregister

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.fmq.frames import Frame


# -- requests ----------------------------------------------------------------------------------------------------------


def test_topics_are_registered_and_unregistered() -> None:
    p = pair()
    numbers = [register(p.client, b"one"), register(p.client, b"two", 8), unregister(p.client, b"one")]
    numbers.append(unregister(p.client, b"none"))
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
    assert client.unsubscribe(again) == consume(client, again) == E_UNKNOWN_ID
    p.quiet()


def test_a_subscription_is_taken_back_while_it_is_asked_for_again() -> None:
    p = pair()
    client = p.client
    first = client.subscribe(b"t")
    p.run()
    again, back = client.subscribe(b"t"), client.unsubscribe(first)
    numbers = [again, back]

    def on_answer(number: int, code: int) -> None:
        p.at.answers.append((number, code, b""))
        if number == again:
            # In the place that the subscription had.
            numbers.append(register(client, b"x"))

    client.on_answer = on_answer
    p.run()
    assert p.at.answers[1:] == [(number, 0, b"") for number in numbers] and len(numbers) == 3
    assert not p.hub.subscriptions and p.hub.topics == {b"x": 1}
    assert client.unsubscribe(again) == E_UNKNOWN_ID
    p.quiet()


def test_a_refused_subscription_raises_where_no_handler_is_told() -> None:
    p = pair()
    p.hub.refuse = (spec.SUBSCRIBE, 0x87, b"not for you")
    p.client.on_answer = None
    p.client.subscribe(b"secret")
    assert raised(p.run) == E_REFUSED


def test_requests_are_checked() -> None:
    p = pair()
    client = p.client
    for topic in (b"", b"a/b#", b"#/a", b"a+", b"+a", b"\xff"):
        assert client.subscribe(topic) == E_FILTER
    for topic in (b"", b"+"):
        assert register(client, topic) == unregister(client, topic) == calls.call(client, topic) == E_TOPIC
    assert client.subscribe("text") == register(client, 7) == E_ARGUMENT  # type: ignore[arg-type]
    assert client.subscribe(b"t", 7) == client.subscribe(b"t", (7,)) == E_ARGUMENT  # type: ignore[arg-type]
    assert client.subscribe(b"t", (), None) == client.subscribe(b"t", (), b"", "g") == E_ARGUMENT  # type: ignore[arg-type]
    assert calls.consume_once(client, b"t", (), b"", 7) == calls.call(client, b"t", 7) == E_ARGUMENT  # type: ignore[arg-type]
    for queues in (-1, 0, b"1"):
        assert register(client, b"t", queues) == E_ARGUMENT  # type: ignore[arg-type]
    assert client.subscribe(b"t" * 200) == E_TOO_LARGE
    assert consume(client, 1) == client.unsubscribe(0) == E_UNKNOWN_ID
    assert client.out() == 0
    p.lose()
    assert client.subscribe(b"t") == register(client, b"t") == calls.call(client, b"t") == E_OFFLINE
    assert calls.reply(client, b"\xa0\x00\xb1\x00", b"") == E_OFFLINE


def test_no_more_requests_than_there_are_places() -> None:
    p = pair(requests=3)
    # AUTH has one.
    assert register(p.client, b"a") > 0 and register(p.client, b"b") > 0
    assert register(p.client, b"c") == E_AGAIN
    p.run()
    assert register(p.client, b"c") > 0


def test_a_refused_request_says_why() -> None:
    p = pair()
    p.hub.refuse = (spec.SUBSCRIBE, 0x8F, b"column 3")
    number = p.client.subscribe(b"t", condition=b"t >")
    p.run()
    assert p.at.answers == [(number, 0x8F, b"column 3")]
    assert consume(p.client, number) == E_UNKNOWN_ID


def test_requests_end_with_their_connection_and_subscriptions_do_not() -> None:
    p, number, sid = consumed()
    assert consume(p.client, number, 2, True) > 0
    assert register(p.client, b"lost") > 0
    p.lose()
    p.connect()
    assert p.hub.subscriptions == {sid: (b"jobs", (), b"", b"g")} and p.hub.consumers == {}
    assert p.at.answers == [(number, 0, b"")]
    assert consume(p.client, number, 2, True) > 0
    p.run()
    assert p.hub.consumers[sid][1:] == (2, True)
    p.hub.keeps = False
    p.lose()
    p.connect()
    assert consume(p.client, number) == E_UNKNOWN_ID


# -- consuming ---------------------------------------------------------------------------------------------------------


def test_what_is_consumed_belongs_to_its_subscription() -> None:
    p, number, sid = consumed()
    assert consume(p.client, number) > 0
    p.hub.give(sid, b"jobs", b"one")
    p.hub.give(sid, None, b"two")
    p.run()
    assert p.at.got == [(b"jobs", b"one", "c", False, number), (b"", b"two", "c", False, number)]
    assert p.at.receipts == [0, 0]
    assert spec.ACK not in [kind for kind, _, _ in p.hub.log]
    p.quiet()


def test_consumed_messages_are_acknowledged() -> None:
    p, number, sid = consumed()
    assert consume(p.client, number, 3, True) > 0
    p.run()
    assert p.hub.consumers[sid][1:] == (3, True)
    ident = p.hub.give(sid, None, b"one")
    p.run()
    assert p.hub.delivered == [ident]
    p.client.auto_ack = False
    p.hub.give(sid, None, b"two")
    p.run()
    assert len(p.hub.delivered) == 1 and p.at.payloads("c") == [b"one", b"two"]
    assert acknowledge(p.client, p.at.receipts[1]) == 0
    p.run()
    assert len(p.hub.delivered) == 2
    p.quiet()


def test_a_consumer_stays_when_its_subscription_is_asked_for_again() -> None:
    p, number, sid = consumed()
    p.client.auto_ack = False
    assert consume(p.client, number, 3, True) > 0
    p.run()
    again = p.client.subscribe(b"jobs", group=b"g")
    p.run()
    p.hub.give(sid, None, b"x")
    p.run()
    assert p.at.got == [(b"", b"x", "c", False, again)]
    assert acknowledge(p.client, p.at.receipts[0]) == 0
    p.run()
    assert len(p.hub.delivered) == 1
    p.quiet()


def test_what_was_not_acknowledged_comes_again() -> None:
    p, number, sid = consumed()
    p.client.auto_ack = False
    consume(p.client, number, 0, True)
    p.run()
    assert p.hub.consumers[sid][1] == 4
    p.hub.give(sid, None, b"x")
    p.run()
    p.lose()
    p.connect()
    assert acknowledge(p.client, p.at.receipts[0]) == E_UNKNOWN_ID
    consume(p.client, number, 0, True)
    p.run()
    assert p.at.payloads("c") == [b"x", b"x"]
    assert acknowledge(p.client, p.at.receipts[1]) == 0
    p.run()
    p.quiet()


def test_a_window_is_no_larger_than_the_room() -> None:
    p, number, _ = consumed()
    assert consume(p.client, number, 5, True) == consume(p.client, number, -1) == E_ARGUMENT
    assert consume(p.client, number, 500) > 0


def test_the_hub_ends_a_consumer() -> None:
    p, number, sid = consumed()
    consumer = consume(p.client, number)
    p.run()
    p.hub.end_consumer(sid, 0x8F, b"topic gone")
    p.run()
    assert p.at.answers[1:] == [(consumer, 0x8F, b"topic gone")]
    assert consume(p.client, number) > 0
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
        number = calls.consume_once(p.client, b"jobs", (b"x",), b"a == 1", b"g", need_ack)
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
    number = calls.consume_once(p.client, b"jobs")
    p.run()
    p.hub.say(spec.ACK << 4, p.hub.calls[0][0], 0x10)
    p.run()
    assert p.at.answers == [(number, 0x10, b"")] and p.at.results == []
    p.quiet()


# -- RPC ---------------------------------------------------------------------------------------------------------------


def test_calls_have_results() -> None:
    p = pair()
    numbers = [calls.call(p.client, b"sum", b"1 2"), calls.call(p.client, b"sum", b"3 4")]
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
    number = calls.call(p.client, b"sum")
    p.run()
    p.hub.say(spec.ACK << 4, p.hub.calls[0][0], 0x10, b"no responder")
    p.run()
    assert p.at.answers == [(number, 0x10, b"no responder")]


def test_calls_are_refused() -> None:
    p = pair()
    client = p.client
    ident = b"\xa0\x00\xb1\x01"
    for code in (0, 127, 256, -1):
        assert calls.refuse(client, ident, code) == E_ARGUMENT
    assert calls.refuse(client, 5, 0x83) == calls.refuse(client, ident, 0x83, 5) == E_ARGUMENT  # type: ignore[arg-type]
    assert calls.refuse(client, ident, 0x83, b"x" * 200) == E_TOO_LARGE
    assert client.out() == 0
    assert calls.refuse(client, ident, 0x83, b"no") == 0
    assert calls.refuse(client, ident, 0x83, b"x" * 200) == E_AGAIN
    assert bytes(client.tx[: client.tx_end]) == b"\xe0" + ident + b"\x06\x31\x83\x11\x02no"
    p.lose()
    assert calls.refuse(client, ident, 0x83) == E_OFFLINE


def test_calls_are_served() -> None:
    p = pair()
    later: list[bytes] = []

    def serve(f: "Frame") -> None:
        assert f.topic_is(b"$rpc/sum")
        if f.payload_bytes() == b"now":
            assert calls.reply(p.client, f, b"result") == 0
        else:
            later.append(bytes(f.buf[f.id_at : f.id_end]))

    p.client.on_call = serve
    a = p.hub.call(b"sum", b"now")
    b = p.hub.call(b"sum", b"later")
    p.run()
    assert p.hub.replies == [(a, b"result")] and p.at.got == []
    assert calls.reply(p.client, later[0], b"late") == 0
    p.run()
    assert p.hub.replies[1:] == [(b, b"late")]
    assert calls.reply(p.client, b, b"x" * 200) == E_TOO_LARGE
    assert calls.reply(p.client, b, 5) == E_ARGUMENT  # type: ignore[arg-type]
    p.client.on_call = None
    p.hub.call(b"sum", b"now")
    p.run()
    assert p.at.payloads(0) == [b"now"]
