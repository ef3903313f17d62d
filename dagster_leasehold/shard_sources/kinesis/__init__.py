"""Amazon Kinesis Data Streams as a source, through the official client (`boto3`).

The service numbers a shard's records with increasing, unpredictable sequence numbers, keeps them
for a retention period, and only returns them in pages. This has four consequences:

* No request returns the number of unread records or the last one. So `source` plans by reading,
  and keeps the records on the host (`planned_ranges`) for Spark's workers there.
* For a removed sequence number, the service silently returns the oldest record that is left. So
  cursors carry the second up to which they are complete (`cursors`), and `paging` proves by the
  service's own clock that no record was skipped.
* A shard allows five reads and two megabytes a second for all readers. `pace` shares them among the
  processes of one host.
* The Kinesis Producer Library packs many records into one. `user_records` unpacks them, and a
  cursor can lie between two of them.

`registry` and the commands for checkpoints of other consumers import this package.
"""

from dagster_leasehold.shard_sources.kinesis.reader import KinesisReader
from dagster_leasehold.shard_sources.kinesis.service import KinesisOptions
from dagster_leasehold.shard_sources.kinesis.source import KinesisStream

__all__ = ["KinesisOptions", "KinesisReader", "KinesisStream"]
