# heap: 512K
"""Bad arguments of every call: the caller's fault, said so, and without any effect."""

from pipe import Ends, drain
from states import sessions

from headwater import errors
from headwater.connection import ONLINE
from headwater.mqtt.server import SESSION_PRESENT
from headwater.mqtt.session import ClientSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet
    from headwater.mqtt.packets_server import Connect


def unharmed(e: Ends) -> None:
    """Nothing was sent or kept, and everything works."""
    assert e.client.out() == 0 and e.client.outbox.count == 0 and e.client.state == ONLINE
    assert len(e.client.tx) == e.client.tx_size == 512
    assert e.from_client.publish(b"t", b"fine", 2) > 0
    e.run()
    assert e.at_server.payloads(2) == [b"fine"]
    e.quiet()


def test_publish_with_a_bad_topic() -> None:
    for qos in (0, 1, 2):
        e = sessions()[0]
        for bad in (b"", b"#", b"a/+", b"\xff", b"a\x00", b"x" * 65536, bytearray(b"+"), memoryview(b"")):
            assert e.client.publish(bad, b"p", qos) == errors.E_TOPIC, bad
        assert errors.blame(errors.E_TOPIC) == errors.CALLER
        unharmed(e)


def test_publish_with_a_topic_that_was_changed() -> None:
    e = sessions()[0]
    name = bytearray(b"a/b")
    assert e.client.publish(name, b"", 0) == 0
    name[2] = 35
    assert e.client.publish(name, b"", 0) == errors.E_TOPIC


def test_publish_with_a_bad_qos() -> None:
    e = sessions()[0]
    for bad in (3, -1, 4, 1 << 28, "1", None, b"", 1.5):
        assert e.client.publish(b"t", b"p", bad) == errors.E_QOS  # type: ignore[arg-type]
    unharmed(e)


def test_publish_of_what_is_not_bytes() -> None:
    for qos in (0, 1, 2):
        e = sessions()[0]
        for bad in ("text", "é", None, 5, 1.5, object(), ("a",)):
            assert e.client.publish(b"t", bad, qos) == errors.E_ARGUMENT, bad  # type: ignore[arg-type]
            assert e.client.publish(bad, b"p", qos) == errors.E_ARGUMENT, bad  # type: ignore[arg-type]
        assert errors.blame(errors.E_ARGUMENT) == errors.CALLER
        unharmed(e)


def test_publish_of_items_larger_than_a_byte() -> None:
    """Whose length is not their size in bytes: no buffer grows for them."""
    from array import array

    for qos in (0, 1):
        e = sessions()[0]
        assert e.client.publish(b"t", array("H", [1, 2, 3]), qos) == errors.E_ARGUMENT  # type: ignore[arg-type]
        assert len(e.client.outbox.buf) == 1024
        unharmed(e)


def test_subscribe_with_a_bad_filter() -> None:
    e = sessions()[0]
    for bad in (b"", b"a#", b"#/", b"+a", b"\xc0\x80", b"\x00", b"x" * 65536):
        assert e.client.subscribe(bad, 1) == errors.E_FILTER, bad
        assert e.client.unsubscribe(bad) == errors.E_FILTER, bad
    for wrong in ("a", None, 7):
        assert e.client.subscribe(wrong, 1) == errors.E_ARGUMENT, wrong  # type: ignore[arg-type]
        assert e.client.unsubscribe(wrong) == errors.E_ARGUMENT, wrong  # type: ignore[arg-type]
    for wrong in (3, -1, "0", None):
        assert e.client.subscribe(b"t", wrong) == errors.E_QOS, wrong  # type: ignore[arg-type]
    assert e.client.subscribe(b"x" * 600) == e.client.unsubscribe(b"x" * 600) == errors.E_TOO_LARGE
    unharmed(e)


def test_set_will_with_bad_arguments() -> None:
    e = sessions()[0]
    for bad in (b"", b"a/#", b"\xff", b"x" * 65536):
        assert e.client.set_will(bad) == errors.E_TOPIC
    for wrong in ("text", 7, None):
        assert e.client.set_will(b"t", wrong) == errors.E_ARGUMENT  # type: ignore[arg-type]
    assert e.client.set_will("t") == errors.E_ARGUMENT  # type: ignore[arg-type]
    assert e.client.set_will(b"t", bytes(65536)) == errors.E_ARGUMENT
    for wrong in (3, -1, "1", None):
        assert e.client.set_will(b"t", b"", wrong) == errors.E_QOS  # type: ignore[arg-type]
    # The will is what it was: none.
    wills: list[int] = []

    def look(connect: "Connect", packet: "Packet") -> int:
        wills.append(connect.will_topic_at)
        return SESSION_PRESENT

    e.server.on_connect = look
    e.lose()
    e.connect()
    assert wills == [-1]
    unharmed(e)


def test_calls_in_the_wrong_state() -> None:
    c = ClientSession(b"c")
    assert c.publish(b"t", b"", 0) == c.subscribe(b"t") == c.unsubscribe(b"t") == errors.E_OFFLINE
    assert c.disconnect() == 0 and c.out() == 0 and c.poll(0) == 0 and c.feed(0) == 0
    c.lost()
    assert c.connect(0) == 0
    assert c.publish(b"t", b"", 0) == c.subscribe(b"t") == errors.E_OFFLINE
    assert len(drain(c)) == 15
