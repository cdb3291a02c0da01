"""Follow the capture log into a local IBM MQ queue.

A thread reads the log from a position in the queue file, which is written in one transaction with the puts and with
incomplete messages. Nothing waits for the thread: without room it pauses, and later continues in the log.
"""

import contextlib
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from headwater_host.capture import CaptureReader, Position, Problem
from headwater_host.capture.format import Record, segment_name
from headwater_host.capture.manifest import Listing, list_log
from headwater_host.gateway.mq_config import NOW, MqConfig
from headwater_host.gateway.mq_messages import Messages, Names
from headwater_host.gateway.mq_puts import PROBLEM, Puts
from headwater_host.mq import CMQC
from headwater_host.mq.errors import MQMIError, failed
from headwater_host.mq.reassembly.assembler import Assembler
from headwater_mq.forward import Forward, LocalQueue, is_full

# Intervals in s: checks of the log, and retries after lack of room.
_LOOK_S, _FULL_S = 0.1, 1.0
# Limits of a transaction; it ends after the record that exceeds the bytes.
_RECORDS, _BYTES = 5000, 4 << 20
# Blocks without messages for the queue after which the position is written.
_UNSAVED = 1000
# Problems that are logged in a minute; of the others their number.
_TOLD = 20
_TABLES = """
CREATE TABLE IF NOT EXISTS follow (id INTEGER PRIMARY KEY CHECK (id = 1), file TEXT NOT NULL, at INTEGER NOT NULL,
 records INTEGER NOT NULL, sequence INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS follow_topics (hash TEXT PRIMARY KEY, name TEXT NOT NULL) WITHOUT ROWID
"""

_COUNTS = (
    "messages",
    "put",
    "bytes",
    "duplicates",
    "set_aside",
    "not_set_aside",
    "unnamed",
    "malformed",
    "blocks_missed",
    "damage",
)

_logger = logging.getLogger("headwater.gateway")


class Place(NamedTuple):
    """A position in the log: segment and offset of the next block, the number of its records that are done, its
    sequence number."""

    file: str
    at: int
    records: int
    sequence: int


class _Item(NamedTuple):
    """A record, the position after it, and the number of missing blocks before it."""

    record: Record
    behind: Place
    missed: int


def _knows(listing: Listing, place: Place) -> bool:
    """Tell whether the log contains, or once contained, this position: the manifest keeps names of removed segments."""
    if place[1:] == (0, 0, 0):
        # Nothing has been read.
        return True
    entry = listing.manifest.entries.get(place.file)
    if entry is not None:
        return place.at <= entry.bytes
    sizes = [one.path.stat().st_size for one in listing.segments if one.name == place.file]
    return bool(sizes) and place.at <= sizes[0]


def local_queue(config: MqConfig) -> LocalQueue:
    """Return the queue and its limits, including incomplete messages in the same file."""
    room = config.bytes + (config.spill if config.reassemble else 0)
    return LocalQueue(config.queue, config.dead_letter_queue, config.depth, config.message_bytes, room)


