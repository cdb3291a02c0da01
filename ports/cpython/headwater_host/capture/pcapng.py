"""Write captured frames as a pcapng file, so that Wireshark and tshark can decode them.

The log contains frames, not TCP segments, so addresses and TCP headers are invented: the peer of each connection gets
an address in 10.0.0.0/8, the gateway 127.0.0.1 with the protocol's port. Receive times are exact. A comment at the
first packet of a connection contains the peer's name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import BinaryIO

from headwater_host.capture.format import FMQ, IBMMQ, MQTT, SENT, Record

#: The port by which Wireshark finds the decoder.
PORTS = {MQTT: 1883, FMQ: 7760, IBMMQ: 1414}
_OTHER_PORT = 7

_SECTION = 0x0A0D0D0A
_INTERFACE = 1
_PACKET = 6
_RAW_IP = 101
_COMMENT = 1
_RESOLUTION = 9
_NANOSECONDS = 9

_GATEWAY = b"\x7f\x00\x00\x01"
_PEER_PORT = 50000
_PUSH_ACK = 0x18
#: Bytes of a frame in one segment; an IPv4 packet has at most 65,535.
_SEGMENT = 60_000
_ADDRESSES = 1 << 24
_SEQUENCES = 1 << 32


class PcapngWriter:
    """Writes records to an open binary file. Call ``write`` for each record in the order of time."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        # By connection and protocol: the peer's address, and the bytes received and sent.
        self._streams: dict[tuple[int, int], tuple[bytes, list[int]]] = {}
        self._block(_SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
        resolution = _option(_RESOLUTION, bytes([_NANOSECONDS]))
        self._block(_INTERFACE, struct.pack("<HHI", _RAW_IP, 0, 0) + resolution + _END)

    def write(self, record: Record) -> None:
        """Write one record, in as many TCP segments as it needs."""
        comment = b""
        key = record.connection, record.protocol
        if key not in self._streams:
            address = b"\x0a" + ((len(self._streams) + 1) % _ADDRESSES).to_bytes(3, "big")
            self._streams[key] = address, [1, 1]
            text = f"{record.peer}, connection {record.connection}"
            comment = _option(_COMMENT, text.encode()) + _END
        address, sent = self._streams[key]
        port = PORTS.get(record.protocol, _OTHER_PORT)
        up = record.direction != SENT
        for at in range(0, len(record.frame) or 1, _SEGMENT):
            part = record.frame[at : at + _SEGMENT]
            packet = _packet(address, port, up=up, seq=sent[up], ack=sent[not up], data=part)
            sent[up] = (sent[up] + len(part)) % _SEQUENCES
            self._packet(record.time_ns, packet, comment)
            comment = b""

    def _packet(self, time_ns: int, packet: bytes, options: bytes) -> None:
        time = time_ns % (1 << 64)
        head = struct.pack("<IIIII", 0, time >> 32, time & 0xFFFFFFFF, len(packet), len(packet))
        self._block(_PACKET, head + _padded(packet) + options)

    def _block(self, kind: int, body: bytes) -> None:
        length = struct.pack("<I", len(body) + 12)
        self._out.write(struct.pack("<I", kind) + length + body + length)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + _padded(value)


_END = struct.pack("<HH", 0, 0)


def _packet(peer: bytes, port: int, *, up: bool, seq: int, ack: int, data: bytes) -> bytes:
    """Return an IPv4 packet with a TCP segment from (``up``) or to the peer. Checksums are 0: not computed."""
    ports = (_PEER_PORT, port) if up else (port, _PEER_PORT)
    addresses = (peer, _GATEWAY) if up else (_GATEWAY, peer)
    tcp = struct.pack(">HHIIBBHHH", *ports, seq, ack, 5 << 4, _PUSH_ACK, 0xFFFF, 0, 0)
    length = 20 + len(tcp) + len(data)
    return struct.pack(">BBHHHBBH4s4s", 0x45, 0, length, 0, 0x4000, 64, 6, 0, *addresses) + tcp + data


def export(records: Iterable[Record], out: BinaryIO) -> int:
    """Write all records to ``out``. Returns their number."""
    writer = PcapngWriter(out)
    count = 0
    for record in records:
        writer.write(record)
        count += 1
    return count
