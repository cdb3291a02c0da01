# heap: 1M
# heap: 16M
"""The shared MQTT vectors through the decoders and both sessions: whole, in pieces, with bytes behind.

Whatever the pieces and the size of the receive buffer, a packet has one outcome.
"""

import vectors

from headwater import errors
from headwater.connection import CLOSING, ERROR, ONLINE
from headwater.mqtt import packets, packets_server, spec
from headwater.mqtt.server import ServerSession
from headwater.mqtt.session import ClientSession
from headwater.mqtt.streaming import stream_to
from headwater.reasons import REASONS, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from headwater.mqtt.packets import Packet
    from headwater.mqtt.packets_server import Connect
    from headwater.types import Bytes

    Row = dict[str, Any]

NAMES = (
    "",
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
    "",
)
# What is wrong with a packet, as opposed to when it comes.
MALFORMED = (
    errors.E_LENGTH,
    errors.E_TYPE,
    errors.E_FLAGS,
    errors.E_RX_QOS,
    errors.E_SIZE,
    errors.E_FIELD,
    errors.E_UTF8,
    errors.E_RX_TOPIC,
    errors.E_PACKET_ID,
    errors.E_PROTOCOL,
    errors.E_CODE,
    errors.E_TRUNCATED,
)
# Receive buffers: the smallest there is, one that is no multiple of eight, a board's, and one that holds every row.
SIZES = (16, 61, 512, 80000)
PIECES = (1, 7, 100000)
# A packet that follows another one, and what it delivers.
BEHIND = b"\x30\x05\x00\x01z!!"


def rows() -> "Iterator[tuple[Row, bytes]]":
    for row in vectors.rows("mqtt", "packets"):
        yield row, vectors.unhex(row["hex"])


def text(buf: "Bytes", at: int, end: int) -> "str | None":
    return str(buf[at:end], "utf-8") if at >= 0 else None


def connect_fields(p: "Packet", c: "Connect") -> "dict[str, object]":
    buf = bytes(p.buf)
    will: dict[str, object] | None = None
    if c.will_topic_at >= 0:
        will = {
            "topic": text(buf, c.will_topic_at, c.will_topic_end),
            "message": buf[c.will_payload_at : c.will_payload_end],
            "qos": c.will_qos(),
            "retain": c.will_retain(),
        }
    return {
        "type": "CONNECT",
        "protocol_name": text(buf, p.body + 2, p.body + 6),
        "protocol_level": c.level,
        "clean_session": c.clean_start(),
        "keep_alive": c.keep_alive,
        "client_id": text(buf, c.client_id_at, c.client_id_end),
        "will": will,
        "user_name": text(buf, c.user_at, c.user_end),
        "password": buf[c.password_at : c.password_end] if c.password_at >= 0 else None,
    }


def fields(p: "Packet") -> "dict[str, object]":
    """What a decoded packet says, as the vector file writes it."""
    kind = NAMES[p.kind()]
    buf = p.buf
    if kind == "CONNECT":
        c = packets_server.Connect()
        assert packets_server.decode_connect(p, c) == 0
        return connect_fields(p, c)
    if kind == "CONNACK":
        return {"type": kind, "session_present": p.session_present, "return_code": p.code}
    if kind == "PUBLISH":
        return {
            "type": kind,
            "dup": p.dup(),
            "qos": p.qos(),
            "retain": p.retain(),
            "topic": p.topic_bytes(),
            "packet_id": p.packet_id or None,
            "payload": p.payload_bytes(),
        }
    if kind == "SUBACK":
        return {"type": kind, "packet_id": p.packet_id, "return_codes": list(buf[p.payload_at : p.end])}
    if kind in ("SUBSCRIBE", "UNSUBSCRIBE"):
        found: list[object] = []
        qos = packets_server.next_filter(p)
        while qos >= 0:
            name = text(buf, p.topic_at, p.topic_end)
            found.append({"filter": name, "qos": qos} if kind == "SUBSCRIBE" else name)
            qos = packets_server.next_filter(p)
        assert len(found) == p.code
        return {"type": kind, "packet_id": p.packet_id, "filters": found}
    if kind in ("PINGREQ", "PINGRESP", "DISCONNECT"):
        return {"type": kind}
    return {"type": kind, "packet_id": p.packet_id}


