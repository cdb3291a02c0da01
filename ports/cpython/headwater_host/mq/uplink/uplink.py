"""Store and forward: what is in a local queue goes to a queue of a queue manager, in units of work, for ever.

A unit of work is a batch from the front of the local queue. Its messages stay in the local queue until MQCMIT has
succeeded. When the connection is lost during MQCMIT nobody knows whether it was done, so:

- with a *record queue*, each unit of work takes a small message from it and puts the next one, with its number, as a
  message channel does. Which messages make up the unit is written down locally first. After a reconnect the record says
  whether it was committed: each message arrives exactly once. While a commit may still be on its way the record is
  locked, so there seems to be none, and the uplink waits;
- without one the unit is sent again: each message arrives at least once, with the same MsgId each time.

The order is that of the local queue. A message that the queue manager will never take goes to the local dead-letter
queue, with the reason, and the next one goes on.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from headwater_host.mq import CMQC
from headwater_host.mq.errors import MQMIError
from headwater_host.mq.uplink import mqi, mqi_reasons
from headwater_host.mq.uplink.mqi import MqiError
from headwater_host.mq.uplink.mqi_reasons import CONFIGURATION, MESSAGE, WAIT

#: s: the first pause after what went wrong, the longest, and the longest while somebody has to do something.
FIRST, LONGEST, SLOW = 1.0, 60.0, 300.0
# How often a quiet local queue is looked at.
_LOOK_S = 0.25
# After these what was put before cannot be committed.
_UNIT_IS_LOST = (CMQC.MQRC_BACKED_OUT, CMQC.MQRC_SYNCPOINT_LIMIT_REACHED)

_logger = logging.getLogger("headwater.uplink")


class Stored(NamedTuple):
    """A message of the local queue: what names it there, its MQMD by IBM's names, its data."""

    token: int
    fields: Mapping[str, Any]
    data: bytes


class State(NamedTuple):
    """What is known locally of the record queue.

    ``number``: of the last unit of work that was committed; -1 before there was a record. ``pending``: the messages of
    the one behind it, when its outcome is not known.
    """

    identity: bytes
    number: int
    pending: tuple[int, ...]


class Outbox(Protocol):
    """The local queue, as the uplink sees it. Each method is durable when it returns. MQMIError: its file is in
    trouble, and nothing has happened."""

    def batch(self, messages: int, size: int) -> Sequence[Stored]:
        """The oldest messages, at most so many and, but for the first, of so many bytes together."""
        ...

    def depth(self) -> int:
        """How many messages wait."""
        ...

    def settle(self, sent: Sequence[int], dead: Sequence[tuple[int, int]], number: int | None) -> None:
        """These are committed, and these, with their reason codes, go to the dead-letter queue. ``number``: of the unit
        of work, which is not pending any more."""
        ...

    def state(self) -> State:
        """What is known of the record queue."""
        ...

    def prepare(self, pending: Sequence[int]) -> None:
        """A unit of work of these is about to be committed."""
        ...

    def number(self, number: int) -> None:
        """The record says that this one is the last; nothing is pending."""
        ...


class QueueManager(Protocol):
    """A connection, as ``mqi.Connection`` is one."""

    def open_output(self, queue: str) -> Any:
        """Open a queue to put to."""
        ...

    def open_record(self, queue: str) -> Any:
        """Open a record queue."""
        ...

    def put(self, queue: Any, fields: Mapping[str, Any], data: bytes) -> None:
        """Put in the unit of work."""
        ...

    def browse(self, queue: Any, correl_id: bytes) -> list[bytes]:
        """Messages with this CorrelId."""
        ...

    def take(self, queue: Any, correl_id: bytes) -> list[bytes]:
        """The same, taken in the unit of work."""
        ...

    def commit(self) -> None:
        """End the unit of work."""
        ...

    def back_out(self) -> None:
        """Undo it."""
        ...

    def close(self) -> None:
        """Undo it and disconnect."""
        ...


@dataclass(frozen=True)
class UplinkConfig:
    """Where to, and how. ``idle``: s without a message until the connection is given up until the next one."""

    channel: mqi.Channel
    queue: str
    record_queue: str = ""
    #: A unit of work: messages, and bytes (one larger message is a unit of its own).
    batch: int = 50
    batch_bytes: int = 4 << 20
    idle: float = 60.0


class RecordError(Exception):
    """The record of what was committed is not what it must be; ``kind`` says what to do about it."""

    def __init__(self, text: str, kind: str):
        super().__init__(text)
        self.kind = kind


