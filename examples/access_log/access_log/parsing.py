"""Lines of an access log as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LINE = r'^(\S+) \S+ \S+ \[([^\]]+)\] "(\S+) ([^ "?]+)[^"]*" (\d{3}) (\d+|-)'
TIME = "dd/MMM/yyyy:HH:mm:ss Z"


def parse(records: DataFrame) -> DataFrame:
    """The parts of each line; `event_time` becomes the time that the line names.

    A line without a time goes to quarantine.
    """
    from pyspark.sql import functions as F  # noqa: N812

    line = F.col("value").cast("string")

    def part(number: int) -> F.Column:
        return F.regexp_extract(line, LINE, number)

    at = F.try_to_timestamp(part(2), F.lit(TIME))
    return (
        records.withColumn("event_time", at)
        .withColumn("client", part(1))
        .withColumn("method", part(3))
        .withColumn("path", part(4))
        .withColumn("status", part(5).try_cast("int"))
        .withColumn("bytes", F.coalesce(part(6).try_cast("long"), F.lit(0)))
        .withColumn("quarantine_error", F.when(at.isNull(), F.lit("no line of an access log")))
    )


def traffic(requests: DataFrame) -> DataFrame:
    """Requests, errors and bytes of each path, over all shards."""
    from pyspark.sql import functions as F  # noqa: N812

    return requests.groupBy("path").agg(
        F.count("*").alias("requests"),
        F.count_if(F.col("status") >= 500).alias("errors"),
        F.sum("bytes").alias("bytes"),
    )
