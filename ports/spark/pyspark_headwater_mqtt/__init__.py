"""Let Spark find `format("headwater.mqtt")`: Spark looks for a `DefaultSource` in packages named `pyspark_*`."""

from headwater_spark.mqtt_sink import MqttSink as DefaultSource

__all__ = ["DefaultSource"]
