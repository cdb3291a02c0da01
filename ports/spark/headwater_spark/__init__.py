"""Capture logs in Spark: the data source ``headwater``, a column-wise MQTT decoder, and the pipeline from
raw frames to tables.

``spark.read.format("headwater").load(directory)`` needs nothing but this distribution installed;
``docs/spark.md`` has the tables, the options and the rules."""
