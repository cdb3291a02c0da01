"""What canned peers know of MQTT and FMQ: frames of the same message, and how to read the answers.

The number of a message is part of its id, so that canned messages differ at a known place, as do the answers.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from headwater.fmq import spec
from headwater.fmq.frames import encode_frame

TOPIC = b"x/telemetry"
PAYLOAD = b"0123456789abcdef"
# FMQ ids of a board whose process number has one byte.
_PROCESS = 5
_TIME = 1_795_000_000_000_000_000
_SUBSCRIPTION = (_PROCESS << 32) + 1
_MOST = 256


@dataclass(frozen=True)
class Dialect:
    """One protocol. `publish(qos, n)` is message n, from 1 to 8,000 (0 at QoS 0), of constant length at QoS 1 and 2.
    Its id has `id_size` bytes at `id_at`; the acknowledgement at QoS 1 is the id between the two parts of `ack`.

    `release(n)` follows PUBREC, which has `answer_size` bytes, as has PUBCOMP. `accept` reads the rest of a
    connection's first frame and accepts it, `grant(peer, qos)` does so for SUBSCRIBE.
    """

    publish: Callable[[int, int], bytes]
    id_at: int
    id_size: int
    ack: tuple[bytes, bytes]
    release: Callable[[int], bytes]
    answer_size: int
    accept: Callable[[socket.socket], None]
    grant: Callable[[socket.socket, int], None]


def read(peer: socket.socket, n: int) -> bytes:
    """Read exactly `n` bytes. Raises ConnectionError if the peer disconnects."""
    data = peer.recv(n, socket.MSG_WAITALL) if n else b""
    if len(data) < n:
        raise ConnectionError("the peer disconnected")
    return data


# ---- MQTT ------------------------------------------------------------------------------------------------------------


def _mqtt_publish(qos: int, n: int) -> bytes:
    body = len(TOPIC).to_bytes(2, "big") + TOPIC + (n.to_bytes(2, "big") if qos else b"") + PAYLOAD
    return bytes([0x30 | qos << 1, len(body)]) + body


def read_packet(peer: socket.socket) -> bytes:
    """Read the body of an MQTT packet below 128 bytes. Raises ConnectionError if the peer disconnects."""
    return read(peer, read(peer, 2)[1])


def _mqtt_accept(peer: socket.socket) -> None:
    read(peer, read(peer, 1)[0])
    peer.sendall(b"\x20\x02\x00\x00")


def _mqtt_grant(peer: socket.socket, qos: int) -> None:
    request = read_packet(peer)
    peer.sendall(b"\x90\x03" + request[:2] + bytes([qos]))


MQTT = Dialect(
    publish=_mqtt_publish,
    id_at=4 + len(TOPIC),
    id_size=2,
    ack=(b"\x40\x02", b""),
    release=lambda n: b"\x62\x02" + n.to_bytes(2, "big"),
    answer_size=4,
    accept=_mqtt_accept,
    grant=_mqtt_grant,
)


# ---- FMQ -------------------------------------------------------------------------------------------------------------


def _ident(n: int) -> bytes:
    return bytes([spec.PUBLISH << 4 | 1, _PROCESS, 0, spec.DATETIME << 4]) + (_TIME + n).to_bytes(8, "little")


def _made(head: int, ident: bytes, *values: bool | int | bytes | tuple[bytes, ...]) -> bytes:
    buf = bytearray(_MOST)
    end = encode_frame(buf, 0, _MOST, head, ident, values)
    if end < 0:
        raise ValueError(f"the frame cannot be encoded: {end}")
    return bytes(buf[:end])


def _read_id(peer: socket.socket) -> bytes:
    data = read(peer, 2)
    data += read(peer, data[0] & 15)
    data += read(peer, data[-1] >> 4)
    time = read(peer, 1)
    return data + time + read(peer, time[0] & 7 or 8)


def _skip_body(peer: socket.socket) -> None:
    size = read(peer, 1)[0]
    read(peer, int.from_bytes(read(peer, size >> 4), "little") << 4 | size & 15)


def _fmq_accept(peer: socket.socket) -> None:
    ident = _read_id(peer)
    _skip_body(peer)
    time = bytes([spec.DATETIME << 4]) + _TIME.to_bytes(8, "little")
    peer.sendall(_made(spec.ACK << 4, ident, 0, _PROCESS, False, time))


def _fmq_grant(peer: socket.socket, qos: int) -> None:
    # FMQ subscriptions have no QoS: messages have the publisher's.
    read(peer, 1)
    ident = _read_id(peer)
    _skip_body(peer)
    peer.sendall(_made(spec.ACK << 4, ident, 0, _SUBSCRIPTION))


FMQ = Dialect(
    publish=lambda qos, n: _made(spec.PUBLISH << 4 | qos << 1, _ident(n), TOPIC, (), PAYLOAD),
    id_at=1,
    id_size=len(_ident(0)),
    ack=(bytes([spec.ACK << 4]), b"\x00"),
    release=lambda n: bytes([spec.PUBREL << 4]) + _ident(n),
    answer_size=1 + len(_ident(0)),
    accept=_fmq_accept,
    grant=_fmq_grant,
)

#: By the first byte of a connection: CONNECT or AUTH.
DIALECTS = {0x10: MQTT, 0x00: FMQ}
