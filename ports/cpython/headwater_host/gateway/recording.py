"""Append frames to the log; acknowledge synced messages.

When the disk is slow or full, the gate closes. Sources then stop reading, as far as their protocol lets them. Frames
that arrive nevertheless wait in memory, in order, until the log takes them.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from headwater import errors
from headwater_host.capture import RECEIVED, CaptureWriteError
from headwater_host.capture.asyncio_writer import AsyncCapture, CaptureFullError
from headwater_host.capture.connection_ids import ConnectionIds
from headwater_host.capture.format import MQTT, MQTT_3_1_1, UNMARKED
from headwater_host.gateway.duplicates import ReceivedIds

# Seconds until a session without room for an answer is tried again.
_AGAIN_S = 0.05

_logger = logging.getLogger("headwater.gateway")

Record = tuple[int, int, str, int, int, int, bytes, int, int]


class Recorder:
    """Appends frames to ``capture``. Frames are numbered from 1, as in ``AsyncCapture``.

    ``limit_bytes``: the limit of ``capture``; the gate closes when half of it waits for the disk, and opens when
    everything is on disk. ``fatal``: called when the log cannot be written any more.

    Raises what ``ConnectionIds`` raises.
    """

    def __init__(self, capture: AsyncCapture, limit_bytes: int, fatal: Callable[[Exception], object]):
        self.capture = capture
        self.is_open = True
        #: Why the last write failed; None while writes succeed.
        self.error: CaptureWriteError | None = None
        #: Frames and bytes accepted.
        self.records = 0
        self.bytes = 0
        self._closed_logged = False
        self._fatal = fatal
        self._close_at = limit_bytes // 2
        # Frames that the log had no room for, and the calls for when they are on disk.
        self._overflow: deque[Record] = deque()
        self._later: deque[tuple[int, Callable[[], object]]] = deque()
        self._gates: deque[Callable[[bool], object]] = deque()
        self._connections = ConnectionIds(capture.directory, group_readable=capture.group_readable)

    def new_connection(self) -> int:
        """Return a unique connection id (docs/capture-log.md)."""
        return self._connections.next()

    def on_gate(self, call: Callable[[bool], object]) -> None:
        """Call ``call`` with whether the gate is open, each time it changes. It may record frames at once."""
        self._gates.append(call)

    @property
    def durable(self) -> int:
        """The number of the last frame on disk."""
        return self.capture.durable_number

    @property
    def waiting(self) -> int:
        """The number of frames that are not on disk yet."""
        return self.records - self.durable

    def record(
        self,
        connection: int,
        peer: str,
        frame: bytes,
        version: int = MQTT_3_1_1,
        protocol: int = MQTT,
        direction: int = RECEIVED,
        mark: int = UNMARKED,
        first_ns: int = 0,
        time_ns: int | None = None,
    ) -> int:
        """Record a frame that was received or sent now, or at ``time_ns``; return its number.

        Never refuses: frames without room in the log wait in memory.
        """
        if time_ns is None:
            time_ns = time.time_ns()
        record = (time_ns, connection, peer, direction, protocol, version, frame, mark, first_ns)
        self.records += 1
        self.bytes += len(frame)
        if self._overflow or not self._append(record):
            self._overflow.append(record)
        if self.is_open and (self._overflow or self.capture.pending_bytes >= self._close_at):
            self._close()
        return self.records

    def _append(self, record: Record) -> bool:
        try:
            self.capture.append(*record)
        except CaptureFullError:
            return False
        except (ValueError, TypeError) as error:
            # Only a closed log raises this: sessions limit the length of frames.
            self._fatal(error)
            return False
        return True

    def when_durable(self, number: int, call: Callable[[], object]) -> None:
        """Call ``call`` when frame ``number`` is on disk."""
        if number > self.records - len(self._overflow):
            self._later.append((number, call))
        else:
            self.capture.when_durable(number, call)

    def _close(self) -> None:
        self._move_gate(False)
        self._log_closed()
        self._watch()

    def _move_gate(self, is_open: bool) -> None:
        """Open or close the gate and call the sources; stop if one of them moves the gate again."""
        self.is_open = is_open
        for call in list(self._gates):
            call(is_open)
            if self.is_open is not is_open:
                return

    def _log_closed(self) -> None:
        """Log once that the gate is closed because writing fails, not because of a short burst."""
        if self.error is not None and not self.is_open and not self._closed_logged:
            self._closed_logged = True
            _logger.error("%d frames wait for the disk; the sources stop reading", self.waiting)

    def _watch(self) -> None:
        self.capture.when_durable(self.records - len(self._overflow), self._drained)

    def _drained(self) -> None:
        """Append the frames that waited for room; open the gate when none is left."""
        self.check_recovered()
        while self._overflow and self._append(self._overflow[0]):
            self._overflow.popleft()
        taken = self.records - len(self._overflow)
        while self._later and self._later[0][0] <= taken:
            self.capture.when_durable(*self._later.popleft())
        if self._overflow or self.capture.pending_bytes >= self._close_at:
            self._watch()
        else:
            self._closed_logged = False
            # The first source may use all the room. Rotate, so that another source is first next time.
            self._gates.rotate(-1)
            self._move_gate(True)

    def failed(self, error: CaptureWriteError) -> None:
        """Log a failed write once per error number. Pass this as ``on_error`` to the capture."""
        if self.error is None or self.error.errno != error.errno:
            _logger.error("nothing is acknowledged: %s; trying again", error)
        self.error = error
        self._log_closed()

    def check_recovered(self) -> None:
        """Clear the error when the log can be written again. Call this about once a second."""
        if self.error is not None and self.capture.error is None:
            self.error = None
            _logger.info("the capture log can be written again")


class Acknowledging(Protocol):
    """A session whose messages are acknowledged by call."""

    @property
    def epoch(self) -> int:
        """The number of the connection."""
        ...

    def acknowledge(self, packet_id: int, qos: int, epoch: int, /) -> int:
        """Acknowledge a message. Return 0 or a code of ``headwater.errors``: E_AGAIN without room in the buffer."""
        ...


class Acknowledgements:
    """Acknowledges the messages of one session in the order of their arrival, when they are on disk.

    A sender of MQTT 3.1.1 may retransmit a message at QoS 1 over the same connection. The retransmission replaces the
    message that waits under the same packet id: two PUBACKs would acknowledge the next message with that id as well.

    ``push`` is called after answers are written, ``flush`` when the session's buffer is full. ``received``: notes which
    messages at QoS 1 are acknowledged.
    """

    def __init__(
        self,
        recorder: Recorder,
        session: Acknowledging,
        push: Callable[[], object],
        flush: Callable[[], object],
        received: ReceivedIds | None = None,
    ):
        self._recorder = recorder
        self._session = session
        self._push = push
        self._flush = flush
        self._received = received
        self._waiting: deque[tuple[int, int, int, int]] = deque()
        # By packet identifier at QoS 1: the last frame that waits.
        self._last: dict[int, int] = {}
        self._watching = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, number: int, packet_id: int, qos: int) -> None:
        """Acknowledge ``packet_id`` when frame ``number`` is on disk."""
        self._waiting.append((number, packet_id, qos, self._session.epoch))
        if qos == 1:
            self._last[packet_id] = number
        if not self._watching:
            self._watching = True
            self._recorder.when_durable(number, self._on_disk)

    def _on_disk(self) -> None:
        session = self._session
        waiting = self._waiting
        durable = self._recorder.durable
        while waiting and waiting[0][0] <= durable:
            number, packet_id, qos, epoch = waiting[0]
            if qos == 1 and self._last[packet_id] != number:
                waiting.popleft()
                continue
            status = session.acknowledge(packet_id, qos, epoch)
            if status == errors.E_AGAIN:
                self._flush()
                status = session.acknowledge(packet_id, qos, epoch)
                if status == errors.E_AGAIN:
                    # The line is busy, and does not signal when it is not: try again later.
                    asyncio.get_running_loop().call_later(_AGAIN_S, self._on_disk)
                    return
            # After a reconnect the status is not 0: the sender retransmits at QoS 1; at QoS 2 the session answers.
            waiting.popleft()
            if qos == 1:
                del self._last[packet_id]
            if self._received is not None and qos == 1:
                if status == 0:
                    self._received.answered(packet_id)
                else:
                    self._received.unanswered(packet_id)
        self._push()
        self._watching = bool(waiting)
        if waiting:
            self._recorder.when_durable(waiting[0][0], self._on_disk)
