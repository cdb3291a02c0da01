"""Messages with headers of IBM MQ as clients and channels send them, for tshark to read: no queue manager runs here.

Around what is put, got or sent on a channel stand segments of MQ's own protocol, of which only so much is filled in as
tshark needs to find the message. All of it is in one byte order and one character set, as one queue manager writes it.
"""

import json
import struct
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from headwater_host.capture.format import IBMMQ
from tools import pcap

Fields = dict[str, Any]
_MQPUT, _MQGET_REPLY, _MESSAGE_DATA = 0x86, 0x95, 0x04
_FIRST_AND_LAST = 0x30
_PUT_OPTIONS, _GET_OPTIONS = 128, 72


class Writer(NamedTuple):
    """How a queue manager writes: its byte order, and its character set (819 or 500)."""

    big: bool
    ccsid: int

    def _characters(self, text: str) -> bytes:
        return text.encode("cp500" if self.ccsid == 500 else "latin-1")

    def _numbers(self, shape: str, *values: int) -> bytes:
        return struct.pack((">" if self.big else "<") + shape, *values)

    def _segment(self, kind: int, body: bytes) -> bytes:
        # Lengths of segments are big-endian, whatever the rest is.
        head = self._characters("TSH ") + struct.pack(">I", 28 + len(body))
        head += bytes([1 if self.big else 2, kind, _FIRST_AND_LAST, 0]) + bytes(8)
        return head + self._numbers("IHH", 0x111 if self.big else 0x222, self.ccsid, 0) + body

    def _call(self, kind: int, descriptor: bytes, options: bytes, data: bytes) -> bytes:
        body = descriptor + options + self._numbers("I", len(data)) + data
        handles = struct.pack(">I", 28 + 16 + len(body)) + self._numbers("III", 0, 0, 1)
        return self._segment(kind, handles + body)

    def _options(self, name: str, size: int) -> bytes:
        return self._characters(name) + self._numbers("I", 1) + bytes(size - 8)

    def put(self, descriptor: bytes, data: bytes) -> tuple[bool, bytes]:
        """A client's MQPUT."""
        return True, self._call(_MQPUT, descriptor, self._options("PMO ", _PUT_OPTIONS), data)

    def got(self, descriptor: bytes, data: bytes) -> tuple[bool, bytes]:
        """The answer to a client's MQGET."""
        return False, self._call(_MQGET_REPLY, descriptor, self._options("GMO ", _GET_OPTIONS), data)

    def sent(self, data: bytes) -> tuple[bool, bytes]:
        """A message on a channel between queue managers: what stands on the transmission queue."""
        head = self._characters("MSH ") + self._numbers("IIII", 1, len(data), 0, len(data))
        return True, self._segment(_MESSAGE_DATA, head + data)


def read(path: Path, tshark: Path, messages: list[tuple[bool, bytes]]) -> list[Fields]:
    """What tshark makes of each message, by its names of structures; fails when it finds one malformed."""
    pcap.write(path, [[message] for message in messages], IBMMQ)
    command = [str(tshark), "-r", str(path), "-T", "json", "--no-duplicate-keys"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    layers = [frame["_source"]["layers"] for frame in json.loads(done.stdout)]
    assert len(layers) == len(messages)
    assert not [layer for layer in layers if "_ws.malformed" in layer or "mq" not in layer]
    return [layer["mq"] for layer in layers]
