"""Store and forward: send a local queue to a queue of a queue manager, in units of work.

A unit of work is a batch from the front of the local queue. Its messages stay there until MQCMIT has succeeded. If the
connection is lost during MQCMIT, the outcome is unknown:

- With a *record queue*, each unit of work replaces a message on that queue by one with the unit's number, as message
  channels do. The messages of the unit are noted locally first. After a reconnect the number tells whether the unit was
  committed, so each message arrives exactly once. While a commit is in progress the record is locked, and the uplink
  waits.
- Without one the unit is retransmitted: each message arrives at least once, with the same MsgId.

The order is that of the local queue. A message that the queue manager will never accept goes to the local dead-letter
queue, with the reason.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from headwater.reconnect import pause_limit
from headwater_host.mq import CMQC
from headwater_host.mq.errors import MQMIError
from headwater_host.mq.uplink import mqi, mqi_reasons
from headwater_host.mq.uplink.mqi import Connection, MqiError
from headwater_host.mq.uplink.mqi_reasons import CONFIGURATION, MESSAGE, WAIT

#: Pauses in s: the first after an error, the longest, and the longest after a configuration error.
FIRST, LONGEST, SLOW = 1.0, 60.0, 300.0
# Interval at which an empty local queue is checked, in s.
_LOOK_S = 0.25
# After these errors the unit of work cannot be committed.
_UNIT_IS_LOST = (CMQC.MQRC_BACKED_OUT, CMQC.MQRC_SYNCPOINT_LIMIT_REACHED)

_logger = logging.getLogger("headwater.uplink")


class Stored(NamedTuple):
    """A message of the local queue: its id there, its MQMD by IBM's names, its data."""

    token: int
    fields: Mapping[str, Any]
    data: bytes


class State(NamedTuple):
    """The local state of the record queue.

    ``number``: of the last committed unit of work, -1 before the first record. ``pending``: the messages of the next
    unit while its outcome is unknown.
    """

    identity: bytes
    number: int
    pending: tuple[int, ...]


class Outbox(Protocol):
    """The local queue. Each method is durable when it returns. Raises MQMIError if its file fails; then nothing has
    changed."""

    def batch(self, messages: int, size: int) -> Sequence[Stored]:
        """Return the first messages: at most ``messages``, and ``size`` bytes unless the first alone has more."""
        ...

    def depth(self) -> int:
        """Return the number of messages."""
        ...

    def settle(self, sent: Sequence[int], dead: Sequence[tuple[int, int]], number: int | None) -> None:
        """Remove committed messages and move others, with their reason codes, to the dead-letter queue. ``number`` is
        that of the unit of work, which is no longer pending."""
        ...

    def state(self) -> State:
        """Return the state of the record queue."""
        ...

    def prepare(self, pending: Sequence[int]) -> None:
        """Note the messages of a unit of work before its commit."""
        ...

    def number(self, number: int) -> None:
        """Note the number of the last committed unit of work; none is pending."""
        ...


@dataclass(frozen=True)
class UplinkConfig:
    """The target. ``idle``: time without messages in s after which the uplink disconnects."""

    channel: mqi.Channel
    queue: str
    record_queue: str = ""
    #: Limits of a unit of work; one larger message is a unit of its own.
    batch: int = 50
    batch_bytes: int = 4 << 20
    idle: float = 60.0


class RecordError(Exception):
    """The record on the record queue is missing or wrong; ``kind`` is the action."""

    def __init__(self, text: str, kind: str):
        super().__init__(text)
        self.kind = kind


