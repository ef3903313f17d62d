"""Leases on the shards of a log: which node can consume them, their checkpoints and their batches.

A deployment has one lease store. Nodes register in it, claim shards, open tenures on them, and
commit batches. All shared state is rows in this store, and every change is a conditional write
with a typed outcome (`lease_store.roles`).

What is authoritative
---------------------

Only the rows. A process can believe that it holds a shard, but only a write that names a valid
tenure makes output visible. No wall clock decides anything, neither a node's nor the database's.
Columns named `..._time` and `..._at` are for people.

A tenure
--------

One uninterrupted holding of one shard by one run. Its identity is the triple

    (consumer_owner, consumer_epoch, consumer_run)

as it was when the tenure was opened. Every opening increments the epoch, which never decreases, so
two tenures of a shard always differ. `open_tenure` returns the triple. `record_intents`, `commit`,
`save_checkpoint`, `announce` and `close_tenure` require it. No code reads it again just before a
write, because a stale holder could then write.

Two counters are called `lease_id`, after the LogHub client's tables:

- a node's, incremented by each heartbeat: the volume lease of all its shards;
- a shard's, incremented by each change of ownership, and compared by claims and transfers.

States of a shard
-----------------
                 1                 2
    (new) ------------> wait -------------+
      |                                   v          claimed 3
      +---------- 1 -----------------> not_alloc ---------------> already_alloc
                                        ^  ^  ^                     |   |   ^
                           reopened 7   |  |  +--- holder gone 4 ---+   |   |
                          over ---------+  |                            5   6
                           ^               +------ holder gone 9 ----+  |   |
                           |                                         |  v   |
                           +------- 8 (from already_alloc too) ---- transfer

In `transfer`, `lease_owner` is the next node and `consumer_owner` is the holder, which continues
until its next batch boundary. When a finished shard is reopened, its descendants return to `wait`
in an ordered group (edge 10). `lease_store.rules.states` lists the edges, and
`lease_store.rules.transitions` has their effects on rows and journal.

The trust window
----------------
Each observer decides by itself that a node is dead: the node's counter has not moved for T seconds
on the observer's monotonic clock since the observer first read the value. An eviction compares the
counter, so it fails after a heartbeat in between. A holder trusts its leases for 0.75 T from
*before* it sent its last successful heartbeat, and then stops:

    heartbeat sent     recorded                holder stops        eviction possible
    |------------------|-----------------------|-------------------|
    0                  (some latency)          0.75 T              T after the heartbeat was read

The observer read the heartbeat after it was sent, so the holder stops first. If a clock is wrong or
a process was frozen, the tenure's condition still refuses the late holder's writes.

Publishing
----------

The ledger names the committed files; people read a group's Iceberg table. One node at a time holds
the publish lock, which has its own epoch. Each shard has a cursor: the number of its first
unpublished batch. A replay, compaction, withdrawal or expiry of a published batch adds a
`TableChange` in the same transaction, and a later publication carries it out. Cursors, changes and
the pointer of the default catalog move in one transaction, which compares the lock's epoch, the
cursors and the version of each shard's ledger (`lease_store.roles.publications`).

What a lease does not do
------------------------
It does not stop a stale holder's work, only its commits. So files outside the database have names
that are unique to an attempt, and count only after their commit here.

When something fails
--------------------
    event                                 outcome
    ------------------------------------  ----------------------------------------------------
    a write loses a race                  `Stale`, `NotHeld`, `NameTaken`...: an outcome
    the tenure is over                    `LeaseLost`: stop, discard the attempt
    deadlock, lock wait, write conflict   the whole transaction again, a few times, then
                                          `StoreUnavailable`: nothing was changed
    the database does not answer          `StoreUnavailable` within ten seconds
    the reply to a COMMIT is lost         the transaction's mark is read: its outcome, or
                                          `OutcomeUnknown` if the read fails too
    the server was demoted to a replica   `StoreReadOnly`; the connection is discarded
    the node is silent for T              evicted: its shards are unassigned, the next tenure
                                          resumes at the checkpoint, repeats the intended range
    the holder dies during a transfer     the shard is unassigned (edge 9)
    the next node dies during a transfer  back to the holder (edge 6), which continues
    the deadline of a transfer passes     the next node takes over, the holder is fenced
    the database loses its last commits   epochs can repeat: see `docs/` before restoring one

What is in the package
----------------------
    roles             the operations of a store, one class per subject
    store             `LeaseStore`, all roles together, and combinations of them
    *_rows, outcomes  the frozen values that operations take and return
    rules             pure decisions: a snapshot in, actions out
    stored_rows       the kinds of rows, and the conditions that select them
    sql_store         the rows in SQL, on `transactions`, `tables` and `migrations`
    memory_store      the rows in memory, for tests and simulations
    rebalancing       planning rounds; `member`: staying in a group
    client            consuming without Dagster

Start with `open_store`. Other packages can use everything except the tables and the internals of
`sql_store` and `memory_store`. This package imports neither the project's other packages nor
Dagster or Spark. Database drivers and Alembic are imported on use.
"""

from __future__ import annotations

from dagster_leasehold.lease_store.errors import LeaseholdError, LeaseLost, StoreError, UserMistake
from dagster_leasehold.lease_store.identifiers import (
    GroupKey,
    GroupName,
    NodeName,
    ShardId,
    StreamName,
)
from dagster_leasehold.lease_store.open import open_store
from dagster_leasehold.lease_store.store import LeaseStore

__all__ = [
    "GroupKey",
    "GroupName",
    "LeaseLost",
    "LeaseStore",
    "LeaseholdError",
    "NodeName",
    "ShardId",
    "StoreError",
    "StreamName",
    "UserMistake",
    "open_store",
]
