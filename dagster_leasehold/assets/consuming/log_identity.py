"""Detects a log that was deleted and recreated since its group stored cursors.

A topic can be deleted and recreated under its name. Once the new topic has enough records, the
group's offsets would point into it, and the records before them would be skipped silently. So the
batch loop checks the topic's identity:

1. A run reads a batch of the topic, from the group's checkpoint on.
2. Before or during the read, the topic is deleted and recreated.
3. Before its commit, the run compares the topic's identity with the identity that the group stored
   when it first consumed. They differ, so the run commits nothing.

Identities are never reused, so one check before each commit is enough.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dagster_leasehold.lease_store.errors import LogRenewed
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.roles.identity import Identity
from dagster_leasehold.shard_sources.source import ShardSource, identity_of_log


@dataclass(slots=True)
class LogOfGroup:
    """Checks the identity of one group's log, for one run."""

    store: Identity
    key: GroupKey
    source: ShardSource
    _expected: str | None = field(default=None, init=False)

    def check(self) -> None:
        """Compare the log's identity with the group's stored identity.

        Raises:
            LogRenewed: the log was deleted and recreated.
        """
        identity = identity_of_log(self.source)
        if identity is None:
            return
        if self._expected is None:
            self._expected = self.store.log_of_group(self.key, identity)
        if self._expected != identity:
            raise LogRenewed(
                f"The log of stream {self.key.stream} was deleted and recreated under its old name "
                f"(its identity is {identity}, and cursors of {self.key} belong to "
                f"{self._expected}): consume it as a stream or group with another name. If stored "
                f"cursors are valid in it, run `leasehold group accept-log {self.key.stream}`."
            )
