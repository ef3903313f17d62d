"""Amazon Kinesis Data Streams as a source, through the official client (`boto3`).

A shard's records are numbered by the service with rising, unpredictable sequence numbers, kept for
a retention period, and can only be paged through. Four things follow, each with the module that
deals with it:

* No call tells how many records follow, or where the last one is: `source` plans by reading, and
  the records that it has read stay on the host (`planned_ranges`), so that Spark's workers there
  need not read them again out of the two megabytes that a shard gives in a second.
* A sequence number that retention has removed is answered from the oldest record that is left,
  without a word. Cursors therefore carry the second when they were sure (`cursors`), and
  `paging` proves from it, by the service's own clock, that nothing was jumped over.
* A shard answers five reads and two megabytes a second to all readers: `pace` shares them among the
  processes of one host.
* The Kinesis Producer Library packs many records into one: `aggregation` unpacks them, and a
  cursor can stand between two of them.
"""

from dagster_leasehold.shard_sources.kinesis.options import KinesisOptions
from dagster_leasehold.shard_sources.kinesis.reader import KinesisReader
from dagster_leasehold.shard_sources.kinesis.source import KinesisStream

__all__ = ["KinesisOptions", "KinesisReader", "KinesisStream"]
