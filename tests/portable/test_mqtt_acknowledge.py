"""Acknowledgements left to the application (``ManualAck``)."""

from pipe import FIRST, Ends, small_ends

from headwater.connection import ERROR
from headwater.errors import E_AGAIN, E_OFFLINE, E_QOS, E_STATE, E_UNKNOWN_ID
from headwater.mqtt.manual_ack import KEEP, ManualAck

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet


def test_the_application_acknowledges() -> None:
    e = small_ends()
    ManualAck(e.client)
    for n, qos in enumerate((1, 2, 0, 2, 1)):
        e.from_server.publish(b"t", bytes([n]), qos)
    e.run()
    assert len(e.at_client.got) == 5 and not e.from_server.delivered
    for _, payload, qos, _, _, packet_id in e.at_client.got:
        if qos:
            assert e.client.acks.acknowledge(packet_id, qos, e.client.epoch) == 0
            e.run()
            assert e.from_server.delivered[-1] == payload
    e.quiet()


def test_acknowledgements_that_do_not_fit() -> None:
    e = small_ends()
    ManualAck(e.client)
    e.from_server.publish(b"t", b"one", 1)
    e.from_server.publish(b"t", b"two", 2)
    e.run()
    epoch = e.client.epoch
    for qos in (0, 3, -1):
        assert e.client.acks.acknowledge(2, qos, epoch) == E_QOS
    for packet_id in (0, -1, 65536, 1 << 29):
        assert e.client.acks.acknowledge(packet_id, 1, epoch) == E_UNKNOWN_ID
        assert e.client.acks.acknowledge(packet_id, 2, epoch) == E_UNKNOWN_ID
    assert e.client.acks.acknowledge(1, 2, epoch) == E_UNKNOWN_ID
    assert e.client.acks.acknowledge(1, 1, epoch - 1) == E_STATE
    assert e.client.acks.acknowledge(2, 2, epoch + 1) == E_UNKNOWN_ID
    assert e.client.tx_end == 0
    assert e.client.acks.acknowledge(2, 2, epoch) == 0
    assert e.client.acks.acknowledge(2, 2, epoch) == E_UNKNOWN_ID
    assert e.client.acks.acknowledge(1, 1, epoch) == 0
    e.run()
    e.quiet()
    assert e.client.acks.acknowledge(2, 2, epoch) == E_UNKNOWN_ID


def test_an_acknowledgement_waits_for_room() -> None:
    e = small_ends(64, 16)
    ManualAck(e.client)
    e.from_server.publish(b"t", b"one", 1)
    e.from_server.publish(b"t", b"two", 2)
    e.run()
    while e.client.publish(b"t", b"", 0) == 0:
        pass
    for packet_id, qos in ((1, 1), (2, 2)):
        assert e.client.acks.acknowledge(packet_id, qos, e.client.epoch) == E_AGAIN
    e.run()
    for packet_id, qos in ((1, 1), (2, 2)):
        assert e.client.acks.acknowledge(packet_id, qos, e.client.epoch) == 0
    e.run()
    e.quiet()


def test_acknowledgements_over_a_reconnect() -> None:
    e = small_ends()
    ManualAck(e.client)
    e.from_server.publish(b"t", b"one", 1)
    e.from_server.publish(b"t", b"two", 2)
    e.run()
    e.lose()
    # QoS 1 comes again, with a new acknowledgement to be given; QoS 2 was delivered once and for all.
    assert e.client.acks.acknowledge(1, 1, FIRST) == E_STATE
    e.connect()
    assert e.at_client.payloads(1) == [b"one", b"one"]
    assert e.at_client.payloads(2) == [b"two"]
    assert e.client.acks.acknowledge(1, 1, FIRST) == E_STATE
    assert e.client.acks.acknowledge(1, 1, e.client.epoch) == 0
    assert e.client.acks.acknowledge(2, 2, FIRST) == 0
    e.run()
    e.quiet()


def test_a_handler_that_acknowledges_itself() -> None:
    e = small_ends()
    ManualAck(e.client)

    def answer(p: "Packet") -> None:
        qos = p.qos()
        packet_id = p.packet_id
        e.at_client.message(p)
        assert e.client.acks.acknowledge(packet_id, qos, e.client.epoch) == 0

    e.client.on_message = answer
    for n, qos in enumerate((1, 2, 1, 2)):
        e.from_server.publish(b"t", bytes([n]), qos)
    e.run()
    assert len(e.from_server.delivered) == 4
    assert e.client.unanswered == 0
    e.quiet()


def test_nothing_is_acknowledged_while_offline() -> None:
    e = small_ends()
    ManualAck(e.client)
    e.from_server.publish(b"t", b"one", 1)
    e.run()
    e.lose()
    assert e.client.acks.acknowledge(1, 1, e.client.epoch) == E_STATE
    assert e.client.publish(b"t", b"", 0) == E_OFFLINE
    assert e.client.tx_end == 0 and e.client.state != ERROR


def test_a_handler_that_raises_behind_its_acknowledgement() -> None:
    """What the application has acknowledged does not come again, also when PUBREC is lost with the connection."""
    for cut in (False, True):
        e = small_ends()
        ManualAck(e.client)
        got: list[bytes] = []

        def angry(p: "Packet", e: Ends = e, got: "list[bytes]" = got) -> None:
            got.append(p.payload_bytes())
            assert e.client.acks.acknowledge(p.packet_id, 2, e.client.epoch) == 0
            raise RuntimeError("no")

        e.client.on_message = angry
        e.from_server.publish(b"t", b"once", 2)
        try:
            e.run()
            raise AssertionError("nothing was raised")
        except RuntimeError:
            pass
        if cut:
            e.lose()
            e.connect()
        e.run()
        assert got == [b"once"] and e.from_server.delivered == [b"once"]
        assert e.client.strays == 0
        e.quiet()


def test_a_handler_keeps_some_messages() -> None:
    """What it keeps is acknowledged later, the rest when it returns."""
    e = small_ends()
    got: list[tuple[bytes, int, int]] = []

    def take(p: "Packet") -> object:
        got.append((p.payload_bytes(), p.packet_id, p.qos()))
        return KEEP if p.payload_bytes() in b"kq" else None

    ManualAck(e.client, automatic=True)
    e.client.on_message = take
    for qos in (1, 2):
        for payload in (b"a", b"k", b"b", b"q"):
            e.from_server.publish(b"t", payload, qos)
        e.run()
        assert e.from_server.delivered == [b"a", b"b"] and e.client.unanswered == (2 if qos == 1 else 0)
        for payload, packet_id, _ in got:
            if payload in b"kq":
                assert e.client.acks.acknowledge(packet_id, qos, e.client.epoch) == 0
        e.run()
        assert e.from_server.delivered == [b"a", b"b", b"k", b"q"] and e.client.unanswered == 0
        e.quiet()
        got.clear()
        e.from_server.delivered.clear()
