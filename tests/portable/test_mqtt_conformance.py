# heap: 768K
"""What MQTT 3.1.1 and 5.0 both demand of a client, where no other test says it plainly: see docs/conformance.md.

Numbers in brackets are the statements', of either version.
"""

from pipe import Ends, drain, feed, packets
from sessions import server5, session5
from states import CONNACK, SESSION_KEPT
from states5 import CONNACK5, Ends5

from headwater import errors
from headwater.connection import ERROR, IDLE, ONLINE
from headwater.mqtt.server import ServerSession
from headwater.mqtt.session import ClientSession
from headwater.wire import put_varint, varint_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet


class Version:
    """How a version writes what these tests feed and expect."""

    def __init__(self, five: bool):
        self.five = five
        self.session = session5 if five else ClientSession
        self.accepted = CONNACK5 if five else CONNACK
        self.resumed = b"\x20\x03\x01\x00\x00" if five else SESSION_KEPT
        self.block = b"\x00" if five else b""

    def publish(self, head: int, packet_id: int, payload: bytes = b"m", topic: bytes = b"t") -> bytes:
        """A PUBLISH; ``head`` is its first byte."""
        body = bytes([0, len(topic)]) + topic
        if head & 6:
            body += bytes([packet_id >> 8, packet_id & 255])
        body += self.block + payload
        return bytes([head, len(body)]) + body

    def client(self, **options: object) -> ClientSession:
        """A client that is online, and whose session is kept."""
        options.setdefault("keep_alive", 0)
        options.setdefault("clean_start", False)
        c = self.session(b"c", **options)  # type: ignore[arg-type]
        self.connect(c, self.accepted)
        return c

    def connect(self, c: ClientSession, connack: bytes) -> bytes:
        """(Re)connect; what left, CONNECT included."""
        c.lost()
        assert c.connect(0) == 0
        sent = drain(c)
        assert feed(c, connack) == 0 and c.state == ONLINE
        return sent + drain(c)

    def ends(self, **options: object) -> Ends:
        """Two ends that are connected."""
        options.setdefault("keep_alive", 0)
        if self.five:
            e: Ends = Ends5(session5(b"c", **options), server5())
        else:
            e = Ends(ClientSession(b"c", **options), ServerSession())  # type: ignore[arg-type]
        e.connect()
        return e


VERSIONS = (Version(False), Version(True))


def ack(head: int, packet_id: int) -> bytes:
    return bytes([head, 2, packet_id >> 8, packet_id & 255])


def split(data: bytes) -> "list[bytes]":
    """The packets one by one."""
    return [data[at:end] for _, at, end in packets(data)]


# -- strings and numbers -----------------------------------------------------------------------------------------------


def test_strings_in_connect_are_utf8() -> None:
    """[3.1.3-4, 3.1.3-11, 3.1.3-12, 1.5.3-1, 1.5.4-1]: or there is no CONNECT. Passwords are any bytes."""
    for v in VERSIONS:
        for bad in (b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"a\x00b", b"\x00", bytearray(b"\x80")):
            for c in (v.session(bad), v.session(b"c", user=bad, password=b"p")):
                assert c.connect(0) == errors.E_ARGUMENT, bad
                assert c.state == IDLE and c.out() == 0
            c = v.session(b"c", user=b"u", password=bad)
            assert c.connect(0) == 0
            assert drain(c)[-len(bad) :] == bad
        name = "Wärmepumpe 温度 𝄞".encode()
        c = v.session(name, user=name)
        assert c.connect(0) == 0
        assert drain(c)[-2 * (len(name) + 2) :] == 2 * (bytes([0, len(name)]) + name)


def test_u_feff_is_a_character_like_others() -> None:
    """[1.5.3-3, 1.5.4-3]: not skipped at the beginning of a string, nor anywhere else."""
    for v in VERSIONS:
        for topic in (b"\xef\xbb\xbf", b"\xef\xbb\xbfa", b"a/\xef\xbb\xbf/b", b"a\xef\xbb\xbf"):
            e = v.ends()
            for outgoing, inbox in ((e.from_client, e.at_server), (e.from_server, e.at_client)):
                assert outgoing.publish(topic, b"m", 1) > 0
                e.run()
                assert inbox.got[-1][0] == topic


