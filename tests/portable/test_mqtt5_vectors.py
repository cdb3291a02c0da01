# heap: 1M
"""The shared MQTT 5.0 vectors through the decoders and encoders: whole, byte by byte, with bytes behind."""

import vectors
from packets5 import NAMES, encoded, expected, fields

from headwater import errors
from headwater.mqtt import packets_server, spec
from headwater.mqtt.properties import Packet5
from headwater.names5 import PROPERTIES
from headwater.reasons import REASONS, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Row = dict[str, Any]

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
    errors.E_PROPERTY,
    errors.E_REPEATED,
    errors.E_VALUE,
)
# A packet that may follow another one.
BEHIND = b"\x30\x06\x00\x01z\x00!!"


def rows() -> "Iterator[tuple[Row, bytes]]":
    for row in vectors.rows("mqtt5", "packets"):
        yield row, vectors.unhex(row["hex"])


def outcome(p: "Packet5", at: int, end: int) -> "tuple[str, int]":
    """What the decoder says of ``buf[at:end]``: ("ok", length), or (reason, offset in the packet)."""
    stop = packets_server.decode_packet(p, at, end)
    if stop > 0:
        return "ok", stop - at
    return (reason(stop), p.bad_at - at) if stop else ("truncated", end - at)


def wanted(row: "Row", data: bytes) -> "tuple[str, int]":
    return (row["error"]["reason"], row["error"]["offset"]) if "error" in row else ("ok", len(data))


def test_rows_are_complete() -> None:
    """Every packet, and every property in every packet that it may stand in; and every error there is."""
    kinds = set()
    reasons = set()
    stand: set[tuple[str, str]] = set()
    for row, data in rows():
        assert row["section"] and data, row["name"]
        assert ("packet" in row) != ("error" in row), row["name"]
        if "error" in row:
            reasons.add(row["error"]["reason"])
            assert 0 <= row["error"]["offset"] <= len(data), row["name"]
            continue
        packet = row["packet"]
        kinds.add(packet["type"])
        for name, _ in packet.get("properties", ()):
            stand.add((packet["type"], name))
        for name, _ in (packet.get("will") or {}).get("properties", ()):
            stand.add(("", name))
    assert kinds == set(NAMES) - {""}
    assert len(stand) == 64, len(stand)
    assert {name for _, name in stand} == set(PROPERTIES.values())
    missing = {REASONS[code][0] for code in MALFORMED} - reasons
    assert not missing, missing


def test_decode_whole() -> None:
    for row, data in rows():
        p = Packet5(data)
        got = outcome(p, 0, len(data))
        assert got == wanted(row, data), (row["name"], got)
        if "packet" in row:
            assert fields(p) == expected(row), (row["name"], fields(p))


def test_decode_byte_by_byte() -> None:
    for row, data in rows():
        if len(data) > 2000:
            continue
        p = Packet5(data)
        final = outcome(p, 0, len(data))
        for n in range(len(data)):
            got = outcome(p, 0, n)
            if got != ("truncated", n):
                # An error may show before the packet is whole, and then stays what it is.
                assert got == final and final[0] != "ok", (row["name"], n, got)


def test_decode_with_bytes_behind_and_before() -> None:
    for row, data in rows():
        if "error" in row and row["error"]["reason"] == "truncated":
            continue
        for behind in (b"\x00", b"\xff\xff", BEHIND):
            whole = b"\x55\xaa\x30" + data + behind
            p = Packet5(whole)
            assert outcome(p, 3, len(whole)) == wanted(row, data), row["name"]
            if "packet" in row:
                assert fields(p) == expected(row), row["name"]


def test_a_decoder_is_reusable() -> None:
    """What a packet before has left in the cursor does not show in the next."""
    buf = bytearray(1000)
    p = Packet5(buf)
    for row, data in rows():
        if len(data) > len(buf):
            continue
        buf[: len(data)] = data
        assert outcome(p, 0, len(data)) == wanted(row, data), row["name"]
        if "packet" in row:
            assert fields(p) == expected(row), row["name"]


def test_encode() -> None:
    for row in vectors.rows("mqtt5", "encode"):
        want = vectors.unhex(row["hex"])
        n = len(want)
        buf = bytearray(b"\x55" * (n + 8))
        end = encoded(row["call"], row["arguments"], buf, 3, n + 3)
        assert end == n + 3, (row["name"], end)
        assert buf[3:end] == want, (row["name"], buf[3:end])
        assert buf[:3] == b"\x55" * 3 and buf[end:] == b"\x55" * 5 and len(buf) == n + 8, row["name"]


def test_encode_without_room() -> None:
    for row in vectors.rows("mqtt5", "encode"):
        n = len(vectors.unhex(row["hex"]))
        if n > 300:
            continue
        buf = bytearray(b"\x55" * (n + 8))
        for limit in range(3, n + 3):
            end = encoded(row["call"], row["arguments"], buf, 3, limit)
            assert end == errors.E_TOO_LARGE, (row["name"], limit, end)
            assert buf[limit:] == b"\x55" * (n + 8 - limit), (row["name"], limit)


def test_every_packet_we_write_is_read_back() -> None:
    for row in vectors.rows("mqtt5", "encode"):
        data = vectors.unhex(row["hex"])
        p = Packet5(data)
        assert packets_server.decode_packet(p, 0, len(data)) == len(data), row["name"]
        if p.kind() not in (spec.CONNECT, spec.PINGREQ, spec.PINGRESP):
            want = [[name, value] for name, value in row["arguments"]["properties"]]
            assert fields(p)["properties"] == want, row["name"]
