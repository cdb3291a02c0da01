"""A streaming query in a process of its own, which a test kills: frames of a log to Parquet by Spark's file sink.

``python -m tests.spark.stream_process LOG OUT CHECKPOINT RESULT``: runs until a line comes on stdin, reads the rest,
and writes the numbers of all frames in OUT to RESULT.
"""

import json
import sys

from headwater_spark.session import local_session


def main(log: str, out: str, checkpoint: str, result: str) -> None:
    spark = local_session("stream", "local[2,4]", {"spark.sql.shuffle.partitions": "2"})
    frames = spark.readStream.format("headwater").option("maxRowsPerTrigger", 40).load(log)
    payload = "regexp_extract(decode(frame, 'utf-8'), '\"seq\": ([0-9]+)', 1)"
    numbers = frames.selectExpr(f"cast({payload} as int) as number")
    query = numbers.writeStream.format("parquet").option("checkpointLocation", checkpoint).start(out)
    sys.stdin.readline()
    query.processAllAvailable()
    query.stop()
    found = spark.read.parquet(out).collect()
    with open(result, "w") as file:  # noqa: PTH123
        json.dump([row.number for row in found], file)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