def test_numbers_take_as_few_bytes_as_they_can() -> None:
    """[1.5.5-1]"""
    for value, data in (
        (0, b"\x00"),
        (1, b"\x01"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (16383, b"\xff\x7f"),
        (16384, b"\x80\x80\x01"),
        (2097151, b"\xff\xff\x7f"),
        (2097152, b"\x80\x80\x80\x01"),
        (268435455, b"\xff\xff\xff\x7f"),
    ):
        buf = bytearray(b"\x55" * 6)
        assert put_varint(buf, 1, value) == 1 + len(data) == 1 + varint_size(value), value
        assert buf == b"\x55" + data + b"\x55" * (5 - len(data)), value


# -- CONNECT -----------------------------------------------------------------------------------------------------------


def test_connect_is_the_first_packet() -> None:
    """[3.1.0-1]: whatever was handed in before, and however long the server takes to answer; it comes once."""
    for v in VERSIONS:
        c = v.session(b"c", 10, False)
        for qos in (1, 2):
            assert c.publish(b"t", b"m", qos) > 0
        assert c.out() == 0
        for _ in range(2):
            assert c.connect(0) == 0
            for qos in (1, 2):
                assert c.publish(b"t", b"m", qos) > 0
            assert c.publish(b"t", b"m") == c.subscribe(b"t") == c.unsubscribe(b"t") == errors.E_OFFLINE
            assert c.poll(9000) == 0
            assert [packet[0] for packet in split(drain(c))] == [0x10]
            assert c.out() == 0
            assert feed(c, v.accepted) == 0
            assert {packet[0] & 0xF0 for packet in split(drain(c))} == {0x30}
            c.lost()


def test_user_name_and_password_as_the_flags_say() -> None:
    """[3.1.2-16 to -22]: a field if and only if its flag is set, at the end of the payload."""
    for v in VERSIONS:
        for user in (None, b"", b"me"):
            for password in (None, b"", b"\x00\xff"):
                c = v.session(b"c", 0, user=user, password=password)
                if user is None and password is not None and not v.five:
                    assert c.connect(0) == errors.E_ARGUMENT and c.out() == 0
                    continue
                assert c.connect(0) == 0
                sent = drain(c)
                flags = 2 | (0 if user is None else 0x80) | (0 if password is None else 0x40)
                assert sent[9] == flags, (user, password)
                behind = b"\x00\x01c"
                for field in (user, password):
                    if field is not None:
                        behind += bytes([0, len(field)]) + field
                # Name, level, flags and keep-alive are ten bytes; 5.0's properties begin with their length.
                body = sent[12:]
                assert body[1 + body[0] if v.five else 0 :] == behind, (user, password)


def test_without_a_will_its_flags_are_0() -> None:
    """[3.1.2-11, -13, -15]: whatever QoS and RETAIN were asked for; and with one, its fields are there [3.1.2-9]."""
    for v in VERSIONS:
        c = v.session(b"c", 0)
        for topic, flags in ((b"w", 0x36), (None, 0x02), (b"w", 0x36)):
            assert c.set_will(topic, b"\xff", 2, True) == 0
            c.lost()
            assert c.connect(0) == 0
            sent = drain(c)
            assert sent[9] == flags
            assert sent.endswith(
                (b"\x00\x01c" + v.block + b"\x00\x01w\x00\x01\xff") if topic else b"\x00\x01c"
            )


# -- packet ids --------------------------------------------------------------------------------------------------------


def test_packet_ids_on_the_wire_are_not_in_use() -> None:
    """[2.3.1-1, -2; 2.2.1-3; 4.3.2-1, 4.3.3-1]: messages and requests, over many laps of the ids; never 0."""
    for v in VERSIONS:
        e = v.ends(clean_start=False, slots=5, window=5)
        used: set[int] = set()
        seen: set[int] = set()
        at = [len(e.link().up.log), len(e.link().down.log)]
        n = 0
        while n < 300:
            if n % 3 == 0:
                e.client.subscribe(b"t", 1)
            elif n % 7 == 0:
                e.client.unsubscribe(b"t")
            else:
                e.from_client.publish(b"t", bytes([n & 255]), 1 + n % 2)
            n += 1
            if n % 4:
                continue
            e.run()
            # What is used is looked at packet by packet; the client's were written before the server's answers.
            for wire, k in ((e.link().up, 0), (e.link().down, 1)):
                data = bytes(wire.log[at[k] :])
                at[k] = len(wire.log)
                for packet in split(data):
                    kind = packet[0] >> 4
                    i = 5 if kind == 3 else 2
                    packet_id = packet[i] << 8 | packet[i + 1]
                    if kind in (3, 8, 10):
                        assert packet_id and packet_id not in used, (n, packet_id)
                        used.add(packet_id)
                        seen.add(packet_id)
                    elif kind in (4, 7, 9, 11) and k:
                        used.remove(packet_id)
        assert not used and len(seen) > 20
        e.quiet()


def test_answers_have_the_id_of_what_they_answer() -> None:
    """[2.3.1-6, 2.2.1-5, 3.3.4-1, 4.3.2-4, 4.3.3-8, 4.3.3-11]"""
    for v in VERSIONS:
        for packet_id in (1, 2, 255, 256, 257, 32767, 65535):
            c = v.client()
            for head, answer in ((0x30, b""), (0x32, ack(0x40, packet_id)), (0x34, ack(0x50, packet_id))):
                assert feed(c, v.publish(head, packet_id)) == 0
                assert drain(c) == answer
            assert feed(c, ack(0x62, packet_id)) == 0
            assert drain(c) == ack(0x70, packet_id)
    # A PUBREL has its PUBREC's.
    for v in VERSIONS:
        c = v.client(slots=5)
        for n in range(5):
            assert c.publish(b"t", b"", 2) == n + 1
        drain(c)
        # In the order of the PUBRECs [4.6.0-4], which need not be that of the messages.
        for packet_id in (3, 1, 5, 2, 4):
            assert feed(c, ack(0x50, packet_id)) == 0
        assert drain(c) == b"".join([ack(0x62, packet_id) for packet_id in (3, 1, 5, 2, 4)])


def test_acknowledgements_leave_in_the_order_of_the_messages() -> None:
    """[4.6.0-2, 4.6.0-3]: in one read or in several, and through a small buffer."""
    for v in VERSIONS:
        for tx_size in (64, 512):
            c = v.client(tx_size=tx_size)
            ids = (7, 3, 65535, 1, 256, 9)
            expected = b"".join([ack(0x40, i) + ack(0x50, i + 1000 & 65535) for i in ids])
            data = b"".join([v.publish(0x32, i) + v.publish(0x34, i + 1000 & 65535) for i in ids])
            assert feed(c, data) == 0
            sent = drain(c)
            while c.stalled:
                assert c.feed(0) == 0
                sent += drain(c)
            assert sent == expected


# -- what is sent again ------------------------------------------------------------------------------------------------


def test_what_is_sent_again_is_the_same_but_for_dup() -> None:
    """[2.3.1-3, 3.3.1-1, 4.4.0-1, 4.6.0-1]: the same ids, the same order, on each connection until it is acknowledged.

    A message that had its PUBREC is a PUBREL from then on [4.3.3-1; 4.3.3-5, 4.3.3-6], and goes before the messages.
    """
    for v in VERSIONS:
        c = v.client()
        ids = [c.publish(b"t", b"%d" % n, 1 + n % 2, n == 2) for n in range(4)]
        first = split(drain(c))
        assert [packet[0] for packet in first] == [0x32, 0x34, 0x33, 0x34]
        again = [bytes([packet[0] | 8]) + packet[1:] for packet in first]
        for _ in range(2):
            assert split(v.connect(c, v.resumed))[1:] == again
        assert feed(c, ack(0x50, ids[1])) == 0
        assert drain(c) == ack(0x62, ids[1])
        again = [ack(0x62, ids[1]), again[0]] + again[2:]
        for _ in range(2):
            assert split(v.connect(c, v.resumed))[1:] == again
        assert feed(c, ack(0x40, ids[0]) + ack(0x70, ids[1])) == 0
        assert split(v.connect(c, v.resumed))[1:] == again[2:]
        # What is acknowledged leaves its id to others.
        assert feed(c, ack(0x40, ids[2])) == 0
        c.publish(b"t", b"new", 1)
        assert drain(c)[0] == 0x32


def test_what_left_in_part_is_sent_again_with_dup() -> None:
    """[3.3.1-1]: how much of it has arrived is unknown. What had not begun to leave goes without."""
    for v in VERSIONS:
        c = v.client()
        one, two = c.publish(b"t", b"1", 1), c.publish(b"t", b"2", 2)
        assert c.out() > 1
        c.sent(1)
        again = split(v.connect(c, v.resumed))[1:]
        assert again == [v.publish(0x3A, one, b"1"), v.publish(0x34, two, b"2")]


def test_what_is_unacknowledged_waits_as_long_as_the_connection_lasts() -> None:
    """[4.1.0-1, 4.1.0-2, 4.3.2-1, 4.3.2-3, 4.3.3-3, 4.4.0-1]: for hours; nothing is sent twice on one connection."""
    for v in VERSIONS:
        c = v.client(keep_alive=600)
        done: list[int] = []
        c.on_delivered = done.append
        one, two = c.publish(b"t", b"1", 1), c.publish(b"t", b"2", 2)
        released = c.publish(b"t", b"3", 2)
        drain(c)
        assert feed(c, ack(0x50, released) + v.publish(0x34, 9)) == 0
        drain(c)
        pings = 0
        for now in range(0, 12 * 3600 * 1000, 60000):
            assert c.poll(now) == 0
            sent = drain(c)
            assert sent in (b"", b"\xc0\x00")
            if sent:
                pings += 1
                assert feed(c, b"\xd0\x00") == 0
        assert pings > 70 and not done and c.outbox.count == 3
        # Also the id of the message that came, until its PUBREL.
        assert feed(c, v.publish(0x3C, 9)) == 0 and c.duplicates == 1
        assert feed(c, ack(0x40, one) + ack(0x50, two) + ack(0x70, two) + ack(0x70, released)) == 0
        assert done == [one, two, released]


def test_a_session_that_begins_anew_has_nothing_of_the_one_before() -> None:
    """[3.1.2-6; 5.0: 3.1.2-4, 3.2.2-5]: on the wire nobody can tell that there was one.

    No PUBREL of it, no DUP, and an id that was open means another message.
    """
    for v in VERSIONS:
        for clean in (False, True):
            c = v.client(clean_start=clean)
            done: list[int] = []
            got: list[bytes] = []
            c.on_delivered = done.append
            c.on_message = lambda p, got=got: got.append(p.payload_bytes())
            ids = [c.publish(b"t", b"%d" % n, qos) for n, qos in enumerate((1, 2, 2))]
            first = split(drain(c))
            assert feed(c, ack(0x50, ids[1]) + v.publish(0x34, 9, b"before")) == 0
            drain(c)
            assert split(v.connect(c, v.accepted))[1:] == [first[0], first[2]]
            assert done == [ids[1]]
            assert feed(c, v.publish(0x34, 9, b"behind")) == 0
            assert got == [b"before", b"behind"] and c.duplicates == 0


def test_qos_0_is_sent_once_and_without_dup() -> None:
    """[3.3.1-2, 4.3.1-1, 2.3.1-5, 2.2.1-2]: also when its connection broke, and without a packet id."""
    for v in VERSIONS:
        c = v.client()
        data = v.publish(0x30, 0)
        for taken in (0, 1, 3):
            assert c.publish(b"t", b"m") == 0
            assert c.out() == len(data)
            if taken:
                c.sent(taken)
            assert [packet[0] for packet in split(v.connect(c, v.resumed))] == [0x10]
            assert c.publish(b"t", b"m") == 0 and drain(c) == data


def test_a_message_passed_on_is_no_repetition() -> None:
    """[3.3.1-3]: DUP is ours alone, whatever the message had that is published again."""
    for v in VERSIONS:
        c = v.client()

        def pass_on(p: "Packet", c: ClientSession = c) -> None:
            assert p.dup()
            assert c.publish(p.topic_bytes(), p.payload_bytes(), p.qos()) > 0

        c.on_message = pass_on
        assert feed(c, v.publish(0x3A, 5) + v.publish(0x3C, 6)) == 0
        heads = [packet[0] for packet in split(drain(c))]
        assert [head for head in heads if head >> 4 == 3] == [0x32, 0x34]


# -- what arrives ------------------------------------------------------------------------------------------------------


def test_an_id_means_another_message_once_it_is_answered() -> None:
    """At QoS 1 behind PUBACK, whatever DUP says [4.3.2-2; 4.3.2-5]; at QoS 2 behind PUBCOMP and not sooner [4.3.3-2;
    4.3.3-10, 4.3.3-12]."""
    for v in VERSIONS:
        c = v.client()
        got: list[bytes] = []
        c.on_message = lambda p, got=got: got.append(p.payload_bytes())
        for n, head in enumerate((0x32, 0x3A, 0x32)):
            assert feed(c, v.publish(head, 9, b"%d" % n)) == 0
            assert drain(c) == ack(0x40, 9)
        assert got == [b"0", b"1", b"2"]
        got.clear()
        for n, head in enumerate((0x34, 0x3C, 0x34)):
            assert feed(c, v.publish(head, 9, b"%d" % n)) == 0
            assert drain(c) == ack(0x50, 9)
        # Another connection to the same session makes no difference.
        v.connect(c, v.resumed)
        assert feed(c, v.publish(0x3C, 9, b"3")) == 0
        assert drain(c) == ack(0x50, 9)
        assert got == [b"0"]
        assert feed(c, ack(0x62, 9) + v.publish(0x3C, 9, b"4")) == 0
        assert drain(c) == ack(0x70, 9) + ack(0x50, 9)
        assert got == [b"0", b"4"]


def test_what_nobody_wants_is_answered_all_the_same() -> None:
    """[4.5.0-2]: without a handler, and from a topic that was never asked for."""
    for v in VERSIONS:
        c = v.client()
        c.on_message = None
        assert feed(c, v.publish(0x30, 0) + v.publish(0x32, 4) + v.publish(0x34, 5)) == 0
        assert drain(c) == ack(0x40, 4) + ack(0x50, 5)
        assert feed(c, ack(0x62, 5)) == 0
        assert drain(c) == ack(0x70, 5)


def test_what_breaks_the_protocol_ends_the_connection() -> None:
    """[4.8.0-1; 5.0: 4.13.2-1], at either version; what was good before it is delivered, what is behind it is not."""
    for v in VERSIONS:
        for bad in (
            b"\x00\x00",
            b"\x10\x00",
            v.accepted,
            v.publish(0x36, 1),
            v.publish(0x32, 0),
            b"\xc0\x00",
        ):
            c = v.client()
            got: list[bytes] = []
            c.on_message = lambda p, got=got: got.append(p.payload_bytes())
            status = feed(c, v.publish(0x30, 0, b"good") + bad + v.publish(0x30, 0, b"behind"))
            assert errors.blame(status) == errors.PEER, bad
            assert c.state == ERROR and got == [b"good"]
            drain(c)
            assert c.out() == c.feed(0) == c.poll(1) == status


def test_nothing_leaves_behind_disconnect() -> None:
    """[3.14.4-2; 5.0: 3.14.4-1]: neither messages that wait, nor answers, nor pings."""
    for v in VERSIONS:
        for sent_before in (False, True):
            c = v.client(keep_alive=10, window=2)
            assert c.publish(b"t", b"1", 1) == 1 and c.publish(b"t", b"2", 2) == 2
            if sent_before:
                drain(c)
            assert c.publish(b"t", b"3", 1) == 3
            assert c.disconnect() == 0
            assert feed(c, ack(0x40, 1) + ack(0x50, 2) + v.publish(0x32, 7) + v.publish(0x34, 8)) == 0
            assert c.publish(b"t", b"") == c.subscribe(b"t") == c.unsubscribe(b"t") == errors.E_OFFLINE
            assert c.publish(b"t", b"4", 1) == 4
            assert c.poll(8000) == 0
            assert drain(c) == b"\xe0\x00"
            assert c.disconnect() == 0 and c.out() == 0
            # They wait for the next connection.
            assert len(split(v.connect(c, v.resumed))) == 1 + 2
