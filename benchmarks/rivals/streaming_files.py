"""A query of Structured Streaming with `foreachBatch`, in the two ways of Spark's documentation.

`python -m benchmarks.rivals.streaming_files INPUT FOLDER WORKER INTERVAL_S WAY` runs until it is
killed, or until another query has gone on with its checkpoint.

* `append`: each batch is appended to one folder: at least once;
* `batch-id`: each batch overwrites a folder that has its number: once, as long as one query writes.

Spark's source of Kafka is a jar of its own, so the records come from files of JSON lines.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Run the query."""
    from pyspark.sql import SparkSession

    from dagster_leasehold.assets.spark.spark_session import server_conf, spark_environment

    records, output, worker, interval_s, way = sys.argv[1:]
    folder = Path(output).parent
    scratch = folder / f"spark-{worker}"
    scratch.mkdir(exist_ok=True)

    def append(rows: Any, _: int) -> None:
        rows.write.mode("append").parquet(output)

    def overwrite(rows: Any, batch_id: int) -> None:
        rows.write.mode("overwrite").parquet(f"{output}/batch={batch_id}")

    os.environ.update(spark_environment(scratch, os.environ))
    builder: Any = SparkSession.builder
    for name, value in server_conf(scratch).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    query = (
        session.readStream.schema("value string")
        .json(records)
        .writeStream.foreachBatch({"append": append, "batch-id": overwrite}[way])
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime=f"{interval_s} seconds")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
