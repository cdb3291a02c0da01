# heap: 2M
"""Messages that announce more than the receive buffer holds: streamed, skipped, cut in the middle, or bad."""

from pipe import Sink, drain, feed, small_ends
from states import CONNACK, GOOD, client_in, sessions

from headwater import errors
from headwater.connection import ONLINE
from headwater.mqtt.manual_ack import ManualAck
from headwater.mqtt.server import ServerSession
from headwater.mqtt.session import ClientSession
from headwater.streaming import stream_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet

MIB = b"\x34\x80\x80\x40\x00\x01t\x00\x07"
MOST = b"\x32\xff\xff\xff\x7f\x00\x01t\x00\x07"


def pour(end: "ClientSession | ServerSession", n: int) -> None:
    """Feed ``n`` bytes of payload, whatever stands in the buffer."""
    while n:
        k = min(end.rx.window(), n)
        assert k > 0
        assert end.feed(k) == 0
        n -= k


class Counter:
    """A sink that counts."""

    def __init__(self, taken: bool = True) -> None:
        self.taken = taken
        self.size = self.bytes = 0
        self.ends: list[bool] = []

    def open(self, p: "Packet", size: int) -> bool:
        self.size = size
        return self.taken

    def write(self, buf: object, at: int, n: int) -> None:
        self.bytes += n

    def close(self, complete: bool) -> None:
        self.ends.append(complete)


def test_publish_of_a_megabyte_is_streamed() -> None:
    e = sessions()[0]
    c = e.client
    sink = Counter()
    stream_to(c, sink)
    assert feed(c, MIB) == 0
    pour(c, (1 << 20) - 5)
    assert (sink.size, sink.bytes, sink.ends) == ((1 << 20) - 5, (1 << 20) - 5, [True])
    assert drain(c) == b"\x50\x02\x00\x07"
    assert feed(c, GOOD) == 0 and e.at_client.payloads(1) == [b"ok"]
    # Again: it is known, and passes by.
    assert feed(c, b"\x3c" + MIB[1:]) == 0
    pour(c, (1 << 20) - 5)
    assert sink.ends == [True] and c.duplicates == 1 and c.skipped == 0
    assert drain(c) == b"\x40\x02\x00\x09" + b"\x50\x02\x00\x07"


def test_publish_of_a_megabyte_is_skipped() -> None:
    for refuse in (False, True):
        e = sessions()[1]
        s = e.server
        sink = Counter(taken=False)
        if refuse:
            stream_to(s, sink)
        assert feed(s, MIB) == 0
        pour(s, (1 << 20) - 5)
        assert s.skipped == 1 and not e.at_server.got
        assert not sink.bytes and not sink.ends
        assert drain(s) == b"\x50\x02\x00\x07"
        assert feed(s, GOOD) == 0 and e.at_server.payloads(1) == [b"ok"]


def test_publish_of_256_megabytes_cut_in_the_middle() -> None:
    for with_sink in (False, True):
        e = sessions()[0]
        c = e.client
        sink = Counter()
        if with_sink:
            stream_to(c, sink)
        assert feed(c, MOST) == 0
        pour(c, 20000)
        assert c.state == ONLINE and c.out() == 0
        e.lose()
        assert sink.ends == ([False] if with_sink else [])
        assert not e.at_client.got
        e.connect()
        # No acknowledgement was given; what comes next is a packet again.
        assert feed(c, GOOD) == 0
        assert e.at_client.payloads(1) == [b"ok"]
        assert drain(c) == b"\x40\x02\x00\x09"


def test_a_topic_larger_than_the_buffer() -> None:
    """It cannot be delivered, and not even looked at: it is skipped, and its packet id read to acknowledge it."""
    for qos in (0, 1, 2):
        for cut in (1, 3, 7, 1000):
            e = sessions()[0]
            c = e.client
            sink = Counter()
            stream_to(c, sink)
            body = b"\x04\x00" + b"x" * 1024 + (b"\x01\x02" if qos else b"") + b"payload"
            data = bytes([0x30 | qos << 1, len(body) & 127 | 128, len(body) >> 7]) + body
            at = 0
            while at < len(data):
                k = min(cut, c.rx.window(), len(data) - at)
                c.rx.view[:k] = data[at : at + k]
                assert c.feed(k) == 0
                at += k
            assert c.skipped == 1 and not sink.size and not e.at_client.got
            assert drain(c) == (b"", b"\x40\x02\x01\x02", b"\x50\x02\x01\x02")[qos]
            assert feed(c, GOOD) == 0 and e.at_client.payloads(1) == [b"ok"]


def test_a_large_message_with_packet_id_0() -> None:
    for name in (b"t", b"x" * 1024):
        c = client_in(ONLINE)
        n = 2 + len(name) + 2 + 2000
        data = bytes([0x32, n & 127 | 128, n >> 7, len(name) >> 8, len(name) & 255]) + name + b"\x00\x00"
        status = 0
        for at in range(0, len(data), 100):
            status = status or feed(c, data[at : at + 100])
        assert status == errors.E_PACKET_ID, (len(name), status)


def test_a_large_message_with_a_bad_topic() -> None:
    for name, code in ((b"a/#", errors.E_RX_TOPIC), (b"a\xff", errors.E_UTF8), (b"", errors.E_RX_TOPIC)):
        c = client_in(ONLINE)
        sink = Counter()
        stream_to(c, sink)
        assert feed(c, b"\x30\x80\x80\x01\x00" + bytes([len(name)]) + name + b"!") == code
        assert not sink.size and not sink.ends


def test_a_large_message_whose_topic_is_longer_than_itself() -> None:
    c = client_in(ONLINE)
    assert feed(c, b"\x30\x80\x80\x01\xff\xff") == errors.E_FIELD


def test_a_large_message_while_no_qos_2_place_is_free() -> None:
    c = ClientSession(b"c", 0, receive_window=1)
    assert c.connect(0) == 0
    drain(c)
    assert feed(c, CONNACK) == 0
    ManualAck(c)
    assert feed(c, b"\x34\x05\x00\x01t\x00\x01") == 0
    sink = Counter()
    stream_to(c, sink)
    assert feed(c, MIB) == errors.E_RX_WINDOW
    assert not sink.size and not sink.ends


def test_a_topic_that_did_not_fit_and_was_cut_short_takes_nothing_of_the_next_message() -> None:
    e = small_ends()
    sink = Sink(e.at_client)
    stream_to(e.client, sink)
    # QoS 2, a topic of 100 bytes, of which 20 have come when the connection is lost.
    assert feed(e.client, b"\x34\x78\x00\x64" + b"t" * 20) == 0
    e.lose()
    e.connect()
    e.from_server.publish(b"t", bytes(range(200)), 2)
    e.run()
    assert e.at_client.payloads(2) == [bytes(range(200))]
    assert sink.idle()
    e.quiet()
