"""Every MQTT decoder on arbitrary and on damaged bytes, and encoders and decoders as inverses of each other."""

from hypothesis import example, given
from hypothesis import strategies as st

from headwater import errors
from headwater.mqtt import packets, packets_server, spec
from headwater.mqtt.packets import check_filter, check_name
from headwater.mqtt.topics import matches
from headwater.reasons import REASONS
from headwater.wire import check_utf8, put_varint, varint_size
from tests.fuzz import mqtt_reference as reference
from tests.fuzz.guarded import Guarded
from tests.fuzz.packets import Sample, broken, names, sensible


def decoded(data: bytes, before: bytes = b"", behind: bytes = b"") -> tuple[int, int, packets.Packet]:
    """(the outcome, the offending offset, the cursor) for a packet between other bytes, none of which may be read."""
    buf = Guarded(before + data + behind)
    buf.start = len(before)
    buf.end = len(before) + len(data)
    p = packets.Packet(buf)
    got = packets_server.decode_packet(p, buf.start, buf.end)
    if got < 0:
        assert errors.blame(got) == errors.PEER and got in REASONS
        # The five-byte length may be known before its fifth byte is here.
        assert buf.start <= p.bad_at <= buf.end
        return got, p.bad_at - buf.start, p
    if got > 0:
        assert buf.start + 2 <= got <= buf.end
        walk(p)
        return got - buf.start, 0, p
    return 0, 0, p


def walk(p: packets.Packet) -> None:
    """No accessor fails behind a decoder that was content, nor reads outside of the packet."""
    kind = p.kind()
    if kind == spec.PUBLISH:
        assert str(p.topic_bytes(), "utf-8") == p.topic_text()
        assert p.topic_is(p.topic_bytes()) and not p.topic_is(p.topic_bytes() + b"x")
        p.payload_bytes()
        assert p.qos() < 3 and (p.packet_id > 0) == (p.qos() > 0)
    elif kind in (spec.SUBSCRIBE, spec.UNSUBSCRIBE):
        count = 0
        while (qos := packets_server.next_filter(p)) >= 0:
            assert qos < 3
            str(p.topic_bytes(), "utf-8")
            count += 1
        assert count == p.code > 0
    elif kind == spec.CONNECT:
        c = packets_server.Connect()
        assert packets_server.decode_connect(p, c) == 0
        for at, end in (
            (c.client_id_at, c.client_id_end),
            (c.will_topic_at, c.will_topic_end),
            (c.user_at, c.user_end),
        ):
            if at >= 0:
                str(p.buf[at:end], "utf-8")
    elif kind == spec.SUBACK:
        assert all(code in (0, 1, 2, 128) for code in p.buf[p.payload_at : p.end])


@given(st.binary(max_size=64), st.binary(max_size=8), st.binary(max_size=8))
@example(b"", b"", b"")
@example(b"\x30\xff\xff\xff\xff", b"", b"")
def test_any_bytes(data: bytes, before: bytes, behind: bytes) -> None:
    decoded(data, before, behind)


@given(broken, st.binary(max_size=5))
def test_damaged_packets(data: bytes, behind: bytes) -> None:
    length, bad_at, _ = decoded(data, b"\x00", behind)
    # Any beginning of it is either not enough, or shows the same error already.
    for n in range(len(data)):
        got, at, _ = decoded(data[:n])
        if got:
            assert (got, at) == (length, bad_at) or 0 < got == length <= n


@given(sensible)
def test_whole_packets_are_read_to_their_end(packet: Sample) -> None:
    data = packet.encoded
    assert decoded(data, b"\xff", b"\xff")[0] == len(data)
    for n in range(len(data)):
        assert decoded(data[:n])[0] == 0, "an early answer"


@given(sensible, st.integers(0, 40))
def test_encoders_keep_to_their_limit(packet: Sample, short: int) -> None:
    """A packet that does not fit is refused, and not a byte is written from the limit on."""
    size = len(packet.encoded)
    buf = bytearray(b"\xa5" * (size + 10))
    limit = max(3, 3 + size - short)
    end = packet.encode(buf, 3, limit)
    assert end == (3 + size if short == 0 else errors.E_TOO_LARGE)
    assert buf[:3] == b"\xa5" * 3
    assert buf[limit:] == b"\xa5" * (size + 10 - limit)
    assert len(buf) == size + 10


@given(names, st.binary(max_size=300), st.integers(0, 2), st.booleans(), st.booleans(), st.integers(1, 65535))
def test_publish_and_back(
    topic: str, payload: bytes, qos: int, retain: bool, dup: bool, packet_id: int
) -> None:
    name = topic.encode()
    head = 0x30 | qos << 1 | retain | (dup and qos > 0) << 3
    buf = bytearray(len(name) + len(payload) + 20)
    end = packets.encode_publish(buf, 0, len(buf), name, payload, head, packet_id if qos else 0)
    assert end == packets.publish_size(name, payload, qos)
    got, _, p = decoded(bytes(buf[:end]))
    assert got == end
    assert (p.topic_text(), p.payload_bytes(), p.qos(), p.retain()) == (topic, payload, qos, retain)
    assert p.dup() == (dup and qos > 0) and p.packet_id == (packet_id if qos else 0)