class Follower:
    """Follows the log in ``directory``; ``run`` in a thread, until ``stop``.

    ``durable()`` returns the sequence number of the first block that is not on disk. Raises MQMIError if the queue file
    is unusable.
    """

    def __init__(
        self, config: MqConfig, directory: Path, durable: Callable[[], int], *, group_readable: bool = False
    ):
        self._config = config
        self._directory = directory
        self._durable = durable
        self._stop = threading.Event()
        self._forward = Forward(config.file, local_queue(config), group_readable=group_readable)
        try:
            self._saved = self._place = self._begin()
        except BaseException:
            self._forward.close()
            raise
        # Both run ahead of the file within a transaction, so a failed transaction discards them.
        self._messages: Messages | None = None
        self._assembler: Assembler | None = None
        # True if the incomplete messages in the file have been checked.
        self._mended = False
        # True if an earlier configuration has left incomplete messages.
        self._left = not config.reassemble and self._forward.has_pieces()
        self._chunk = _RECORDS
        # The end of readable blocks when the end of the log is missing; damage that was logged.
        self._end: tuple[int, Place] | None = None
        self._known_damage: set[tuple[str, int]] = set()
        self._state = (-1, -1)
        self._expired = 0.0
        self._told: deque[float] = deque()
        self._untold = 0
        self._said = ""
        #: Counts of this transaction.
        self._adds: Counter[str] = Counter()
        #: Problems of this transaction, logged when it succeeds: it is retried after lack of room.
        self._found: list[str] = []
        self._puts = Puts(config, self._forward, self._adds, self._found.append)
        self.counts: Counter[str] = Counter()
        self.state = "starting"
        self.depth = self.dead_depth = self.incomplete = 0
        self.last_error: str | None = None

    def _begin(self) -> Place:
        forward = self._forward
        with forward.transaction() as db:
            for statement in _TABLES.split(";"):
                db.execute(statement)
            row = db.execute("SELECT file, at, records, sequence FROM follow").fetchone()
            next_block, listing = self._durable(), list_log(self._directory)
            if row is not None:
                if not isinstance(row[0], str) or not all(
                    isinstance(one, int) and one >= 0 for one in row[1:]
                ):
                    text = f"{self._config.file} is damaged (the position in the log)"
                    raise failed(CMQC.MQRC_OBJECT_DAMAGED, text)
                place = Place(*row)
                if place.sequence <= next_block and _knows(listing, place):
                    return place
                _logger.warning(
                    "mq: the queue has been given blocks up to %d of another log than this, which has %d: it is read "
                    "from its beginning",
                    place.sequence,
                    next_block,
                )
            place = Place(segment_name(0, 0), 0, 0, 0)
            if row is None and self._config.start == NOW and next_block:
                names = [*listing.manifest.entries, *(one.name for one in listing.segments)]
                place = Place(max(names), 0, 0, next_block)
            self._save(db, place)
        return place

    def _save(self, db: Any, place: Place) -> None:
        db.execute("INSERT OR REPLACE INTO follow VALUES (1, ?, ?, ?, ?)", place)
        self._saved = place

    # -- its life ----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop soon."""
        self._stop.set()

    def run(self) -> None:
        """Follow the log until ``stop``."""
        pause = 0.0
        try:
            while not self._stop.wait(pause):
                try:
                    pause = self.step()
                except Exception as error:
                    # An error of the file, or a bug: the transaction was undone.
                    self._trouble("failing", str(error), error)
                    pause = _FULL_S
        finally:
            with contextlib.suppress(MQMIError):
                if self._saved != self._place:
                    with self._forward.transaction() as db:
                        self._save(db, self._place)
            self.close()

    def close(self) -> None:
        """Close the queue file. A second call does nothing."""
        self._forward.close()

    def step(self) -> float:
        """Put what is in the log; return the pause in s."""
        try:
            while self._left:
                # Without reassembly nothing completes these messages.
                self._give_up(math.inf)
                self._left = self._forward.has_pieces()
            if not self._catch_up():
                return _FULL_S
            self._say("following", "the queue has all that is on disk")
            self._expire(self._now())
        except MQMIError as error:
            if not is_full(error):
                raise
            self._trouble("full", str(error))
            return _FULL_S
        finally:
            self._look_at_depths()
        return _LOOK_S

    def _now(self) -> float:
        """Return the age time in s."""
        return self._forward.file.now() / 1000

    def _look_at_depths(self) -> None:
        state = self._forward.file.state()
        if state != self._state:
            self._state = state
            self.depth, self.dead_depth = self._forward.depth(), self._forward.dead_depth()

    def _catch_up(self) -> bool:
        """Put all durable records, transaction by transaction; return False without room."""
        source = self._records()
        waiting: list[_Item] = []
        size = 0
        while not self._stop.is_set():
            for item in islice(source, max(self._chunk - len(waiting), 0)) if size < _BYTES else ():
                waiting.append(item)
                size += len(item.record.frame)
                if size >= _BYTES:
                    break
            if not waiting:
                return True
            part = waiting[: self._chunk]
            try:
                self._put_some(part)
            except MQMIError as error:
                if not is_full(error):
                    raise
                if len(part) == 1:
                    self._trouble("full", f"the queue is full, and the log waits: {error}")
                    return False
                # Retry with smaller transactions, to use the room there is.
                self._chunk = len(part) // 8 or 1
                continue
            del waiting[: len(part)]
            size = sum(len(item.record.frame) for item in waiting)
            self._chunk = min(self._chunk * 2, _RECORDS)
            if self.state != "following":
                self._say("catching up", "the queue takes what is in the log")
        return True

    # -- the log -----------------------------------------------------------------------------------------------------

    def _records(self) -> "Iterator[_Item]":
        """Yield durable records that are not done."""
        limit = self._durable()
        place = self._place
        if place.sequence >= limit or (limit, place) == self._end:
            return
        reader = CaptureReader(self._directory, start=self._start(), on_problem=self._damaged)
        for block in reader.blocks():
            sequence = block.header.sequence
            if sequence >= limit:
                return
            if sequence < place.sequence:
                continue
            missed = sequence - place.sequence
            done = 0 if missed else place.records
            assert reader.position is not None
            file, end = reader.position
            begin = end - block.header.block_length
            place = Place(file, end, 0, sequence + 1)
            for number, record in enumerate(block.records(), 1):
                if number > done:
                    behind = place if number == block.header.records else Place(file, begin, number, sequence)
                    yield _Item(record, behind, missed)
                    missed = 0
        # Do not search again for blocks that are missing at the end.
        self._end = limit, place

    def _start(self) -> Position | None:
        """Return where to start reading: the position, or the segment before it if its segment is gone."""
        place = self._place
        if (self._directory / place.file).exists():
            return Position(place.file, place.at)
        before = [one for one in list_log(self._directory).segments if one.first_sequence <= place.sequence]
        return Position(before[-1].name, 0) if before else None

    def _damaged(self, problem: Problem) -> None:
        if problem.is_damage and (problem.file, problem.offset) not in self._known_damage:
            self._known_damage.add((problem.file, problem.offset))
            self.counts["damage"] += 1
            self._tell(f"the log: {problem}")

    # -- a transaction -----------------------------------------------------------------------------------------------

    def _put_some(self, items: "list[_Item]") -> None:
        """Put records in one transaction."""
        with self._transaction(items[-1].behind) as (db, assembler):
            messages = self._messages_of(db)
            now = self._now()
            for record, behind, missed in items:
                if missed:
                    self._adds["blocks_missed"] += missed
                    self._found.append(
                        f"{missed} blocks of the log in front of block {behind.sequence - (not behind.records)} are "
                        "damaged or gone and were not read"
                    )
                message = messages.message(record)
                if message is not None:
                    self._puts.take(message, assembler, now)

    @contextlib.contextmanager
    def _transaction(self, place: Place) -> Iterator[tuple[Any, Assembler | None]]:
        """Run a transaction with its counts, problems and the position in the log."""
        self._adds.clear()
        self._found.clear()
        config = self._config
        try:
            with self._forward.transaction() as db:
                changes = db.total_changes
                if not (config.reassemble or self._left):
                    self._assembler = None
                elif self._assembler is None:
                    self._assembler = Assembler(
                        db,
                        memory=config.memory,
                        room=config.spill,
                        open_groups=config.open_groups,
                        timeout=config.timeout,
                        mend=not self._mended,
                    )
                    self._mended = not self._assembler.damaged
                    if self._assembler.damaged:
                        self._adds["damage"] += self._assembler.damaged
                        self._found.append(
                            f"{self._config.file} is damaged: what it has of {self._assembler.damaged} GroupIds that "
                            "are not reassembled yet is given up"
                        )
                assembler = self._assembler
                duplicates = assembler.counts.duplicates if assembler else 0
                yield db, assembler
                if assembler is not None:
                    assembler.flush()
                    self._adds["duplicates"] += assembler.counts.duplicates - duplicates
                    self.incomplete = assembler.groups
                # Records that are not for the queue can be read again, so their position is written seldom.
                if db.total_changes != changes or place.sequence - self._saved.sequence > _UNSAVED:
                    self._save(db, place)
        except BaseException:
            self._assembler = self._messages = None
            raise
        self._place = place
        self.counts.update(self._adds)
        for text in self._found:
            self._tell(text)

    def _messages_of(self, db: Any) -> Messages:
        if self._messages is None:

            def known(key: str) -> str | None:
                row = db.execute("SELECT name FROM follow_topics WHERE hash = ?", (key,)).fetchone()
                return None if row is None else str(row[0])

            def remember(key: str, name: str) -> None:
                db.execute("INSERT OR IGNORE INTO follow_topics VALUES (?, ?)", (key, name))

            def count(name: str) -> None:
                self._adds[name] += 1

            names = [one for one in self._config.topics if "+" not in one and "#" not in one]
            self._messages = Messages(self._config.topics, Names(names, known, remember), count)
        return self._messages

    # -- what stays incomplete ------------------------------------------------------------------------------------

    def _expire(self, now: float) -> None:
        """Report messages that are incomplete after the timeout, once the log is read."""
        config = self._config
        # The assembler must see that the clock has gone back.
        if not config.reassemble or 0 <= now - self._expired < min(1.0, config.timeout / 4):
            return
        if self._assembler is None or self._assembler.groups:
            self._give_up(now)
        self._expired = now

    def _give_up(self, now: float) -> None:
        with self._transaction(self._place) as (_, assembler):
            assert assembler is not None
            for fault in assembler.expire(now):
                self._puts.fault(fault, b"")

    # -- the log of events -----------------------------------------------------------------------------------------

    def _tell(self, text: str) -> None:
        self.last_error = text
        now = time.monotonic()
        while self._told and self._told[0] < now - 60:
            self._told.popleft()
        if len(self._told) >= _TOLD:
            self._untold += 1
            return
        self._told.append(now)
        more = f" ({self._untold} other problems were not logged)" if self._untold else ""
        self._untold = 0
        _logger.warning(
            "mq: %s%s", "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text), more
        )

    def _trouble(self, state: str, text: str, error: Exception | None = None) -> None:
        self.last_error = text
        unknown = error is not None and not isinstance(error, (MQMIError, OSError))
        self._say(state, text, logging.ERROR if unknown else logging.WARNING, error if unknown else None)

    def _say(self, state: str, text: str, level: int = logging.INFO, error: Exception | None = None) -> None:
        self.state = state
        if text != self._said:
            self._said = text
            _logger.log(level, "mq: %s", text, exc_info=error)

    @property
    def position(self) -> int:
        """The number of the first block that a restart would read."""
        # ``_save`` runs ahead of its transaction, ``_place`` follows it.
        return min(self._saved.sequence, self._place.sequence)

    def status(self) -> dict[str, Any]:
        """Return the statistics for JSON. For any thread."""
        counts = Counter(self.counts)
        problems = {name.removeprefix(PROBLEM): n for name, n in counts.items() if name.startswith(PROBLEM)}
        place = self._place
        return {
            "queue": self._config.queue,
            "state": self.state,
            "blocks_behind": max(self._durable() - place.sequence, 0),
            "depth": self.depth,
            "dead_letters": self.dead_depth,
            "incomplete": self.incomplete,
            **{name: counts[name] for name in _COUNTS},
            "problems": problems,
            "last_error": self.last_error,
        }
