"""Write packets as TCP segments to a capture file for tshark (libpcap format, raw IPv4)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

_LINKTYPE_RAW = 101
_CLIENT, _SERVER = b"\x7f\x00\x00\x01", b"\x7f\x00\x00\x02"
_PUSH_ACK = 0x18
_FIRST_PORT = 20000


def _segment(port: int, server_port: int, up: bool, seq: int, ack: int, data: bytes) -> bytes:
    ports = (port, server_port) if up else (server_port, port)
    tcp = struct.pack(">HHIIBBHHH", *ports, seq, ack, 5 << 4, _PUSH_ACK, 0xFFFF, 0, 0)
    addresses = (_CLIENT, _SERVER) if up else (_SERVER, _CLIENT)
    length = 20 + len(tcp) + len(data)
    return struct.pack(">BBHHHBBH4s4s", 0x45, 0, length, 0, 0x4000, 64, 6, 0, *addresses) + tcp + data


def write(path: Path, streams: Iterable[Iterable[tuple[bool, bytes]]], server_port: int) -> None:
    """Write one TCP connection per stream of (from the client, bytes); long bytes are split into segments."""
    records: list[bytes] = []
    for number, stream in enumerate(streams):
        sent = {True: 1, False: 1}
        for up, data in stream:
            for at in range(0, len(data), 60000):
                part = data[at : at + 60000]
                packet = _segment(_FIRST_PORT + number, server_port, up, sent[up], sent[not up], part)
                sent[up] += len(part)
                records.append(struct.pack("<IIII", 0, len(records), len(packet), len(packet)) + packet)
    path.write_bytes(
        struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, _LINKTYPE_RAW) + b"".join(records)
    )
