"""Let Spark find `format("headwater.hub")`: Spark looks for a `DefaultSource` in packages named `pyspark_*`."""

from headwater_spark.hub_source import HubSource as DefaultSource

__all__ = ["DefaultSource"]
