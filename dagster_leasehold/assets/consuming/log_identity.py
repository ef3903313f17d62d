"""The log that a group's cursors belong to: a log of the same name that is another one is refused.

A topic can be deleted and recreated with as many records as were consumed, or more. Offsets then
lead into it, and the records before them would be skipped without a word:

1. A run reads a batch of the topic, from the group's checkpoint on.
2. Before that, or meanwhile, the topic was deleted and recreated.
3. The run looks at the topic's identity before it commits. It is not the one that the group noted
   when it first consumed, and nothing is committed.

Identities never come again, so that one look before each commit is enough.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dagster_leasehold.lease_store.errors import LogRenewed
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.roles.identity import Identity
from dagster_leasehold.shard_sources.source import ShardSource, identity_of_log


@dataclass(slots=True)
class LogOfGroup:
    """The check of one group's log, for one run."""

    store: Identity
    key: GroupKey
    source: ShardSource
    _own: str | None = field(default=None, init=False)

    def check(self) -> None:
        """Look whether the log is the one that the group's cursors belong to.

        Raises:
            LogRenewed: it is another one.
            SourceError: the source does not answer.
            StoreError: the lease store does not answer.
        """
        identity = identity_of_log(self.source)
        if identity is None:
            return
        if self._own is None:
            self._own = self.store.log_of_group(self.key, identity)
        if self._own != identity:
            raise LogRenewed(
                f"The log of stream {self.key.stream} was deleted and recreated under its old name "
                f"(its identity is {identity}, and cursors of {self.key} belong to {self._own}): "
                "consume it as a stream or group of another name. If stored cursors count in it, "
                f"run `leasehold group accept-log {self.key.stream}`."
            )
