# heap: 1M
"""What FMQ's session is sent by a scripted hub, and what the application's handlers may do."""

from fmq_hub import pair

from headwater.errors import E_AGAIN, E_RX_WINDOW, E_UNKNOWN_ID
from headwater.fmq import spec
from headwater.fmq.manual_ack import acknowledge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.fmq.frames import Frame


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


def test_a_hub_that_has_lost_the_session_releases_what_was_open() -> None:
    """It redelivers nothing, so that messages at QoS 2 without PUBREL would take their places for ever."""
    p = pair()
    for n in range(4):
        p.hub.say(0x34, p.hub.ident(), b"t", (), b"%d" % n)
    p.step_down()
    p.hub.keeps = False
    p.lose()
    p.connect()
    assert not p.client.session_present
    for n in range(4, 8):
        p.hub.say(0x34, p.hub.ident(), b"t", (), b"%d" % n)
    assert p.run() == 0
    assert p.at.payloads(2) == [b"%d" % n for n in range(8)]


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
    assert acknowledge(p.client, one) == E_AGAIN
    p.run()
    assert acknowledge(p.client, two) == acknowledge(p.client, one) == 0
    assert acknowledge(p.client, one) == acknowledge(p.client, two) == E_UNKNOWN_ID
    assert acknowledge(p.client, 0) == acknowledge(p.client, -7) == acknowledge(p.client, 99) == E_UNKNOWN_ID
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
    assert acknowledge(p.client, one) == E_UNKNOWN_ID
    p.connect()
    # At QoS 1 it has come again; at QoS 2 it is one message.
    assert [m[1] for m in p.at.got] == [b"one", b"two", b"one"]
    assert acknowledge(p.client, one) == E_UNKNOWN_ID
    assert acknowledge(p.client, two) == 0
    assert acknowledge(p.client, p.at.receipts[2]) == 0
    p.run()
    assert len(p.hub.delivered) == 2
    p.quiet()


def test_acknowledged_while_there_is_no_connection() -> None:
    p = pair()
    p.client.auto_ack = False
    p.hub.publish(b"t", b"x", 2)
    p.run()
    p.lose()
    assert acknowledge(p.client, p.at.receipts[0]) == 0
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
    assert acknowledge(p.client, p.at.receipts[0]) == 0
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
