"""Turn capture logs into tables and a report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater_spark.engine import Engine, SparkEngine
from headwater_spark.growth import grow
from headwater_spark.result import Result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Result", "run", "run_on"]


def run(spark: SparkSession, capture: Path, out: Path, **settings: Any) -> Result:
    """Run the pipeline on Spark; see `run_on` for the settings.

    Every executor must see `capture` and `out` at the same paths.
    """
    return run_on(SparkEngine(spark), capture, out, **settings)


def run_on(
    engine: Engine,
    capture: Path,
    out: Path,
    *,
    report: Callable[[Result, Path], object] | None = None,
    **settings: Any,
) -> Result:
    """Add what is new in the log to the tables in `out`, and write what `report` writes.

    The settings are those of `growth.grow`, which raises the errors.
    """
    result = grow(engine, [capture], out, **settings)
    if report is not None:
        report(result, out)
    return result
