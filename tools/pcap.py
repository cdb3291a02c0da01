"""Write packets as TCP connections to a file for tshark."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from headwater_host.capture.format import MQTT, RECEIVED, SENT, Record
from headwater_host.capture.pcapng import PcapngWriter


def write(path: Path, streams: Iterable[Iterable[tuple[bool, bytes]]], protocol: int = MQTT) -> None:
    """Write one connection per stream of (from the client, bytes)."""
    with path.open("wb") as out:
        writer = PcapngWriter(out)
        for number, stream in enumerate(streams):
            for up, data in stream:
                direction = RECEIVED if up else SENT
                writer.write(Record(0, number, "", direction, protocol, 0, data))