@given(
    names,
    st.integers(0, 65535),
    st.booleans(),
    st.none() | st.tuples(names, st.binary(max_size=40), st.integers(0, 2), st.booleans()),
    st.none() | st.tuples(names, st.none() | st.binary(max_size=40)),
)
def test_connect_and_back(
    client_id: str,
    keep_alive: int,
    clean: bool,
    will: tuple[str, bytes, int, bool] | None,
    login: tuple[str, bytes | None] | None,
) -> None:
    buf = bytearray(2000)
    topic, message, qos, retain = will or (None, b"", 0, False)
    user, password = login or (None, None)
    end = packets.encode_connect(
        buf,
        0,
        len(buf),
        client_id.encode(),
        keep_alive,
        clean,
        None if topic is None else topic.encode(),
        message,
        qos,
        retain,
        None if user is None else user.encode(),
        password,
    )
    got, _, p = decoded(bytes(buf[:end]))
    assert got == end
    c = packets_server.Connect()
    assert packets_server.decode_connect(p, c) == 0

    def cut(at: int, stop: int) -> bytes | None:
        return bytes(p.buf[at:stop]) if at >= 0 else None

    assert cut(c.client_id_at, c.client_id_end) == client_id.encode()
    assert (c.keep_alive, c.clean(), c.level) == (keep_alive, clean, 4)
    assert cut(c.will_topic_at, c.will_topic_end) == (None if topic is None else topic.encode())
    assert cut(c.will_payload_at, c.will_payload_end) == (None if topic is None else message)
    assert (c.will_qos(), c.will_retain()) == (qos, retain)
    assert cut(c.user_at, c.user_end) == (None if user is None else user.encode())
    assert cut(c.password_at, c.password_end) == password


@given(st.integers(1, 65535), st.lists(st.sampled_from([0, 1, 2, 128]), min_size=1, max_size=200))
def test_suback_and_back(packet_id: int, codes: list[int]) -> None:
    buf = bytearray(300)
    end = packets_server.encode_suback(buf, 0, len(buf), packet_id, bytes(codes))
    got, _, p = decoded(bytes(buf[:end]))
    assert got == end and p.packet_id == packet_id and list(p.buf[p.payload_at : p.end]) == codes


# -- what packets are made of ------------------------------------------------------------------------------------------


@given(st.binary(max_size=12) | st.text(max_size=6).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"\xed\xa0\x80")
@example(b"\xf4\x90\x80\x80")
@example(b"\xf0\x8f\xbf\xbf")
def test_utf8_is_what_python_says(data: bytes) -> None:
    bad = check_utf8(b"\xff" + data + b"\x80", 1, 1 + len(data)) - 1
    try:
        data.decode("utf-8")
        expected = data.find(0)
    except UnicodeDecodeError as error:
        zero = data.find(0)
        expected = zero if 0 <= zero < error.start else error.start
    assert bad == expected if expected >= 0 else bad < 0


@given(st.integers(0, 268435455))
@example(127)
@example(128)
@example(16383)
@example(16384)
@example(2097151)
@example(2097152)
def test_varint_and_back(value: int) -> None:
    buf = bytearray(8)
    end = put_varint(buf, 1, value)
    assert end - 1 == varint_size(value)
    p = packets.Packet(b"\x30" + bytes(buf[1:end]))
    assert packets.decode_header(p, 0, end) == end + value


_level = st.sampled_from(["", "a", "b", "ab", "$S"])
_names = st.lists(_level, min_size=1, max_size=4).map("/".join).filter(bool)
_patterns = st.lists(_level | st.just("+"), max_size=4).flatmap(
    lambda levels: st.sampled_from(["/".join(levels), "/".join([*levels, "#"])]).filter(bool)
)


@given(_patterns, _names)
@example("sport/#", "sport")
@example("+/+", "/finance")
@example("+", "/finance")
@example("#", "$SYS")
@example("$SYS/#", "$SYS")
def test_matching_is_the_specification_s(pattern: str, name: str) -> None:
    assert check_filter(pattern.encode(), 0, len(pattern)) == 0
    assert check_name(name.encode(), 0, len(name)) == 0
    got = matches(pattern.encode(), b"+" + name.encode() + b"/x", 1, 1 + len(name))
    assert got == reference.matches(pattern, name)


@given(st.text(st.sampled_from("a/+#$é\0"), max_size=6))
def test_names_and_filters_are_the_specification_s(text: str) -> None:
    data = text.encode()
    well_formed = bool(text) and "\0" not in text
    levels = text.split("/")
    good_filter = well_formed and all(
        not ({"+", "#"} & set(level)) or level == "+" or (level == "#" and i == len(levels) - 1)
        for i, level in enumerate(levels)
    )
    assert (check_filter(b"#" + data, 1, 1 + len(data)) == 0) == good_filter
    assert (check_name(data + b"#", 0, len(data)) == 0) == (well_formed and not {"+", "#"} & set(text))