def expected(row: "Row") -> "dict[str, object]":
    """A row's packet with its notations expanded."""
    want = dict(row["packet"])
    if want["type"] == "PUBLISH":
        want["topic"] = vectors.text_of(want, "topic")
        want.pop("topic_hex", None)
        want["payload"] = vectors.unhex(want["payload"])
    if want["type"] == "CONNECT":
        want["client_id"] = str(vectors.text_of(want, "client_id"), "utf-8")
        want.pop("client_id_hex", None)
    if want.get("password") is not None:
        want["password"] = vectors.unhex(want["password"])
    if want.get("will") is not None:
        want["will"] = dict(want["will"])
        want["will"]["message"] = vectors.unhex(want["will"]["message"])
    return want


def outcome(p: "Packet", at: int, end: int) -> "tuple[str, int]":
    """What the decoder says of ``buf[at:end]``: ("ok", length), or (reason, offset in the packet)."""
    stop = packets_server.decode_packet(p, at, end)
    if stop > 0:
        return "ok", stop - at
    return (reason(stop), p.bad_at - at) if stop else ("truncated", end - at)


def code_of(row: "Row") -> int:
    """The status code of a row's error."""
    return next(code for code in REASONS if REASONS[code][0] == row["error"]["reason"])


def test_rows_are_complete() -> None:
    names = set()
    kinds = set()
    reasons = set()
    for row, data in rows():
        assert row["name"] not in names, row["name"]
        names.add(row["name"])
        assert row["section"]
        assert data
        assert ("packet" in row) != ("error" in row), row["name"]
        if "packet" in row:
            kinds.add(row["packet"]["type"])
        else:
            reasons.add(row["error"]["reason"])
            assert 0 <= row["error"]["offset"] <= len(data), row["name"]
    assert kinds == set(NAMES) - {""}
    missing = {REASONS[code][0] for code in MALFORMED} - reasons
    assert not missing, missing


def test_decode_whole() -> None:
    for row, data in rows():
        p = packets.Packet(data)
        got = outcome(p, 0, len(data))
        if "error" in row:
            assert got == (row["error"]["reason"], row["error"]["offset"]), (row["name"], got)
        else:
            assert got == ("ok", len(data)), (row["name"], got)
            assert fields(p) == expected(row), (row["name"], fields(p))


def test_decode_byte_by_byte() -> None:
    for row, data in rows():
        p = packets.Packet(data)
        final = outcome(p, 0, len(data))
        n = 0
        while n < len(data):
            got = outcome(p, 0, n)
            if got != ("truncated", n):
                # An error may show before the packet is whole, and then stays what it is.
                assert got == final and final[0] != "ok", (row["name"], n, got)
            n += 1


def test_decode_with_bytes_behind_and_before() -> None:
    for row, data in rows():
        if "error" in row and row["error"]["reason"] == "truncated":
            continue
        want = outcome(packets.Packet(data), 0, len(data))
        for behind in (b"\x00", b"\xff\xff", BEHIND, data[:100]):
            whole = b"\x55\xaa\x30" + data + behind
            p = packets.Packet(whole)
            assert outcome(p, 3, len(whole)) == want, row["name"]
            if "packet" in row and row["packet"]["type"] != "CONNECT":
                assert fields(p) == expected(row), row["name"]


def test_a_decoder_is_reusable() -> None:
    """What a packet before has left in the cursor does not show in the next."""
    longest = 1000
    buf = bytearray(longest)
    p = packets.Packet(buf)
    for row, data in rows():
        if len(data) > longest:
            continue
        buf[: len(data)] = data
        got = outcome(p, 0, len(data))
        if "error" in row:
            assert got == (row["error"]["reason"], row["error"]["offset"]), row["name"]
        else:
            assert fields(p) == expected(row), row["name"]


# -- sessions ----------------------------------------------------------------------------------------------------------


