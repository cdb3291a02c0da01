"""From the capture log into a local queue of IBM MQ's kind: each record that is on disk once, whatever is killed.

The log is what lasts. A thread of its own follows it from a place that stands in the queue's file and is written in one
transaction with the puts that lead to it, and with what is not yet put together. Nothing waits for it: when it has no
room it stops, and goes on in the log when there is some.
"""

import contextlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from headwater.ibmmq.header import BIG, EBCDIC, sniff
from headwater.ibmmq.layouts import MQMDE
from headwater_host.capture import CaptureReader, Position, Problem
from headwater_host.capture.format import Record, segment_name
from headwater_host.capture.manifest import list_log
from headwater_host.gateway.mq_config import NOW, MqConfig
from headwater_host.gateway.mq_messages import Message, Messages, Names
from headwater_host.ibmmq import CMQC, structures
from headwater_host.ibmmq.assembler import Assembler
from headwater_host.ibmmq.descriptors import MD
from headwater_host.ibmmq.errors import MQMIError
from headwater_host.ibmmq.forward import Forward, LocalQueue, is_full
from headwater_host.ibmmq.logical import IN_GROUP
from headwater_host.ibmmq.outcomes import Problem as Fault
from headwater_host.ibmmq.outcomes import Whole
from headwater_host.ibmmq.structures import HeaderError

# s: how often the log is looked at, and what is there when there was no room.
_LOOK_S, _FULL_S = 0.1, 1.0
# A transaction has so many records at most, and ends behind one that makes it so many bytes.
_RECORDS, _BYTES = 5000, 4 << 20
# So many problems are told in a minute; of the others their number.
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
    """How far the log was read: the segment and offset of the next block, its number, and how many of its records are
    done already."""

    file: str
    at: int
    records: int
    sequence: int


def local_queue(config: MqConfig) -> LocalQueue:
    """The queue and its bounds. What is being put together is in the same file."""
    room = config.bytes + (config.spill if config.reassemble else 0)
    return LocalQueue(config.queue, config.dead_letter_queue, config.depth, config.message_bytes, room)