class Uplink:
    """One uplink. ``run`` runs it in a thread until ``stop``.

    ``wait(seconds)`` waits at most so long and returns whether to stop; tests replace it and ``clock``.
    """

    def __init__(
        self,
        config: UplinkConfig,
        outbox: Outbox,
        wait: Callable[[float], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._config = config
        self._outbox = outbox
        self._stop = threading.Event()
        self._wait = wait or self._stop.wait
        self._clock = clock
        self._link: Connection | None = None
        self._target: Any = None
        self._record: Any = None
        self._number: int | None = None
        self._correl_id = b""
        self._failures = 0
        # Committed messages that are not yet settled locally.
        self._committed: tuple[list[int], list[tuple[int, int]], int | None] | None = None
        # Messages of a unit of work; less than configured if the queue manager has a lower limit.
        self._limit = config.batch
        self._moved_at = 0.0
        self.state = "starting"
        #: Messages in the local queue at the last check.
        self.waiting = 0
        self.connections = 0
        self.units = self.sent = self.bytes = self.dead = 0
        #: Commits whose outcome was unknown at first.
        self.doubts = 0
        self.last_error: str | None = None
        self._said = ""

    def stop(self) -> None:
        """Stop after the current call."""
        self._stop.set()

    def run(self) -> None:
        """Send until ``stop``. Raises CommandError without IBM's client."""
        try:
            while not self._stop.is_set():
                pause = self.step()
                if pause and self._wait(pause):
                    break
        finally:
            self._drop()
            self._say("stopped", "stopped")

    def step(self) -> float:
        """Do what can be done now; return the pause before the next step, in s."""
        try:
            if self._committed is not None:
                # Before that, the next batch would contain them.
                self._outbox.settle(*self._committed)
                self._committed = None
            messages = self._outbox.batch(self._limit, self._config.batch_bytes)
            self.waiting = self._outbox.depth() if messages else 0
            if not messages and (self._link is not None or not self._in_doubt()):
                return self._rest()
            if self._link is None:
                self._open()
                # Settling the pending unit may have changed the queue.
                return 0.0
            pause = self._unit(self._link, messages)
            self._moved_at = self._clock()
            return pause
        except (MqiError, RecordError) as error:
            return self._trouble(error)
        except MQMIError as error:
            # The file is full, busy or damaged.
            self._drop()
            self._problem(f"the local queue: {error}", "failing")
            return self._pause(LONGEST)

    def _in_doubt(self) -> bool:
        """Tell whether the outcome of a unit of work is unknown."""
        return bool(self._config.record_queue and self._outbox.state().pending)

    def _rest(self) -> float:
        """Disconnect after the idle time; return the pause."""
        if self._link is not None and self._clock() - self._moved_at >= self._config.idle:
            self._drop()
            self._say("idle", "disconnected: there is nothing to send")
        elif self._link is None and self.state == "starting":
            self._say("idle", "there is nothing to send yet")
        return _LOOK_S

    # -- the connection ----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        config = self._config
        link = self._link = Connection(config.channel)
        self.connections += 1
        self._target = link.open_output(config.queue)
        if config.record_queue:
            self._record = link.open_record(config.record_queue)
            self._number = self._read_record(link)
        self._moved_at = self._clock()
        to = config.channel
        self._say("connected", f"connected to {to.queue_manager or 'a queue manager'} at {to.connection}")

    def _drop(self) -> None:
        link, self._link = self._link, None
        self._target = self._record = None
        if link is not None:
            link.close()

    def _read_record(self, link: Connection) -> int:
        """Return the number of the last unit of work, and settle the pending one. Raises RecordError."""
        state = self._outbox.state()
        self._correl_id = state.identity
        numbers = [_parse(data) for data in link.browse(self._record, state.identity)]
        if not numbers:
            if state.number >= 0:
                raise RecordError(
                    f"there is no record of this queue on {self._config.record_queue}: a commit is in progress, "
                    "or the record was removed",
                    WAIT,
                )
            self._put_record(link, 0)
            link.commit()
            self._outbox.number(0)
            return 0
        number = max(numbers)
        if state.number < 0 and number == 0:
            # The first record, whose commit was in doubt.
            self._outbox.number(0)
        elif state.pending and number == state.number + 1:
            self._outbox.settle(state.pending, (), number)
            self._count(len(state.pending))
        elif number == state.number:
            self._outbox.number(number)
        else:
            raise RecordError(
                f"the record on {self._config.record_queue} says {number}, the local queue {state.number}: one of them "
                "was restored from a copy, or two uplinks share it",
                CONFIGURATION,
            )
        return number

    def _put_record(self, link: Connection, number: int) -> None:
        fields = {"CorrelId": self._correl_id, "Format": b"MQSTR   ", "Persistence": CMQC.MQPER_PERSISTENT}
        link.put(self._record, fields, b"headwater %d" % number)

    # -- a unit of work ----------------------------------------------------------------------------------------------

    def _unit(self, link: Connection, messages: Sequence[Stored]) -> float:
        """Put and commit one unit of work; return the pause in s."""
        number = None if self._record is None else self._take_record(link) + 1
        sent: list[Stored] = []
        dead = []
        full: MqiError | None = None
        for message in messages:
            try:
                link.put(self._target, message.fields, message.data)
            except MqiError as error:
                kind = mqi_reasons.kind(error.reason)
                if kind == MESSAGE:
                    self._problem(f"a message goes to the dead-letter queue: {error}")
                    dead.append((message.token, error.reason))
                    continue
                if kind != WAIT or not sent or error.reason in _UNIT_IS_LOST:
                    raise
                full = error
                break
            sent.append(message)
        if sent:
            self._commit(link, number, [message.token for message in sent])
        elif number is not None:
            link.back_out()
            number = None
        self._number = self._number if number is None else number
        self._count(len(sent), sum(len(message.data) for message in sent))
        self.dead += len(dead)
        self._committed = [message.token for message in sent], dead, number
        self._outbox.settle(*self._committed)
        self._committed = None
        self._failures = 0
        if full is not None:
            # The accepted messages are committed; the rest waits.
            self._problem(str(full), "waiting")
            return self._pause(LONGEST)
        if self.state == "waiting":
            self._say("connected", "it is taken again")
        return 0.0

    def _take_record(self, link: Connection) -> int:
        """Get and so lock the record, which only one connection can have."""
        numbers = [_parse(data) for data in link.take(self._record, self._correl_id)]
        if self._number is None or not numbers or max(numbers) != self._number:
            raise RecordError(f"the record on {self._config.record_queue} is gone", WAIT)
        return self._number

    def _commit(self, link: Connection, number: int | None, sent: list[int]) -> None:
        if number is not None:
            self._put_record(link, number)
            self._outbox.prepare(sent)
        try:
            link.commit()
        except MqiError as error:
            if error.reason == CMQC.MQRC_BACKED_OUT:
                if number is not None:
                    self._outbox.number(number - 1)
            else:
                self.doubts += 1
            raise

    # -- what went wrong ---------------------------------------------------------------------------------------------

    def _trouble(self, error: MqiError | RecordError) -> float:
        """Handle an error; return the pause in s."""
        kind = mqi_reasons.kind(error.reason) if isinstance(error, MqiError) else error.kind
        state = "misconfigured" if kind == CONFIGURATION else "disconnected"
        if kind == WAIT and isinstance(error, MqiError) and error.call == "MQPUT" and self._link is not None:
            try:
                self._link.back_out()
                state = "waiting"
            except MqiError:
                self._drop()
            if error.reason == CMQC.MQRC_SYNCPOINT_LIMIT_REACHED and self._limit > 1:
                self._limit //= 2
                return 0.0
        else:
            self._drop()
        self._problem(str(error), state)
        return self._pause(SLOW if kind == CONFIGURATION else LONGEST)

    def _pause(self, longest: float) -> float:
        limit: float = pause_limit(self._failures, FIRST, longest)
        self._failures += 1
        return limit * random.uniform(0.5, 1.0)

    def failed(self, error: Exception) -> None:
        """Log the exception that ended the uplink."""
        self.last_error = repr(error)
        self.state = "failed"
        _logger.critical("%s: the uplink has failed", self._config.queue, exc_info=error)

    def _problem(self, text: str, state: str | None = None) -> None:
        self.last_error = text
        self._say(state or self.state, text, logging.WARNING)

    def _say(self, state: str, text: str, level: int = logging.INFO) -> None:
        self.state = state
        if text != self._said:
            self._said = text
            _logger.log(level, "%s: %s", self._config.queue, text)

    def _count(self, messages: int, size: int = 0) -> None:
        if messages:
            self.units += 1
            self.sent += messages
            self.bytes += size

    def status(self) -> dict[str, Any]:
        """Return the statistics for JSON."""
        to = self._config.channel
        return {
            "queue_manager": to.queue_manager,
            "connection": to.connection,
            "queue": self._config.queue,
            "state": self.state,
            "connections": self.connections,
            "waiting": self.waiting,
            "units": self.units,
            "sent": self.sent,
            "bytes": self.bytes,
            "dead": self.dead,
            "doubts": self.doubts,
            "last_error": self.last_error,
        }


def _parse(data: bytes) -> int:
    """Return the number in a record. Raises RecordError."""
    name, _, number = data.partition(b" ")
    if name != b"headwater" or not number.isdigit() or len(number) > 18:
        raise RecordError(f"{data[:40]!r} on the record queue is not a record of headwater", CONFIGURATION)
    return int(number)
