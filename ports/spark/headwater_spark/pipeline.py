"""Turn capture logs into tables and a report."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headwater_host.capture.filesystem import Location
from headwater_host.progress import Display
from headwater_spark.engine import Engine, SparkEngine
from headwater_spark.growth import grow
from headwater_spark.place import Place
from headwater_spark.plan import Log
from headwater_spark.result import Result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Result", "run", "run_on"]


def run(
    spark: SparkSession,
    capture: Log | Location | Sequence[Log | Location],
    out: Location | Place,
    *,
    display: Display | None = None,
    **settings: Any,
) -> Result:
    """Run the pipeline on Spark; see `run_on` for the arguments. `display` shows steps of more than two seconds.

    Every executor must see `capture` and `out` at the same paths, unless they are in an object store.
    """
    return run_on(SparkEngine(spark, display), capture, out, **settings)


def run_on(
    engine: Engine,
    capture: Log | Location | Sequence[Log | Location],
    out: Location | Place,
    *,
    report: Callable[[Result, Place], object] | None = None,
    **settings: Any,
) -> Result:
    """Add what is new in the log to the tables in `out`, and write what `report` writes.

    `capture` is one log or several: paths, URIs, or `Log` with storage options. `out` is a path, a URI, or
    `Place.at(URI, storage options)`.

    The settings are those of `growth.grow`, which raises the errors.
    """
    logs = [capture] if isinstance(capture, (Log, str, os.PathLike)) else capture
    place = Place.at(out)
    result = grow(engine, logs, place, **settings)
    if report is not None:
        report(result, place)
    return result