class Follower:
    """Follows the log in ``directory``. ``durable()`` gives the number of the first block that is not on disk yet.

    Raises MQMIError when the file cannot be used. ``run`` is its life, in a thread of its own; ``stop`` ends it.
    """

    def __init__(self, config: MqConfig, directory: Path, durable: Callable[[], int]):
        self._config = config
        self._directory = directory
        self._durable = durable
        self._stop = threading.Event()
        self._forward = Forward(config.file, local_queue(config))
        try:
            self._place = self._begin()
        except BaseException:
            self._forward.close()
            raise
        # Both know more than the file has while a transaction goes on: one that fails takes them with it.
        self._messages: Messages | None = None
        self._assembler: Assembler | None = None
        self._chunk = _RECORDS
        self._expired = 0.0
        self._now = 0.0
        self._told: deque[float] = deque()
        self._untold = 0
        self._said = ""
        #: What this transaction adds to the counts.
        self._adds: Counter[str] = Counter()
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
            next_block = self._durable()
            if row is not None and row[3] <= next_block:
                return Place(*row)
            if row is not None:
                _logger.warning(
                    "mq: the queue has been given blocks up to %d, and the log has %d: it is read from its beginning",
                    row[3],
                    next_block,
                )
            start = next_block if row is None and self._config.start == NOW else 0
            # The salt in a name says nothing of the order.
            place = Place(segment_name(start, 0), 0, 0, start)
            self._save(db, place)
        return place

    def _save(self, db: Any, place: Place) -> None:
        db.execute("INSERT OR REPLACE INTO follow VALUES (1, ?, ?, ?, ?)", place)

    # -- its life ----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End soon."""
        self._stop.set()

    def run(self) -> None:
        """Until ``stop``."""
        pause = 0.0
        try:
            while not self._stop.wait(pause):
                try:
                    pause = self.step()
                except Exception as error:
                    # A file in trouble, or a mistake of ours: what was under way was not done.
                    self._trouble("failing", str(error), error)
                    pause = _FULL_S
        finally:
            self.close()

    def close(self) -> None:
        """Give the file back; twice is harmless."""
        self._forward.close()

    def step(self) -> float:
        """Take what is there; how long to wait, in s, before the next time."""
        try:
            for block, end in self._blocks():
                if not self._take(block, end):
                    return _FULL_S
                if self._stop.is_set():
                    return 0.0
            self._say("following", "the queue has all that is on disk")
            self._expire(time.time())
        except MQMIError as error:
            if not is_full(error):
                raise
            self._trouble("full", str(error))
            return _FULL_S
        finally:
            self.depth, self.dead_depth = self._forward.depth(), self._forward.dead_depth()
        return _LOOK_S

    def _blocks(self) -> Iterator[tuple[Any, Place]]:
        """The blocks that are on disk and not done, each with the place behind it."""
        limit = self._durable()
        if self._place.sequence >= limit:
            return
        reader = CaptureReader(self._directory, start=self._start(), on_problem=self._damaged)
        for block in reader.blocks():
            sequence = block.header.sequence
            if sequence >= limit:
                return
            if sequence < self._place.sequence:
                continue
            if sequence > self._place.sequence:
                self._missed(sequence - self._place.sequence, sequence)
            assert reader.position is not None
            yield block, Place(*reader.position, 0, sequence + 1)

    def _start(self) -> Position | None:
        """Where to begin to read: the place, or, when it names no segment that is there, the one before it."""
        place = self._place
        if (self._directory / place.file).exists():
            return Position(place.file, place.at)
        before = [one for one in list_log(self._directory).segments if one.first_sequence <= place.sequence]
        return Position(before[-1].path.name, 0) if before else None

    def _damaged(self, problem: Problem) -> None:
        if problem.is_damage:
            self.counts["damage"] += 1
            self._tell(f"the log: {problem}")

    def _missed(self, blocks: int, sequence: int) -> None:
        """Blocks are not there: removed before they were read, or damaged."""
        self.counts["blocks_missed"] += blocks
        self._trouble(
            self.state,
            f"{blocks} blocks in front of block {sequence} of the log are damaged, or gone: nobody had read them",
        )
        self._place = self._place._replace(records=0, sequence=sequence)

    # -- a transaction -----------------------------------------------------------------------------------------------

    def _take(self, block: Any, end: Place) -> bool:
        """Put what a block has, in as many transactions as it takes; False when there is no room."""
        records = list(block.records())
        while self._place.sequence < end.sequence:
            try:
                self._put_some(records, end)
            except MQMIError as error:
                if not is_full(error):
                    raise
                if self._chunk == 1:
                    self._trouble("full", f"the queue is full, and the log waits: {error}")
                    return False
                # Up to where there is room, one transaction after the other.
                self._chunk = max(1, self._chunk // 8)
                continue
            self._chunk = min(self._chunk * 2, _RECORDS)
            if self.state != "following":
                self._say("catching up", "the queue takes what is in the log")
            if self._stop.is_set():
                break
        return True

    def _put_some(self, records: list[Record], end: Place) -> None:
        """One transaction, of as many records as it may have; behind the last one stands ``end``."""
        size = 0
        done = self._place.records
        with self._transaction() as (db, assembler):
            messages = self._messages_of(db)
            for record in records[done : done + self._chunk]:
                done += 1
                size += len(record.frame)
                self._now = record.time_ns / 1e9
                message = messages.message(record)
                if message is not None:
                    self._message(message, assembler)
                if size >= _BYTES:
                    break
            place = end if done >= len(records) else self._place._replace(records=done)
            self._save(db, place)
        self._place = place

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[tuple[Any, Assembler | None]]:
        """All within happens, with what is counted, or nothing."""
        self._adds.clear()
        config = self._config
        try:
            with self._forward.transaction() as db:
                if config.reassemble and self._assembler is None:
                    self._assembler = Assembler(
                        db, memory=config.memory, room=config.spill, timeout=config.timeout
                    )
                assembler = self._assembler
                duplicates = assembler.counts.duplicates if assembler else 0
                yield db, assembler
                if assembler is not None:
                    assembler.flush()
                    self._adds["duplicates"] += assembler.counts.duplicates - duplicates
                    self.incomplete = assembler.groups
        except BaseException:
            self._assembler = self._messages = None
            raise
        self.counts.update(self._adds)

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

    def _message(self, message: Message, assembler: Assembler | None) -> None:
        self._adds["messages"] += 1
        if assembler is None:
            self._put_as_it_is(message)
            return
        for outcome in assembler.add(message.topic, message.payload, self._now):
            if isinstance(outcome, Whole):
                self._put_whole(outcome, message.msg_id)
            elif isinstance(outcome, Fault):
                self._fault(outcome, message.payload)

    def _plain(self, msg_id: bytes | None) -> MD:
        """The descriptor of what has no MQMDE."""
        return MD(
            Version=CMQC.MQMD_VERSION_2,
            Format=self._config.format,
            CodedCharSetId=self._config.ccsid,
            MsgId=msg_id or CMQC.MQMI_NONE,
        )

    def _put_as_it_is(self, message: Message) -> None:
        """A message with its MQMDE, if it has one, which the queue honours when it is in the queue manager's form."""
        payload = message.payload
        kind = sniff(payload, 0, len(payload))
        if not kind:
            self._put(self._plain(message.msg_id), payload)
            return
        settings = self._forward.settings
        try:
            fields = structures.decode(
                MQMDE, payload, big=bool(kind & BIG), ccsid=500 if kind & EBCDIC else 819
            )
            own = structures.encode(MQMDE, fields, big=settings.big, ccsid=settings.ccsid)
            md = MD(Format=CMQC.MQFMT_MD_EXTENSION, MsgId=message.msg_id or CMQC.MQMI_NONE)
            self._forward.put(md, own + payload[len(own) :])
        except (HeaderError, MQMIError) as error:
            if isinstance(error, MQMIError) and is_full(error):
                raise
            self._problem("malformed", f"{message.topic}: {error}")
            self._set_aside(MD(Version=CMQC.MQMD_VERSION_2), payload, error.reason)
        else:
            self._count(len(payload) - len(own))

    def _put_whole(self, whole: Whole, msg_id: bytes | None) -> None:
        """A logical message, or one that has no MQMDE. What is too long for the queue goes in segments."""
        config = self._config
        if whole.length > config.bytes:
            self._problem(
                "too large", f"{whole.topic}: {whole.length} bytes are more than the queue has room for"
            )
            return
        md = self._plain(msg_id)
        if whole.encoding:
            md.set(Format=whole.format, Encoding=whole.encoding, CodedCharSetId=whole.ccsid)
        md.set(GroupId=whole.group_id, MsgSeqNumber=whole.seq, MsgFlags=whole.flags & IN_GROUP)
        if not md.MsgFlags:
            md.set(MsgSeqNumber=1, GroupId=CMQC.MQGI_NONE)
        if whole.length <= config.message_bytes:
            self._put(md, whole.read())
            return
        md.set(GroupId=whole.group_id, MsgSeqNumber=whole.seq, MsgId=CMQC.MQMI_NONE)
        # Segments end at multiples of 16, as the queue manager's own do.
        most = config.message_bytes // 16 * 16
        waiting = bytearray()
        offset = 0
        for chunk in whole.chunks():
            waiting += chunk
            while len(waiting) > most:
                self._segment(md, offset, waiting[:most], CMQC.MQMF_SEGMENT)
                del waiting[:most]
                offset += most
        self._segment(md, offset, waiting, CMQC.MQMF_LAST_SEGMENT)

    def _segment(self, md: MD, offset: int, data: bytearray, flag: int) -> None:
        one = md.copy()
        one.set(Offset=offset, MsgFlags=md.MsgFlags | flag, OriginalLength=len(data))
        self._put(one, memoryview(bytes(data)))

    def _put(self, md: MD, data: "bytes | memoryview") -> None:
        """To the queue; what cannot be a message there is set aside."""
        try:
            self._forward.put(md, data)
        except MQMIError as error:
            if is_full(error):
                raise
            self._problem("refused", str(error))
            self._set_aside(md, data, error.reason)
        else:
            self._count(len(data))

    def _count(self, size: int) -> None:
        self._adds["put"] += 1
        self._adds["bytes"] += size

    # -- what is not put ---------------------------------------------------------------------------------------------

    def _expire(self, now: float) -> None:
        """Report what has stayed incomplete for too long, when nothing is left to read that may complete it."""
        config = self._config
        if not config.reassemble or now - self._expired < min(1.0, config.timeout / 4):
            return
        if self._assembler is None or self._assembler.groups:
            with self._transaction() as (_, assembler):
                assert assembler is not None
                for fault in assembler.expire(now):
                    self._fault(fault, b"")
        self._expired = now

    def _fault(self, fault: Fault, payload: "bytes | memoryview") -> None:
        """What an assembler does not hand out: to the dead-letter queue, with the reason."""
        self._problem(fault.kind, str(fault))
        md = MD(Version=CMQC.MQMD_VERSION_2)
        if not fault.aside:
            self._set_aside(md, payload, fault.reason)
            return
        for seq, offset, data in fault.pieces():
            one = md.copy()
            one.set(GroupId=fault.group_id, MsgSeqNumber=seq, Offset=offset, MsgFlags=CMQC.MQMF_SEGMENT)
            self._set_aside(one, data, fault.reason)

    def _set_aside(self, md: MD, data: "bytes | memoryview", reason: int) -> None:
        try:
            self._forward.set_aside(md, data, reason)
        except MQMIError as error:
            if not is_full(error):
                raise
            # The log still has it: what nobody looks at must not stop what is whole.
            self._adds["not_set_aside"] += 1
        else:
            self._adds["set_aside"] += 1

    def _problem(self, kind: str, text: str) -> None:
        self._adds[f"problem: {kind}"] += 1
        self._tell(text)

    # -- what is said ------------------------------------------------------------------------------------------------

    def _tell(self, text: str) -> None:
        self.last_error = text
        now = time.monotonic()
        while self._told and self._told[0] < now - 60:
            self._told.popleft()
        if len(self._told) >= _TOLD:
            self._untold += 1
            return
        self._told.append(now)
        more = f" ({self._untold} other problems were not told)" if self._untold else ""
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

    def status(self) -> dict[str, Any]:
        """What is known, as JSON can hold it. For any thread."""
        counts = Counter(self.counts)
        problems = {name.partition(": ")[2]: n for name, n in counts.items() if name.startswith("problem: ")}
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
