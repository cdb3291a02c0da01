# heap: 2M
"""The shared MQTT vectors of every version through the codec, and 3.1.1's through both sessions.

Packets come whole, in pieces, and with bytes behind. Whatever the pieces and the size of the receive buffer, a packet
has one outcome.
"""

import vectors
from mqtt_rows import FILES as LEVELS
from mqtt_rows import NAMES, connect_fields, cursor, encoded, expected, fields, outcome, wanted
from mqtt_rows import rows as rows_of
from rows import each

from headwater import errors
from headwater.connection import CLOSING, ERROR, ONLINE
from headwater.mqtt import packets, spec
from headwater.mqtt.server import ServerSession
from headwater.mqtt.session import ClientSession
from headwater.names5 import PROPERTIES
from headwater.reasons import REASONS
from headwater.streaming import stream_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headwater.mqtt.packets import Packet
    from headwater.mqtt.packets_server import Connect
    from headwater.types import Bytes

    Row = dict[str, Any]

# What is wrong with a packet, as opposed to when it comes.
MALFORMED = (
    errors.E_LENGTH, errors.E_TYPE, errors.E_FLAGS, errors.E_RX_QOS, errors.E_SIZE, errors.E_FIELD, errors.E_UTF8,
    errors.E_RX_TOPIC, errors.E_PACKET_ID, errors.E_PROTOCOL, errors.E_CODE, errors.E_TRUNCATED,
)  # fmt: skip
MALFORMED5 = (errors.E_PROPERTY, errors.E_REPEATED, errors.E_VALUE)
# Receive buffers: the smallest there is, one that is no multiple of eight, a board's, and one that holds every row.
SIZES = (16, 61, 512, 80000)
PIECES = (1, 7, 100000)
# A packet that follows another one, and what it delivers.
BEHIND = b"\x30\x05\x00\x01z!!"


def code_of(row: "Row") -> int:
    """The status code of a row's error."""
    return next(code for code in REASONS if REASONS[code][0] == row["error"]["reason"])


def test_rows_are_complete() -> None:
    """Every packet, every error, and every property in every packet that it may stand in."""
    for level, kinds_of in ((4, NAMES[1:15]), (5, NAMES[1:])):
        names, kinds, reasons = set(), set(), set()
        stand: set[tuple[str, str]] = set()
        for name, row, data in rows_of(level):
            assert name not in names, name
            names.add(name)
            assert row["section"] and data, name
            assert ("packet" in row) != ("error" in row), name
            if "error" in row:
                reasons.add(row["error"]["reason"])
                assert 0 <= row["error"]["offset"] <= len(data), name
                continue
            packet = row["packet"]
            kinds.add(packet["type"])
            for ident, _ in packet.get("properties", ()):
                stand.add((packet["type"], ident))
            for ident, _ in (packet.get("will") or {}).get("properties", ()):
                stand.add(("", ident))
        assert kinds == set(kinds_of)
        missing = {REASONS[code][0] for code in MALFORMED + (MALFORMED5 if level == 5 else ())} - reasons
        assert not missing, missing
        if level == 5:
            assert len(stand) == 64, len(stand)
            assert {ident for _, ident in stand} == set(PROPERTIES.values())


def test_decode_whole() -> None:
    """Alone, and between other bytes."""
    for level in LEVELS:

        def decode(name: str, row: "Row", data: bytes, level: int = level) -> None:
            assert outcome(level, cursor(level, data), 0, len(data)) == wanted(row, data)
            surrounded = [(b"", b"")]
            if wanted(row, data)[0] != "truncated":
                surrounded += [
                    (b"\x55\xaa\x30", behind) for behind in (b"\x00", b"\xff\xff", BEHIND, data[:100])
                ]
            for before, behind in surrounded:
                whole = before + data + behind
                p = cursor(level, whole)
                assert outcome(level, p, len(before), len(whole)) == wanted(row, data), behind
                if "packet" in row:
                    assert fields(level, p) == expected(row), fields(level, p)

        each(rows_of(level), decode)


def test_decode_byte_by_byte() -> None:
    for level in LEVELS:

        def decode(name: str, row: "Row", data: bytes, level: int = level) -> None:
            if level == 5 and len(data) > 2000:
                return
            p = cursor(level, data)
            final = outcome(level, p, 0, len(data))
            for n in range(len(data)):
                got = outcome(level, p, 0, n)
                if got != ("truncated", n):
                    # An error may show before the packet is whole, and then stays what it is.
                    assert got == final and final[0] != "ok", (n, got)

        each(rows_of(level), decode)


