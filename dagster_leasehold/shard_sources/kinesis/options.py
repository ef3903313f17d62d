"""The options of a Kinesis stream."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

SHARD_CALLS_PER_S = 5.0
SHARD_BYTES_PER_S = 2 * 1024 * 1024
"""The documented limit of GetRecords for all readers of a shard."""


class KinesisOptions(BaseModel):
    """Options of a Kinesis stream; boto3 finds the credentials.

    Attributes:
        stream: its name, or its ARN for a stream of another account; by default the stream's
            name in Leasehold.
        region: the region; by default boto3's.
        profile: a profile of boto3's configuration files.
        endpoint_url: an interface endpoint, or a local server; by default the region's.
        shard_calls_per_s: the most reads of one shard by this host in a second; lower it if other
            applications read the stream.
        shard_bytes_per_s: the most bytes of one shard for this host in a second.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    stream: str | None = Field(default=None, min_length=1, max_length=512)
    region: str | None = None
    profile: str | None = None
    endpoint_url: str | None = Field(default=None, pattern=r"^https?://[^\s/@]+(/\S*)?$")
    shard_calls_per_s: float = Field(default=SHARD_CALLS_PER_S, gt=0)
    shard_bytes_per_s: int = Field(default=SHARD_BYTES_PER_S, gt=0)
