"""Keep tables up to date: a streaming query whose micro-batches carry positions, each added as a batch of the tables.

Spark triggers, bounds the micro-batches and stores their positions. The tables have positions of their own, which
decide what is new: a micro-batch that runs again, or that another run was faster with, adds nothing.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater_host.capture.filesystem import Location
from headwater_host.capture.log_id import LogIdError, log_id
from headwater_host.capture.manifest import list_log
from headwater_spark.batches import Batches, BusyError
from headwater_spark.engine import Engine
from headwater_spark.growth import compact, grow
from headwater_spark.place import Place
from headwater_spark.plan import Log
from headwater_spark.positions import Position, advance, format_positions, parse_positions
from headwater_spark.result import Result
from headwater_spark.sizes import COMPACT_EVERY, TRIGGER_BYTES, TRIGGER_S
from headwater_spark.tables import POSITIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: The folder in the tables' directory with the checkpoints, unless another is given.
CHECKPOINTS = "_checkpoints"
_QUERY = "logs"
_POLL_S = 0.05
_BUSY_S = 1.0

Say = Callable[[str], None]


class Progress(NamedTuple):
    """The numbers of a micro-batch, and what the logs have after it."""

    #: The micro-batch's number in the query.
    number: int
    result: Result
    seconds: float
    #: Bytes of the logs that are not in the tables yet.
    behind: int


class _StopError(Exception):
    """The query shall stop: a micro-batch that has not begun does not begin."""


class Stream:
    """A query that keeps the tables in `out` up to date with `logs`.

    `settings` are those of `growth.grow`. `show` is called after each micro-batch. After `compact_every` micro-batches,
    small files are merged; 0: never. Raises ValueError if the logs have different storage options.
    """

    def __init__(
        self,
        engine: Engine,
        logs: Sequence[Log],
        out: Location | Place,
        *,
        show: Callable[[Progress], None] = lambda progress: None,
        say: Say = lambda text: None,
        compact_every: int = COMPACT_EVERY,
        **settings: Any,
    ):
        if len({log.storage for log in logs}) != 1:
            raise ValueError("a stream needs logs, all with the same storage options")
        self._engine = engine
        self._logs = list(logs)
        self._out = Place.at(out)
        self._show = show
        self._say = say
        self._settings = settings
        self._derive_every_s: float = settings.get("derive_every_s", 0)
        self._stopping = threading.Event()
        self._named = threading.Event()
        self._name = ""
        self._error: BaseException | None = None
        self._reached: dict[str, Position] = {}
        # Spark adds batches in a thread of its own.
        self._turn = threading.Lock()
        # When the last batch ended after which the derived tables may lack messages.
        self._last_s: float | None = None
        self._compact_every = compact_every
        self._small = 0

    def stop(self) -> None:
        """Let `run` return after the present micro-batch. May be called from a signal handler."""
        self._stopping.set()

    def run(
        self,
        spark: SparkSession,
        *,
        checkpoint: Path | None = None,
        trigger: float | None = TRIGGER_S,
        bytes_per_trigger: int = TRIGGER_BYTES,
    ) -> None:
        """Run the query until `stop`; with `trigger` None, until the tables have what the logs have now.

        `trigger` is the time between two micro-batches in seconds, `bytes_per_trigger` a micro-batch's maximum bytes
        of all logs. Tables in an object store need a `checkpoint`. Raises what `grow` raises, and Spark's errors.
        """
        try:
            self._begin()
        except _StopError:
            return
        checkpoint = (checkpoint or self._default_checkpoint()).absolute()
        writer = self._positions(spark, bytes_per_trigger).writeStream
        # Without `file:`, it would be in the default file system of Hadoop's configuration.
        writer = writer.option("checkpointLocation", f"file://{checkpoint}")
        when: dict[str, Any] = (
            {"availableNow": True}
            if trigger is None
            else {"processingTime": f"{round(trigger * 1000)} milliseconds"}
        )
        query = writer.foreachBatch(partial(self._batch, checkpoint)).trigger(**when).start()
        self._name = query.id
        self._named.set()
        self._wait(query)

    def _begin(self) -> None:
        """Complete a batch that a crash has interrupted, and begin where the tables end."""
        self._grow([log for log in self._logs if _id_of(log) is not None], upto={})
        last = Batches(self._out).last()
        if last is not None:
            self._reached = dict(last.positions)

    def _positions(self, spark: SparkSession, bytes_per_trigger: int) -> DataFrame:
        """Return the ends of the micro-batches."""
        options = {
            "paths": json.dumps([log.location for log in self._logs]),
            "view": POSITIONS.name,
            "maxBytesPerTrigger": str(bytes_per_trigger),
            # The tables have positions of logs that are no longer named.
            "failOnDataLoss": "false",
            **dict(self._logs[0].storage),
        }
        if self._reached:
            options["startingPosition"] = json.dumps(format_positions(self._reached))
        return spark.readStream.format("headwater").options(**options).load()

    def _default_checkpoint(self) -> Path:
        if self._out.path is None:
            raise ValueError(f"name a directory for the checkpoint, which cannot be in {self._out}")
        return self._out.path / CHECKPOINTS / _QUERY

    def _wait(self, query: StreamingQuery) -> None:
        # Not `awaitTermination`: a signal handler runs only between calls of the JVM.
        while query.isActive:
            if self._stopping.is_set() and not query.status["isTriggerActive"]:
                query.stop()
                break
            if self._derive_every_s and self._idle_s() >= self._derive_every_s:
                self._derive()
            time.sleep(_POLL_S)
        if self._error is not None and not isinstance(self._error, _StopError):
            raise self._error
        problem = query.exception()
        if problem is not None and not self._stopping.is_set():
            raise problem
        self._derive()

    def _idle_s(self) -> float:
        """Return how long ago the last batch ended after which the derived tables may lack messages."""
        return 0.0 if self._last_s is None else time.monotonic() - self._last_s

    def _derive(self) -> None:
        """Bring the derived tables up to date. If another run writes to the tables, the next call tries again."""
        with self._turn:
            if self._last_s is not None:
                with suppress(BusyError):
                    grow(self._engine, (), self._out, **self._settings | {"derive_every_s": 0})
                    self._last_s = None

    def _batch(self, checkpoint: Path, frame: DataFrame, number: int) -> None:
        """Add a micro-batch to the tables. `frame` has its positions too, but reading them there takes a Spark job."""
        try:
            self._named.wait()
            found = _offset(checkpoint, number)
            # A log that is not in the previous offset begins with the next micro-batch.
            known = _offset(checkpoint, number - 1) if number else found
            upto = {log: found[log] for log in known if found[log] != self._reached.get(log)}
            if upto:
                self.add(upto, number)
        except BaseException as error:
            self._error = error
            raise

    def add(self, upto: Mapping[str, Position], number: int) -> None:
        """Add a batch up to these positions, by log id, to the tables."""
        began = time.monotonic()
        logs = {found: log for log in self._logs if (found := _id_of(log)) is not None}
        news = [log for found, log in logs.items() if found in upto]
        with self._turn:
            result = self._grow(news, upto=upto, batch_id=(self._name, number))
            self._last_s = time.monotonic()
        self._reached |= upto
        behind = sum(advance(list_log(*log), self._reached.get(found)).bytes for found, log in logs.items())
        self._show(Progress(number, result, time.monotonic() - began, behind))
        self._small += 1
        if self._compact_every and self._small >= self._compact_every:
            self._compact()

    def _compact(self) -> None:
        """Merge small files. If another run writes to the tables, the next micro-batch tries again."""
        try:
            found = compact(self._engine, self._out, work=self._settings.get("work"))
        except BusyError:
            return
        self._small = 0
        self._say(f"merged files: {sum(found.after.values())} are left of {sum(found.before.values())}")

    def _grow(self, logs: Sequence[Log], **batch: Any) -> Result:
        """Call `grow`, again and again while another run writes to the tables."""
        waiting = False
        while not self._stopping.is_set():
            try:
                return grow(self._engine, logs, self._out, **batch, **self._settings)
            except BusyError as error:
                if not waiting:
                    self._say(f"{error}: waiting")
                waiting = True
                self._stopping.wait(_BUSY_S)
        raise _StopError


def _offset(checkpoint: Path, number: int) -> dict[str, Position]:
    """Return the end of a micro-batch, which Spark stores before it adds the micro-batch: a version, its settings, and
    the source's offset, on a line each."""
    version, _, offset = (checkpoint / "offsets" / str(number)).read_text(encoding="utf-8").split("\n")
    if version != "v1":
        raise RuntimeError(f"{checkpoint} has offsets of the unknown version {version!r}")
    return parse_positions(json.loads(offset))


def _id_of(log: Log) -> str | None:
    """Return a log's id; None if there is no log yet."""
    try:
        return log_id(*log)
    except (FileNotFoundError, LogIdError):
        return None
