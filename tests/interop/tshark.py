"""What tshark makes of MQTT packets in a capture file."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools import pcap, toolchain

Fields = dict[str, Any]
#: What a server sends, of the calls in the encode vectors.
SERVER_CALLS = {"connack", "suback", "unsuback"}


def packets(path: Path, tshark: Path) -> list[list[Fields]]:
    """Per connection, the MQTT packets that tshark sees, as nested fields; fails when it finds one malformed."""
    command = [str(tshark), "-r", str(path), "-T", "json", "--no-duplicate-keys", "-d", "tcp.port==1883,mqtt"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    streams: dict[int, list[Fields]] = {}
    for frame in json.loads(done.stdout):
        layers = frame["_source"]["layers"]
        assert "_ws.malformed" not in layers, layers
        found = layers.get("mqtt", [])
        for packet in found if isinstance(found, list) else [found]:
            assert "_ws.malformed" not in packet, packet
            streams.setdefault(int(layers["tcp"]["tcp.stream"]), []).append(packet)
    return [streams[number] for number in sorted(streams)]


def encoded_packets(
    rows: list[Fields], encoded: Callable[..., int], hello: bytes, welcome: bytes, path: Path
) -> list[list[Fields]]:
    """What tshark makes of each packet of the encode vectors, as our encoders write it, behind a handshake."""
    tshark = toolchain.find("tshark")
    assert tshark is not None
    buf = bytearray(1 << 22)
    streams = []
    for row in rows:
        call = row["call"]
        end = encoded(call, row["arguments"], buf, 0, len(buf))
        assert end > 0
        before = {"connect": [], "connack": [(True, hello)]}.get(call, [(True, hello), (False, welcome)])
        streams.append([*before, (call not in SERVER_CALLS, bytes(buf[:end]))])
    pcap.write(path, streams)
    found = packets(path, tshark)
    assert len(found) == len(rows)
    return found


def flat(tree: Fields) -> Fields:
    """tshark's nested fields as one dictionary."""
    found: Fields = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            found.update(flat(value))
        else:
            found[name] = value
    return found


def colons(data: bytes) -> str:
    """Bytes as tshark writes them."""
    return ":".join(f"{byte:02x}" for byte in data)
