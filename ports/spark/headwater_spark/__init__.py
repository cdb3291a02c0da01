"""Capture logs in Spark: a data source, a column-wise MQTT decoder, and a pipeline to tables.

``spark.read.format("headwater").load(directory)`` needs nothing but this distribution installed;
``docs/spark.md`` has the tables, the options and the rules.
"""
