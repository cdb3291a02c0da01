"""Base of the gateway's sources: record frames, count them, log state changes, report statistics."""

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
from headwater_host.gateway.duplicates import ReceivedIds
from headwater_host.gateway.recording import Recorder

#: Maximum bytes recorded of input that is not a packet.
GARBAGE = 4096
_BAD_HEADER = (errors.E_TYPE, errors.E_FLAGS, errors.E_RX_QOS, errors.E_LENGTH)
# The last ones are errors in the properties of MQTT 5.0.
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

#: The fields of the statistics file, for the documentation.
GATEWAY_STATISTICS = {
    "time_ns": "time of writing",
    "started_ns": "start of the gateway",
    "pid": "process id",
    "records": "recorded frames",
    "bytes": "bytes of recorded frames",
    "durable": "frames on disk",
    "waiting": "frames not yet on disk",
    "syncs": "blocks written",
    "error": "why the log cannot be written, or null",
    "sources": "statistics of each source",
    "mq": "statistics of the IBM MQ queue, or null",
    "retention": "removed segments, and bytes that are kept for readers",
}
#: Those of a source.
SOURCE_STATISTICS = {
    "peer": "name in the capture log",
    "state": "such as `connected`",
    "connections": "connections since the start",
    "records": "recorded messages by QoS",
    "bytes": "bytes of recorded frames",
    "malformed": "recorded malformed inputs",
    "skipped": "messages too large to record",
    "last_error": "last warning, or null",
    "link": "counters of the serial link: `damaged`, `frames_in`, `frames_out` (serial boards)",
    "duplicates": "duplicates at QoS 2, which are not recorded (MQTT boards)",
    "protocol": "MQTT version (brokers)",
    "full_windows": "cycles in which the broker waited for acknowledgements (brokers)",
    "clients": "connected clients (built-in hub)",
    "storage": "bytes `waiting` and `error` of the hub's storage (built-in hub)",
}

_logger = logging.getLogger("headwater.gateway")


class Source:
    """A source of frames. ``peer``: its name in the capture log (docs/capture-log.md)."""

    def __init__(self, recorder: Recorder, peer: str):
        self.recorder = recorder
        self.peer = peer
        self.state = "starting"
        #: The packet identifiers that the MQTT session has received.
        self.received = ReceivedIds()
        self.connection = 0
        self.connections = 0
        self.records = [0, 0, 0]
        self.bytes = 0
        self.malformed = 0
        self.skipped = 0
        self.last_error: str | None = None
        #: Why the server refuses the credentials or a subscription, or "". Only remote hubs set it.
        self.refusal = ""
        self._last_text = ""

    def report(self, state: str, text: str, level: int = logging.INFO) -> None:
        """Set the state and log ``text``, unless it is the last logged text."""
        # Client identifiers and topics may contain line breaks and terminal control characters.
        text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
        self.state = state
        if level >= logging.WARNING:
            self.last_error = text
        if text != self._last_text:
            self._last_text = text
            _logger.log(level, "%s: %s", self.peer, text)

    def begin_connection(self) -> None:
        """Start a connection: its frames are recorded under a new connection id."""
        self.connection = self.recorder.new_connection()
        self.connections += 1

    def record_publish(self, p: Packet) -> int:
        """Record a PUBLISH with its mark; return the number of its frame."""
        frame = bytes(memoryview(p.buf)[frame_start(p) : p.end])
        self.count(p.head >> 1 & 3, len(frame))
        now_ns = time.time_ns()
        mark, first_ns = self.received.mark(p, frame, now_ns)
        return self.recorder.record(
            self.connection, self.peer, frame, _level(p), mark=mark, first_ns=first_ns, time_ns=now_ns
        )

    def count(self, qos: int, size: int) -> None:
        """Count a recorded message of ``size`` bytes."""
        self.records[qos] += 1
        self.bytes += size

    def record_malformed(self, session: Session) -> None:
        """Record the frame that ended the connection. Call this before the session is used again."""
        frame = offending_frame(session)
        if frame:
            self.malformed += 1
            self.bytes += len(frame)
            self.recorder.record(self.connection, self.peer, frame, _level(session.packet))

    def status(self) -> dict[str, Any]:
        """Return the statistics, for JSON."""
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
    """Return the protocol level of a packet's connection. No source speaks 3.1."""
    return MQTT_5 if isinstance(p, Packet5) else MQTT_3_1_1


def offending_frame(session: Session) -> bytes:
    """Return the malformed PUBLISH, or other malformed bytes, for which ``session`` ended the connection, or b""."""
    rx = session.rx
    p = session.packet
    # If the length of the properties is wrong, the packet was already removed from the buffer.
    in_body = session.status in _BAD_BODY or (session.status == errors.E_LENGTH and p.bad_at < rx.start)
    if in_body and p.kind() == spec.PUBLISH:
        start = p.body - 2
        while rx.buf[start] & 128:
            start -= 1
        return bytes(rx.buf[start : min(p.end, rx.end)])
    if session.status in _BAD_HEADER and p.bad_at >= rx.start:
        return bytes(rx.buf[rx.start : min(rx.end, rx.start + GARBAGE)])
    return b""
