"""Let Spark find `format("headwater.table")`: Spark looks for a `DefaultSource` in packages named `pyspark_*`."""

from headwater_spark.table_source import TableSource as DefaultSource

__all__ = ["DefaultSource"]
