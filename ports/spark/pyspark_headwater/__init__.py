"""Lets Spark find ``format("headwater")`` by itself: it looks for packages of this name with a ``DefaultSource``."""

from headwater_spark.source import HeadwaterSource as DefaultSource

__all__ = ["DefaultSource"]