class Uplink:
    """One uplink; ``run`` is its life, in a thread of its own, and ``stop`` ends it.

    ``connect`` makes a connection. ``wait(seconds)`` waits, or less, and says whether to stop; with ``clock`` it is all
    there is of time.
    """

    def __init__(
        self,
        config: UplinkConfig,
        outbox: Outbox,
        connect: Callable[[mqi.Channel], QueueManager] = mqi.Connection,
        wait: Callable[[float], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._config = config
        self._outbox = outbox
        self._connect = connect
        self._stop = threading.Event()
        self._wait = wait or self._stop.wait
        self._clock = clock
        self._link: QueueManager | None = None
        self._target: Any = None
        self._record: Any = None
        self._number: int | None = None
        self._correl_id = b""
        self._failures = 0
        # What is committed, and not yet noted locally.
        self._committed: tuple[list[int], list[tuple[int, int]], int | None] | None = None
        # Fewer messages than the configuration allows, when a queue manager takes no more at a time.
        self._limit = config.batch
        self._moved_at = 0.0
        self.state = "starting"
        #: Messages in the local queue, when it was last looked at.
        self.waiting = 0
        self.connections = 0
        self.units = self.sent = self.bytes = self.dead = 0
        #: Commits of which nobody knew the outcome at first.
        self.doubts = 0
        self.last_error: str | None = None
        self._said = ""

    def stop(self) -> None:
        """End soon: a call that is under way is waited for."""
        self._stop.set()

    def run(self) -> None:
        """Until ``stop``. Raises CommandError when IBM's client is not there."""
        try:
            while not self._stop.is_set():
                pause = self.step()
                if pause and self._wait(pause):
                    break
        finally:
            self._drop()
            self._say("stopped", "stopped")

    def step(self) -> float:
        """Do what can be done now: s to wait before the next time."""
        try:
            if self._committed is not None:
                # Its messages must not be seen before.
                self._outbox.settle(*self._committed)
                self._committed = None
            messages = self._outbox.batch(self._limit, self._config.batch_bytes)
            self.waiting = self._outbox.depth() if messages else 0
            if not messages and (self._link is not None or not self._in_doubt()):
                return self._rest()
            if self._link is None:
                self._open()
                # What was pending may have gone from the local queue.
                return 0.0
            pause = self._unit(self._link, messages)
            self._moved_at = self._clock()
            return pause
        except (MqiError, RecordError) as error:
            return self._trouble(error)
        except MQMIError as error:
            # The file: full, busy, damaged.
            self._drop()
            self._problem(f"the local queue: {error}", "failing")
            return self._pause(LONGEST)

    def _in_doubt(self) -> bool:
        """Whether a record has to say what became of a unit of work."""
        return bool(self._config.record_queue and self._outbox.state().pending)

    def _rest(self) -> float:
        """Nothing is to be done."""
        if self._link is not None and self._clock() - self._moved_at >= self._config.idle:
            self._drop()
            self._say("idle", "disconnected: there is nothing to send")
        elif self._link is None and self.state == "starting":
            self._say("idle", "there is nothing to send yet")
        return _LOOK_S

    # -- the connection ----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        config = self._config
        link = self._link = self._connect(config.channel)
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

    def _read_record(self, link: QueueManager) -> int:
        """The number of the last unit of work; what was pending is settled. Raises RecordError."""
        state = self._outbox.state()
        self._correl_id = state.identity
        numbers = [_parse(data) for data in link.browse(self._record, state.identity)]
        if not numbers:
            if state.number >= 0:
                raise RecordError(
                    f"there is no record of this queue on {self._config.record_queue}: a commit is still under way, "
                    "or somebody has taken it",
                    WAIT,
                )
            self._put_record(link, 0)
            link.commit()
            self._outbox.number(0)
            return 0
        number = max(numbers)
        if state.number < 0 and number == 0:
            # The first record, the commit of which was in doubt.
            self._outbox.number(0)
        elif state.pending and number == state.number + 1:
            self._outbox.settle(state.pending, (), number)
            self._count(len(state.pending))
        elif number == state.number:
            self._outbox.number(number)
        else:
            raise RecordError(
                f"the record on {self._config.record_queue} says {number}, the local queue {state.number}: one of them "
                "was put back, or two uplinks share it",
                CONFIGURATION,
            )
        return number

    def _put_record(self, link: QueueManager, number: int) -> None:
        fields = {"CorrelId": self._correl_id, "Format": b"MQSTR   ", "Persistence": CMQC.MQPER_PERSISTENT}
        link.put(self._record, fields, b"headwater %d" % number)

    # -- a unit of work ----------------------------------------------------------------------------------------------

    def _unit(self, link: QueueManager, messages: Sequence[Stored]) -> float:
        """Put and commit: s to wait before the next one."""
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
            # What it has taken is committed; the rest waits.
            self._problem(str(full), "waiting")
            return self._pause(LONGEST)
        if self.state == "waiting":
            self._say("connected", "it is taken again")
        return 0.0

    def _take_record(self, link: QueueManager) -> int:
        """Lock the record: two uplinks, or a lost connection of our own, cannot both have it."""
        numbers = [_parse(data) for data in link.take(self._record, self._correl_id)]
        if self._number is None or not numbers or max(numbers) != self._number:
            raise RecordError(f"the record on {self._config.record_queue} is not there any more", WAIT)
        return self._number

    def _commit(self, link: QueueManager, number: int | None, sent: list[int]) -> None:
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
        """How long to wait, in s, before it is tried again."""
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
        limit = min(longest, FIRST * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return limit * random.uniform(0.5, 1.0)

    def failed(self, error: Exception) -> None:
        """Say what has ended it."""
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
        """What is known, as JSON can hold it."""
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
    """The number in a record. Raises RecordError."""
    name, _, number = data.partition(b" ")
    if name != b"headwater" or not number.isdigit() or len(number) > 18:
        raise RecordError(f"{data[:40]!r} on the record queue is none of ours", CONFIGURATION)
    return int(number)
