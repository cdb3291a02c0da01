"""Let Spark find `format("headwater")`: Spark looks for a `DefaultSource` in packages named `pyspark_*`."""

from headwater_spark.source import HeadwaterSource as DefaultSource

__all__ = ["DefaultSource"]