def test_a_decoder_is_reusable() -> None:
    """What a packet before has left in the cursor does not show in the next."""
    for level in LEVELS:
        buf = bytearray(1000)
        p = cursor(level, buf)

        def decode(name: str, row: "Row", data: bytes, level: int = level, p: "Packet" = p) -> None:
            if len(data) > len(p.buf):
                return
            p.buf[: len(data)] = data  # type: ignore[index]
            assert outcome(level, p, 0, len(data)) == wanted(row, data)
            if "packet" in row:
                assert fields(level, p) == expected(row)

        each(rows_of(level), decode)


def test_what_is_the_same_is_read_the_same() -> None:
    """3.1.1's packets, but for CONNECT, are 3.1's; its reserved flags are not looked at."""
    for name, row, data in rows_of(4):
        if data[0] >> 4 != spec.CONNECT and row.get("error", {}).get("reason") != "bad_flags":
            ends = [outcome(level, cursor(level, data), 0, len(data)) for level in (3, 4)]
            assert ends[0] == ends[1], name


def test_encode() -> None:
    """With just the room it needs, and with any less; what is written is read back."""
    for level in LEVELS:

        def encode(name: str, row: "Row", level: int = level) -> None:
            want = vectors.unhex(row["hex"])
            n = len(want)
            buf = bytearray(b"\x55" * (n + 8))
            end = encoded(level, row["call"], row["arguments"], buf, 3, n + 3)
            assert end == n + 3 and buf[3:end] == want, (end, buf[3:end])
            # Nothing is written before or behind, and the buffer is as long as it was.
            assert buf[:3] == b"\x55" * 3 and buf[end:] == b"\x55" * 5 and len(buf) == n + 8
            buf = bytearray(b"\x55" * (n + 8))
            for limit in range(3, n + 3 if n <= 300 else 0):
                end = encoded(level, row["call"], row["arguments"], buf, 3, limit)
                assert end == errors.E_TOO_LARGE, (limit, end)
                assert buf[limit:] == b"\x55" * (n + 8 - limit), limit
            p = cursor(level, want)
            assert outcome(level, p, 0, n) == ("ok", n)
            if level == 5 and p.kind() not in (spec.CONNECT, spec.PINGREQ, spec.PINGRESP):
                properties = [[name, value] for name, value in row["arguments"]["properties"]]
                assert fields(5, p)["properties"] == properties
            if level == 4 and row["call"] == "publish":
                a = row["arguments"]
                topic, payload = vectors.text_of(a, "topic"), vectors.unhex(a["payload"])
                assert packets.publish_size(topic, payload, a["qos"]) == n

        each([(row["name"], row) for row in vectors.rows(LEVELS[level], "encode")], encode)


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
        self._fields = fields(4, p)
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
        session.on_message = lambda p: self.got.append(fields(4, p))
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
        head = header_size(data) + 2 + len(want["topic"]) + (2 if want["qos"] else 0)
        assert status == 0, (where, status)
        if head > capacity:
            assert s.skipped == 1 and len(side.got) == follows, where
        else:
            assert len(side.got) == 1 + follows and side.got[0] == want, (where, side.got)
        return
    if len(data) > capacity:
        assert status == errors.E_RX_TOO_LARGE, (where, status)
        return
    if kind == spec.SUBACK and len(want["return_codes"]) != 1:
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

    def check(name: str, row: "Row", data: bytes) -> None:
        for piece in PIECES if takes(server, data[0]) else ():
            if (piece == 1 and len(data) > 2000) or (piece < 100 and len(data) > 20000):
                continue
            check_row(side, row, data, piece, False)
            if piece > 1 and wanted(row, data)[0] != "truncated":
                check_row(side, row, data, piece, True)

    each(rows_of(4), check)


def _session(server: bool, size: int) -> Side:
    if server:
        return Side(ServerSession(rx_size=size, tx_size=64))
    return Side(ClientSession(b"c", keep_alive=0, clean_start=False, rx_size=size, tx_size=64))


def test_a_client_takes_the_vectors() -> None:
    each(SIZES, lambda size: check_rows(_session(False, size)))


def test_a_server_takes_the_vectors() -> None:
    each(SIZES[1:], lambda size: check_rows(_session(True, size)))
    # CONNECT does not fit into the smallest buffer: only that it is refused, and broken packets, can be seen.
    side = _session(True, SIZES[0])
    for _, row, data in rows_of(4):
        if data[0] >> 4 == spec.CONNECT:
            check_row(side, row, data, 3, False)
