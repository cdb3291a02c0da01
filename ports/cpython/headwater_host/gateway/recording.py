"""Append frames to the capture log, and acknowledge messages when they are on disk.

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
from headwater_host.gateway.duplicates import Receipts

# Until a session without room for an answer is asked again.
_AGAIN_S = 0.05

_logger = logging.getLogger("headwater.gateway")

Record = tuple[int, int, str, int, int, int, bytes, int, int]


class Landing:
    """Frames into ``capture``, numbered from 1 as the log numbers them.

    ``fatal`` is called when nothing can be written any more, now or later. ``limit_bytes`` is the capture's own limit:
    at half of it the gate closes, and it opens when everything is on disk.

    Raises what ``ConnectionIds`` does.
    """

    def __init__(self, capture: AsyncCapture, limit_bytes: int, fatal: Callable[[Exception], object]):
        self.capture = capture
        self.is_open = True
        #: What failed the last time, None while the disk takes everything.
        self.error: CaptureWriteError | None = None
        #: Frames and bytes taken.
        self.records = 0
        self.bytes = 0
        self._told = False
        self._fatal = fatal
        self._close_at = limit_bytes // 2
        # What the log did not take yet, and who waits for a part of it.
        self._overflow: deque[Record] = deque()
        self._later: deque[tuple[int, Callable[[], object]]] = deque()
        self._gates: deque[Callable[[bool], object]] = deque()
        self._connections = ConnectionIds(capture.directory, group_readable=capture.group_readable)

    def new_connection(self) -> int:
        """An id for a connection: no two ever share one (docs/capture-log.md)."""
        return self._connections.next()

    def on_gate(self, call: Callable[[bool], object]) -> None:
        """Have ``call`` called with whether the gate is open, each time that changes. It may take frames at once."""
        self._gates.append(call)

    @property
    def durable(self) -> int:
        """The frames up to this number are on disk."""
        return self.capture.durable_number

    @property
    def waiting(self) -> int:
        """How many frames are not on disk yet."""
        return self.records - self.durable

    def take(
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
        """Take a frame that was received just now, at ``time_ns`` if given, or sent: its number."""
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
            # The log has failed for good: sessions keep every frame from their side of the length limit.
            self._fatal(error)
            return False
        return True

    def when_durable(self, number: int, call: Callable[[], object]) -> None:
        """Have ``call`` called once frame ``number`` is on disk."""
        if number > self.records - len(self._overflow):
            self._later.append((number, call))
        else:
            self.capture.when_durable(number, call)

    def _close(self) -> None:
        self._move_gate(False)
        self._tell()
        self._watch()

    def _move_gate(self, is_open: bool) -> None:
        """Open or close the gate and call the sources; stop when one of them makes the gate move again."""
        self.is_open = is_open
        for call in list(self._gates):
            call(is_open)
            if self.is_open is not is_open:
                return

    def _tell(self) -> None:
        """Say once that the gate is closed because of the disk, not because of a moment's rush."""
        if self.error is not None and not self.is_open and not self._told:
            self._told = True
            _logger.error("%d frames wait for the disk: nothing more is taken", self.waiting)

    def _watch(self) -> None:
        self.capture.when_durable(self.records - len(self._overflow), self._drained)

    def _drained(self) -> None:
        """Everything that the log had taken is on disk: give it the rest, or open the gate."""
        self.look()
        while self._overflow and self._append(self._overflow[0]):
            self._overflow.popleft()
        taken = self.records - len(self._overflow)
        while self._later and self._later[0][0] <= taken:
            self.capture.when_durable(*self._later.popleft())
        if self._overflow or self.capture.pending_bytes >= self._close_at:
            self._watch()
        else:
            self._told = False
            # The source that hears it first may take all the room: next time another one is first.
            self._gates.rotate(-1)
            self._move_gate(True)

    def failed(self, error: CaptureWriteError) -> None:
        """The log could not be written: say so when it is new. For the capture's ``on_error``."""
        if self.error is None or self.error.errno != error.errno:
            _logger.error("nothing is acknowledged: %s; trying again", error)
        self.error = error
        self._tell()

    def look(self) -> None:
        """Notice that the log can be written again; a few times a second is enough."""
        if self.error is not None and self.capture.error is None:
            self.error = None
            _logger.info("the capture log can be written again")


class Acknowledging(Protocol):
    """A session that answers messages when it is told to."""

    @property
    def epoch(self) -> int:
        """Which connection it is."""
        ...

    def acknowledge(self, packet_id: int, qos: int, epoch: int, /) -> int:
        """Answer a message: 0 or a code of ``headwater.errors``; E_AGAIN when there is no room for now."""
        ...


class Acknowledgements:
    """Acknowledges the messages of one session when they are on disk, in the order of their arrival.

    A sender of MQTT 3.1.1 may retransmit a message at QoS 1 over the same connection. The retransmission replaces the
    message that waits under the same packet id: two PUBACKs would acknowledge the next message with that id as well.

    ``push`` is called when something is to be sent, ``flush`` when the session has no room for another answer.
    ``receipts`` learn what became of messages at QoS 1.
    """

    def __init__(
        self,
        landing: Landing,
        session: Acknowledging,
        push: Callable[[], object],
        flush: Callable[[], object],
        receipts: Receipts | None = None,
    ):
        self._landing = landing
        self._session = session
        self._push = push
        self._flush = flush
        self._receipts = receipts
        self._waiting: deque[tuple[int, int, int, int]] = deque()
        # The last frame of each packet id at QoS 1 that waits.
        self._last: dict[int, int] = {}
        self._watching = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, number: int, packet_id: int, qos: int) -> None:
        """The message ``packet_id`` is frame ``number``."""
        self._waiting.append((number, packet_id, qos, self._session.epoch))
        if qos == 1:
            self._last[packet_id] = number
        if not self._watching:
            self._watching = True
            self._landing.when_durable(number, self._on_disk)

    def _on_disk(self) -> None:
        session = self._session
        waiting = self._waiting
        durable = self._landing.durable
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
                    # A line that takes nothing now; nobody says when it does.
                    asyncio.get_running_loop().call_later(_AGAIN_S, self._on_disk)
                    return
            # Of an earlier connection: at QoS 1 it comes again; at QoS 2 it is noted, or the session is gone.
            waiting.popleft()
            if qos == 1:
                del self._last[packet_id]
            if self._receipts is not None and qos == 1:
                if status == 0:
                    self._receipts.answered(packet_id)
                else:
                    self._receipts.unanswered(packet_id)
        self._push()
        self._watching = bool(waiting)
        if waiting:
            self._landing.when_durable(waiting[0][0], self._on_disk)
