"""Read capture logs in Spark: a data source, column-wise decoders, and a pipeline to tables.

`spark.read.format("headwater").load(directory)` and `spark.readStream` work when this distribution is installed.
`docs/spark.md` describes the tables, the options and the rules of duplicates.
"""
