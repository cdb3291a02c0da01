"""The format `headwater.mqtt`: publish the rows of a query to an MQTT broker."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader
from pyspark.sql.types import StructType

from headwater_spark.options import OptionError
from headwater_spark.sink import BROKER_SINK, StreamSink, TableSink, sink_of

_NO_READ = (
    'format("headwater.mqtt") publishes only: record the topics with headwater gateway, and read its log with '
    'format("headwater")'
)


class MqttSink(DataSource):
    """The format `headwater.mqtt`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "headwater.mqtt"

    def schema(self) -> str:
        """Refuse: there is nothing to read."""
        raise OptionError(_NO_READ)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Refuse: there is nothing to read."""
        raise OptionError(_NO_READ)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return a writer that publishes the rows of a DataFrame."""
        return TableSink(sink_of(BROKER_SINK, self.options, schema, overwrite, is_stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: N802
        """Return a writer that publishes the rows of each micro-batch."""
        return StreamSink(sink_of(BROKER_SINK, self.options, schema, overwrite, is_stream=True))