class Sink:
    """Puts the messages that are larger than the buffer together."""

    def __init__(self, got: "list[dict[str, object]]"):
        self._got = got
        self._fields: dict[str, object] = {}
        self._size = 0
        self._payload: bytearray | None = None

    def open(self, p: "Packet", size: int) -> bool:
        assert self._payload is None
        self._fields = fields(p)
        self._size = size
        self._payload = bytearray()
        return True

    def write(self, buf: "Bytes", at: int, n: int) -> None:
        assert self._payload is not None
        assert n > 0
        self._payload += bytes(buf[at : at + n])

    def close(self, complete: bool) -> None:
        payload = self._payload
        assert payload is not None
        self._payload = None
        if complete:
            assert len(payload) == self._size
            self._fields["payload"] = payload
            self._got.append(self._fields)


class Side:
    """A session under test: what it delivered, and how it came to a state in which a row's packet may arrive."""

    def __init__(self, session: "ClientSession | ServerSession"):
        self.session = session
        self.got: list[dict[str, object]] = []
        self.connects: list[dict[str, object]] = []
        self.online: list[bool] = []
        session.on_message = lambda p: self.got.append(fields(p))
        stream_to(session, Sink(self.got))
        if isinstance(session, ServerSession):
            session.on_connect = self._on_connect
        else:
            session.on_online = self.online.append

    def _on_connect(self, c: "Connect", p: "Packet") -> int:
        self.connects.append(connect_fields(p, c))
        return 0

    def begin(self, kind: int) -> None:
        """Bring the session to where a packet of this type is expected."""
        s = self.session
        self.got.clear()
        self.connects.clear()
        self.online.clear()
        s.lost()
        s.skipped = 0
        if isinstance(s, ServerSession):
            s.listen(0)
            if kind != spec.CONNECT:
                self.feed(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00", 5)
        else:
            assert s.connect(0) == 0
            if kind != spec.CONNACK:
                self.feed(b"\x20\x02\x00\x00", 5)
        self.drain()
        self.connects.clear()
        self.online.clear()

    def drain(self) -> bytes:
        """Take everything the session has to send."""
        s = self.session
        data = b""
        n = s.out()
        while n > 0:
            data += bytes(s.out_buf[s.out_at : s.out_at + n])
            s.sent(n)
            n = s.out()
        return data

    def feed(self, data: bytes, piece: int) -> int:
        """Feed in pieces of at most ``piece`` bytes, as far as there is room: the last status."""
        s = self.session
        rx = s.rx
        at = 0
        while at < len(data):
            n = min(piece, rx.window(), len(data) - at)
            assert n > 0, "no room to read into"
            rx.view[:n] = data[at : at + n]
            bad = s.feed(n)
            if bad:
                return bad
            at += n
        return 0


def takes(server: bool, head: int) -> bool:
    """Whether a packet that begins with ``head`` may come to this end, or nobody may take it."""
    kind = head >> 4
    if kind in (spec.CONNECT, spec.SUBSCRIBE, spec.UNSUBSCRIBE, spec.PINGREQ, spec.DISCONNECT):
        return server
    if kind in (spec.CONNACK, spec.SUBACK, spec.UNSUBACK, spec.PINGRESP):
        return not server
    return True


def header_size(data: bytes) -> int:
    n = 2
    while data[n - 1] > 127:
        n += 1
    return n


def announced(data: bytes) -> int:
    """The length of the packet that begins here, by its fixed header; 0 when that is not all there."""
    size = 0
    for i in range(1, min(5, len(data))):
        size |= (data[i] & 127) << 7 * (i - 1)
        if data[i] < 128:
            return size + i + 1
    return 0


def check_row(side: Side, row: "Row", data: bytes, piece: int, behind: bool) -> None:
    server = isinstance(side.session, ServerSession)
    where = (row["name"], "server" if server else "client", side.session.rx.size, piece, behind)
    s = side.session
    kind = data[0] >> 4
    side.begin(kind)
    status = side.feed(data + BEHIND if behind else data, piece)
    capacity = s.rx.capacity
    follows = 1 if behind else 0
    if "error" in row:
        why = row["error"]["reason"]
        if why == "truncated":
            too_large = kind != spec.PUBLISH and announced(data) > capacity
            assert status == (errors.E_RX_TOO_LARGE if too_large else 0), (where, status)
            side.session.lost()
            assert not side.got, where
            return
        code = code_of(row)
        if row["error"]["offset"] and code != errors.E_LENGTH and len(data) > capacity:
            # Too large for this buffer: of PUBLISH the topic is not looked at, and others are an error of their own.
            if kind == spec.PUBLISH:
                topic_end = (
                    header_size(data) + 2 + (data[header_size(data)] << 8 | data[header_size(data) + 1])
                )
                if topic_end > capacity and topic_end <= len(data):
                    assert status == 0 and s.skipped == 1 and len(side.got) == follows, where
                    return
            elif kind in (spec.CONNECT, spec.SUBSCRIBE, spec.SUBACK, spec.UNSUBSCRIBE):
                code = errors.E_RX_TOO_LARGE
        if kind == spec.CONNECT and code == errors.E_PROTOCOL and row["error"]["offset"] == 8:
            # The level alone is not spoken here: that is answered [MQTT-3.1.2-2].
            assert status == 0 and s.state == CLOSING, where
            assert side.drain() == b"\x20\x02\x00\x01", where
            return
        assert status == code, (where, status)
        assert s.state == ERROR and s.status == code and s.out() == code, where
        assert not side.got and not side.connects and not side.online, where
        assert s.feed(0) == code, where
        return
    want = expected(row)
    if kind == spec.PUBLISH:
        head = header_size(data) + 2 + len(want["topic"]) + (2 if want["qos"] else 0)  # type: ignore[arg-type]
        assert status == 0, (where, status)
        if head > capacity:
            assert s.skipped == 1 and len(side.got) == follows, where
        else:
            assert len(side.got) == 1 + follows and side.got[0] == want, (where, side.got)
        return
    if len(data) > capacity:
        assert status == errors.E_RX_TOO_LARGE, (where, status)
        return
    if kind == spec.SUBACK and len(want["return_codes"]) != 1:  # type: ignore[arg-type]
        # One filter is asked for at a time.
        assert status == errors.E_SIZE, where
        return
    if kind == spec.CONNACK:
        refused = want["return_code"] != 0
        assert status == (errors.E_REFUSED if refused else 0), (where, status)
        assert side.online == ([] if refused else [want["session_present"]]), where
        assert isinstance(s, ClientSession) and s.return_code == want["return_code"], where
        return
    assert status == 0, (where, status)
    if kind == spec.CONNECT:
        if not want["client_id"] and not want["clean_session"]:
            assert s.state == CLOSING and side.drain() == b"\x20\x02\x00\x02", where
        else:
            assert s.state == ONLINE and side.drain()[:4] == b"\x20\x02\x00\x00", where
            assert side.connects == [want], (where, side.connects)
    elif kind == spec.DISCONNECT:
        assert s.state == CLOSING and isinstance(s, ServerSession) and s.graceful, where
        return
    if s.state == ONLINE:
        assert len(side.got) == follows, where


def check_rows(side: Side) -> None:
    server = isinstance(side.session, ServerSession)
    for row, data in rows():
        if not takes(server, data[0]):
            continue
        for piece in PIECES:
            if (piece == 1 and len(data) > 2000) or (piece < 100 and len(data) > 20000):
                continue
            check_row(side, row, data, piece, False)
            if piece > 1 and ("error" not in row or row["error"]["reason"] != "truncated"):
                check_row(side, row, data, piece, True)


def _session(server: bool, size: int) -> Side:
    if server:
        return Side(ServerSession(rx_size=size, tx_size=64))
    return Side(ClientSession(b"c", keep_alive=0, clean_start=False, rx_size=size, tx_size=64))


def test_client_smallest_buffer() -> None:
    check_rows(_session(False, SIZES[0]))


def test_client_odd_buffer() -> None:
    check_rows(_session(False, SIZES[1]))


def test_client_usual_buffer() -> None:
    check_rows(_session(False, SIZES[2]))


def test_client_large_buffer() -> None:
    check_rows(_session(False, SIZES[3]))


def test_server_smallest_buffer() -> None:
    # CONNECT does not fit into 16 bytes: only that it is refused, and broken packets, can be seen.
    side = _session(True, SIZES[0])
    for row, data in rows():
        if data[0] >> 4 == spec.CONNECT:
            check_row(side, row, data, 3, False)


def test_server_odd_buffer() -> None:
    check_rows(_session(True, SIZES[1]))


def test_server_usual_buffer() -> None:
    check_rows(_session(True, SIZES[2]))


def test_server_large_buffer() -> None:
    check_rows(_session(True, SIZES[3]))
