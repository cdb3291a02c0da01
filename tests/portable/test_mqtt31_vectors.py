# heap: 512K
"""The MQTT 3.1 vectors through its rules: whole, byte by byte, with bytes behind; and the encoder."""

import vectors
from packets5 import connect_fields
from test_mqtt_vectors import expected, fields, outcome

from headwater import errors
from headwater.mqtt import packets, packets_server, spec
from headwater.mqtt.packets import Packet
from headwater.mqtt.packets_server import Connect
from headwater.reasons import reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from headwater.types import Bytes

    Row = dict[str, Any]


def rows() -> "Iterator[tuple[Row, bytes]]":
    for row in vectors.rows("mqtt31", "packets"):
        yield row, vectors.unhex(row["hex"])


def cursor(data: "Bytes") -> Packet:
    p = Packet(data)
    p.flags = spec.FLAGS_31
    return p


def outcome31(p: Packet, at: int, end: int) -> "tuple[str, int]":
    stop = packets_server.decode_packet(p, at, end, spec.PROTOCOL_31)
    if stop > 0:
        return "ok", stop - at
    return (reason(stop), p.bad_at - at) if stop else ("truncated", end - at)


def said(p: Packet) -> "Row":
    if p.kind() != spec.CONNECT:
        return fields(p)
    c = Connect((spec.PROTOCOL_31,))
    assert packets_server.decode_connect(p, c) == 0
    return connect_fields(p, c)


def test_decode() -> None:
    for row, data in rows():
        want = (row["error"]["reason"], row["error"]["offset"]) if "error" in row else ("ok", len(data))
        for before, behind in ((b"", b""), (b"\x55\xaa", b"\x10\xff")):
            if behind and want[0] == "truncated":
                continue
            whole = before + data + behind
            p = cursor(whole)
            got = outcome31(p, len(before), len(whole))
            assert got == want, (row["name"], got)
            if "packet" in row:
                assert said(p) == expected(row), (row["name"], said(p))


def test_decode_byte_by_byte() -> None:
    for row, data in rows():
        p = cursor(data)
        final = outcome31(p, 0, len(data))
        for n in range(len(data)):
            got = outcome31(p, 0, n)
            if got != ("truncated", n):
                assert got == final and final[0] != "ok", (row["name"], n, got)


def test_what_is_the_same_is_read_the_same() -> None:
    """3.1.1's packets, but for CONNECT, are 3.1's; its reserved flags are not looked at."""
    for row in vectors.rows("mqtt", "packets"):
        data = vectors.unhex(row["hex"])
        if data[0] >> 4 == spec.CONNECT or row.get("error", {}).get("reason") == "bad_flags":
            continue
        p = cursor(data)
        assert outcome31(p, 0, len(data)) == outcome(Packet(data), 0, len(data)), row["name"]


def test_encode() -> None:
    for row in vectors.rows("mqtt31", "encode"):
        a = row["arguments"]
        will = a["will"] or {"topic": "", "message": "", "qos": 0, "retain": False}
        want = vectors.unhex(row["hex"])
        buf = bytearray(b"\x55" * (len(want) + 5))
        for limit in range(3, len(want) + 4):
            end = packets.encode_connect(
                buf,
                3,
                limit,
                a["client_id"].encode(),
                a["keep_alive"],
                a["clean_session"],
                will["topic"].encode() if a["will"] else None,
                vectors.unhex(will["message"]),
                will["qos"],
                will["retain"],
                None if a["user_name"] is None else a["user_name"].encode(),
                None if a["password"] is None else vectors.unhex(a["password"]),
                spec.PROTOCOL_31,
            )
            assert end == (len(want) + 3 if limit == len(want) + 3 else errors.E_TOO_LARGE), row["name"]
        assert buf == b"\x55" * 3 + want + b"\x55" * 2, row["name"]
