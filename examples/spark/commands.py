"""Send a command to a board when one of its readings is too high:

    spark-submit examples/spark/commands.py hub.example:7760 /var/lib/headwater/capture /var/lib/headwater/commands

Boards publish readings such as {"celsius": 71.5} to the FMQ topic plant/BOARD; a board consumes plant/BOARD/commands.
The second argument is the directory of the capture log, the third one that of the query's checkpoint.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, concat, get_json_object, lit

LIMIT = 70


def main(hub: str, capture: str, checkpoint: str) -> None:
    spark = SparkSession.builder.appName("commands").getOrCreate()
    address = {"host": f"fmq://{hub}"}
    messages = (
        spark.readStream.format("headwater.hub")
        .options(**address, topics="plant/+", group="commands", capture=capture, view="decoded")
        .load()
    )
    # The log has a message twice if its acknowledgement was lost.
    readings = messages.withWatermark("time", "10 minutes").dropDuplicatesWithinWatermark(["message_id"])
    celsius = get_json_object(col("payload").cast("string"), "$.celsius").cast("double")
    commands = readings.where(celsius > LIMIT).select(
        concat("topic", lit("/commands")).alias("topic"), lit("cool").alias("payload"), "message_id"
    )
    query = (
        commands.writeStream.format("headwater.hub")
        .options(**address, key="message_id", checkpointLocation=checkpoint)
        .trigger(processingTime="1 second")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
