# heap: 1M
"""The shared MQTT vectors through the encoders."""

import vectors

from headwater import errors
from headwater.mqtt import packets, packets_server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Row = dict[str, Any]

NAMES = (
    "", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP",
    "SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT",
)  # fmt: skip


def encoded(call: str, a: "Row", buf: bytearray, at: int, limit: int) -> int:
    """Call an encoder with a row's arguments."""
    if call == "publish":
        head = 0x30 | (8 if a["dup"] else 0) | a["qos"] << 1 | (1 if a["retain"] else 0)
        topic = vectors.text_of(a, "topic")
        return packets.encode_publish(
            buf, at, limit, topic, vectors.unhex(a["payload"]), head, a["packet_id"]
        )
    if call == "acknowledge":
        return packets.encode_ack(buf, at, limit, NAMES.index(a["type"]), a["packet_id"])
    if call == "bare":
        return packets.encode_bare(buf, at, limit, NAMES.index(a["type"]))
    if call == "connect":
        will = a["will"] or {"topic": None, "message": "", "qos": 0, "retain": False}
        return packets.encode_connect(
            buf,
            at,
            limit,
            a["client_id"].encode(),
            a["keep_alive"],
            a["clean_session"],
            None if will["topic"] is None else will["topic"].encode(),
            vectors.unhex(will["message"]),
            will["qos"],
            will["retain"],
            None if a["user_name"] is None else a["user_name"].encode(),
            None if a["password"] is None else vectors.unhex(a["password"]),
        )
    if call == "subscribe":
        return packets.encode_subscribe(
            buf, at, limit, a["packet_id"], vectors.text_of(a, "filter"), a["qos"]
        )
    if call == "unsubscribe":
        return packets.encode_subscribe(buf, at, limit, a["packet_id"], vectors.text_of(a, "filter"), -1)
    if call == "connack":
        return packets_server.encode_connack(buf, at, limit, a["session_present"], a["return_code"])
    assert call == "suback"
    return packets_server.encode_suback(buf, at, limit, a["packet_id"], bytes(a["return_codes"]))


def test_encode() -> None:
    for row in vectors.rows("mqtt", "encode"):
        want = vectors.unhex(row["hex"])
        n = len(want)
        buf = bytearray(b"\x55" * (n + 8))
        end = encoded(row["call"], row["arguments"], buf, 3, n + 3)
        assert end == n + 3, (row["name"], end)
        assert buf[3:end] == want, (row["name"], buf[3:end])
        # Nothing is written before or behind, and the buffer is as long as it was.
        assert buf[:3] == b"\x55" * 3 and buf[end:] == b"\x55" * 5 and len(buf) == n + 8, row["name"]


def test_encode_without_room() -> None:
    for row in vectors.rows("mqtt", "encode"):
        n = len(vectors.unhex(row["hex"]))
        if n > 300:
            continue
        buf = bytearray(b"\x55" * (n + 8))
        for limit in range(3, n + 3):
            end = encoded(row["call"], row["arguments"], buf, 3, limit)
            assert end == errors.E_TOO_LARGE, (row["name"], limit, end)
            assert buf[limit:] == b"\x55" * (n + 8 - limit), (row["name"], limit)


def test_encode_publish_size() -> None:
    for row in vectors.rows("mqtt", "encode"):
        if row["call"] == "publish":
            a = row["arguments"]
            topic = vectors.text_of(a, "topic")
            size = packets.publish_size(topic, vectors.unhex(a["payload"]), a["qos"])
            assert size == len(vectors.unhex(row["hex"])), row["name"]


def test_every_packet_we_write_is_read_back() -> None:
    for row in vectors.rows("mqtt", "encode"):
        data = vectors.unhex(row["hex"])
        p = packets.Packet(data)
        assert packets_server.decode_packet(p, 0, len(data)) == len(data), row["name"]
