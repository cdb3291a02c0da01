"""Run `headwater pipeline stream`: keep tables up to date until a signal."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headwater_host.cli.options import directory, seconds, whole
from headwater_host.exits import OK
from headwater_spark.arguments import size
from headwater_spark.launch import check_writable, say, started
from headwater_spark.place import Place
from headwater_spark.sizes import COMPACT_EVERY, DERIVE_S, TRIGGER_BYTES, TRIGGER_S

if TYPE_CHECKING:
    from headwater_spark.plan import Log
    from headwater_spark.stream import Progress, Stream

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


#: Name, metavar, type, default, help: as in `commands`.
OPTIONS: tuple[tuple[str, str | None, Any, Any, str], ...] = (
    (
        *("--checkpoint", "DIR", directory, ()),
        "Directory for the positions of Spark's query; default: in the directory for the tables",
    ),
    ("--trigger", "SECONDS", seconds, TRIGGER_S, "Time between two batches; default: %(default)s"),
    ("--available-now", None, bool, False, "End when the tables have what the log has now"),
    (
        *("--bytes-per-trigger", "SIZE", size("1024g"), TRIGGER_BYTES),
        "Maximum bytes of all logs per batch; default: 256m",
    ),
    (
        *("--compact-every", "N", whole(0, 1_000_000), COMPACT_EVERY),
        "Merge small files after N batches; 0: never; default: %(default)s",
    ),
)


def run(args: argparse.Namespace, logs: Sequence[Log], out: Place, settings: dict[str, Any]) -> int:
    """Run the query for the tables in `out` until SIGTERM or SIGINT, which let it end after its batch.

    `settings` are those of `growth.grow`.
    """
    if args.checkpoint:
        check_writable(Place.at(args.checkpoint), "--checkpoint")
    with started(args) as spark:
        from headwater_host.progress import Display
        from headwater_spark.engine import SparkEngine
        from headwater_spark.stream import Stream

        stream = Stream(
            SparkEngine(spark, Display()),
            logs,
            out,
            show=lambda progress: say(line(progress)),
            say=say,
            compact_every=args.compact_every,
            # Each update reads the stored messages of the current hour.
            derive_every_s=0 if args.available_now else DERIVE_S,
            **settings,
        )
        with _ending(stream):
            stream.run(
                spark,
                checkpoint=args.checkpoint or None,
                trigger=None if args.available_now else args.trigger,
                bytes_per_trigger=args.bytes_per_trigger,
            )
    return OK


@contextmanager
def _ending(stream: Stream) -> Iterator[None]:
    """Let the first signal end the stream after its batch, and the second one the process."""

    def end(number: int, frame: object) -> None:
        say("ending after this batch")
        stream.stop()
        for one in _SIGNALS:
            signal.signal(one, before[one])

    before = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def line(progress: Progress) -> str:
    """Describe a batch: its rows, bytes and rate, and what the log has after it."""
    result, seconds_ = progress.result, max(progress.seconds, 1e-3)
    plan = result.plan
    text = (
        f"batch {result.batch}: {plan.records} records, {plan.bytes / 1e6:.1f} MB in {seconds_:.1f} s, "
        f"{plan.records / seconds_:,.0f}/s"
    )
    left = f", {progress.behind / 1e6:.1f} MB left" if progress.behind else ""
    wrong = "".join(f"\n{problem}" for problem in result.problems)
    return text + left + wrong
