"""What a broker, a hub and a serial board have in common: frames that are landed, and what is known of the source."""

import logging
import time
from typing import Any

from headwater import errors
from headwater.mqtt import spec
from headwater.mqtt.packets import Packet
from headwater.mqtt.properties import Packet5
from headwater.mqtt.session import Session
from headwater_host.capture.format import MQTT_3_1_1, MQTT_5
from headwater_host.client.mqtt.session import frame_start
from headwater_host.gateway.duplicates import Receipts
from headwater_host.gateway.recording import Landing

#: How much of what is no packet is kept.
GARBAGE = 4096
_BAD_HEADER = (errors.E_TYPE, errors.E_FLAGS, errors.E_RX_QOS, errors.E_LENGTH)
# With what else MQTT 5.0 can find wrong with properties.
_BAD_BODY = (
    errors.E_FIELD,
    errors.E_UTF8,
    errors.E_RX_TOPIC,
    errors.E_PACKET_ID,
    errors.E_PROPERTY,
    errors.E_REPEATED,
    errors.E_VALUE,
    errors.E_ALIAS,
)

_logger = logging.getLogger("headwater.gateway")


class Source:
    """``peer`` names it in the log (docs/capture-log.md); ``status()`` is its part of the statistics."""

    def __init__(self, landing: Landing, peer: str):
        self.landing = landing
        self.peer = peer
        self.state = "starting"
        #: Of the session, where it is MQTT's.
        self.receipts = Receipts()
        self.connection = 0
        self.connections = 0
        self.records = [0, 0, 0]
        self.bytes = 0
        self.malformed = 0
        self.skipped = 0
        self.last_error: str | None = None
        self._said = ""

    def say(self, state: str, text: str, level: int = logging.INFO) -> None:
        """Log a change; the same text is not repeated as long as nothing else is said."""
        # Client ids and topics come from strangers: no line breaks, nothing that a terminal obeys.
        text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
        self.state = state
        if level >= logging.WARNING:
            self.last_error = text
        if text != self._said:
            self._said = text
            _logger.log(level, "%s: %s", self.peer, text)

    def began(self) -> None:
        """A connection begins: what comes over it is recorded under a number of its own."""
        self.connection = self.landing.new_connection()
        self.connections += 1

    def land(self, p: Packet) -> int:
        """Take a PUBLISH: its number."""
        frame = bytes(memoryview(p.buf)[frame_start(p) : p.end])
        self.count(p.head >> 1 & 3, len(frame))
        now_ns = time.time_ns()
        mark, first_ns = self.receipts.mark(p, frame, now_ns)
        return self.landing.take(
            self.connection,
            self.peer,
            frame,
            _level(p),
            mark=mark,
            first_ns=first_ns,
            time_ns=now_ns,
        )

    def count(self, qos: int, size: int) -> None:
        """A message of ``size`` bytes is landed."""
        self.records[qos] += 1
        self.bytes += size

    def land_malformed(self, session: Session) -> None:
        """Keep what broke the connection, so that it can be looked at; to be called before the session goes on."""
        frame = offending_frame(session)
        if frame:
            self.malformed += 1
            self.bytes += len(frame)
            self.landing.take(self.connection, self.peer, frame, _level(session.packet))

    def status(self) -> dict[str, Any]:
        """What is known, as JSON can hold it."""
        return {
            "peer": self.peer,
            "state": self.state,
            "connections": self.connections,
            "records": {f"qos{qos}": count for qos, count in enumerate(self.records)},
            "bytes": self.bytes,
            "malformed": self.malformed,
            "skipped": self.skipped,
            "last_error": self.last_error,
        }


def _level(p: Packet) -> int:
    """The protocol level of the connection that a packet came over. No source speaks 3.1."""
    return MQTT_5 if isinstance(p, Packet5) else MQTT_3_1_1


def offending_frame(session: Session) -> bytes:
    """The PUBLISH for which ``session`` broke the connection, or the bytes that are no packet; otherwise nothing."""
    rx = session.rx
    p = session.packet
    # The length of properties may be wrong as well: then the packet has been taken from the buffer already.
    in_body = session.status in _BAD_BODY or (session.status == errors.E_LENGTH and p.bad_at < rx.start)
    if in_body and p.kind() == spec.PUBLISH:
        start = p.body - 2
        while rx.buf[start] & 128:
            start -= 1
        return bytes(rx.buf[start : min(p.end, rx.end)])
    if session.status in _BAD_HEADER and p.bad_at >= rx.start:
        return bytes(rx.buf[rx.start : min(rx.end, rx.start + GARBAGE)])
    return b""
