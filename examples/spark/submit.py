"""Grow the tables from capture logs with spark-submit:

    spark-submit --master spark://plant:7077 --conf spark.pyspark.python=/opt/headwater/bin/python \\
        examples/spark/submit.py /srv/tables /srv/gateway-1 s3://plant/gateway-2

Every executor needs headwater in the same place, and sees the tables' directory and the logs at these paths.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from headwater_spark import pipeline, report


def main(out: str, *logs: str) -> None:
    spark = SparkSession.builder.appName("headwater").getOrCreate()
    result = pipeline.run(spark, logs, Path(out), report=report.write)
    print(f"batch {result.batch}: {result.rows['messages']} new messages in {result.seconds:.1f} s")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
