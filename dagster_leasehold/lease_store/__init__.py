"""Leases on the shards of a log: who may consume what, up to where, and what was committed.

A deployment has one lease store. Nodes answer to names in it, claim shards, open tenures on them,
and commit batches; everything that any process must agree upon is a row here, and every change
is one conditional write with a typed outcome (`lease_store.roles`).

Who is authoritative
--------------------
The rows are. A process can believe that it holds a shard; only a write that names its tenure, and
finds it current, makes anything visible. No clock is asked: not the nodes', not the database's.
Columns named `..._time` and `..._at` are for people.

A tenure
--------
One uninterrupted holding of one shard by one run. Its identity is the triple

    (consumer_owner, consumer_epoch, consumer_run)

as it was when the tenure was opened. The epoch rises by one at every opening and never goes down,
so two tenures of a shard are never equal. `open_tenure` hands the triple out; `record_intents`,
`commit`, `save_checkpoint`, `announce` and `close_tenure` must give it back. Nothing reads it again
just before a write: that would turn a stale holder into a current one.

Two counters that both are called `lease_id`, after the LogHub client's tables:

- a node's, raised by each of its beats: the volume lease of all it holds, however many shards;
- a shard's, raised by each change of its ownership: the test-and-set of claims and transfers.

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

In `transfer`, `lease_owner` is already the next node while `consumer_owner` still is the holder,
who continues until its next batch boundary. When a finished shard is reopened, the shards that come
from it go back to `wait` in an ordered group (edge 10). `lease_store.rules.states` has the table of
edges, `lease_store.rules.transitions` what each does to a row and to the journal.

The trust window
----------------
A node is judged dead by each observer for itself: its counter has not moved for T seconds on the
observer's monotonic clock, counted from when the observer first saw that value. Evicting is a
compare-and-set on the counter, so a beat that lands in between wins. A holder in turn trusts
itself for three quarters of T from *before* it sent its last successful beat, and then stops:

    sent beat          counted                 stops here          can be evicted from here
    |------------------|-----------------------|-------------------|
    0                  (some latency)          0.75 T              T after the beat was seen

Since the observer saw the beat after it was sent, the holder stops first. Should a clock run wild
or a process be frozen, the tenure's condition still refuses the late holder's writes.

Publishing
----------
The ledger names the committed files; people read a group's Iceberg table. One node at a time
has the publish lock, with an epoch of its own, and each shard a cursor: the number of its first
batch that is not in the table. All that happens to a batch before the cursor (a replay, compaction,
withdrawal or expiry) leaves a `TableChange` in its own transaction, which a later publication
carries out. Cursors, changes and the pointer of the default catalog move in one transaction, which
compares the lock's epoch, the cursors and the version of each shard's ledger
(`lease_store.roles.publications`).

What a lease does not do
------------------------
It does not stop a stale holder from working, only from publishing. What is written outside the
database must therefore be named after the tenure's attempt, and count only once committed here.

When something fails
--------------------
    what happens                          what follows
    ------------------------------------  ----------------------------------------------------
    a write loses a race                  `Stale`, `NotHeld`, `NameTaken`...: an outcome
    the tenure is over                    `LeaseLost`: stop, discard the attempt
    deadlock, lock wait, write conflict   the whole transaction again, a few times, then
                                          `StoreUnavailable`: nothing was changed
    the database does not answer          `StoreUnavailable` within ten seconds
    the reply to a COMMIT is lost         looked up by the transaction's own mark; the verb's
                                          outcome, or `OutcomeUnknown` where that fails too
    the server was demoted to a replica   `StoreReadOnly`; the connection is thrown away
    the node is silent for T              evicted: its shards are free, the next tenure resumes
                                          from the checkpoint and repeats the intended range
    the holder dies during a transfer     the shard is free (edge 9)
    the next node dies during a transfer  back to the holder (edge 6), nothing is read again
    the deadline of a transfer passes     the next node takes over, the holder is fenced
    the database loses its last commits   epochs can repeat: see `docs/` before restoring one

What is in the room
-------------------
    roles             the operations of a store, one class per subject: callers name these
    store             `LeaseStore`, all roles together, and pairs of them
    *_rows, outcomes  the frozen values that verbs take and return
    rules             pure decisions: a snapshot in, actions out
    stored_rows       the kinds of rows that operations read and write, and their conditions
    sql_store         the rows in SQL, on `transactions`, `engine`, `tables` and `migrations`
    memory_store      the rows in memory, for tests and simulations
    rebalancing       planning rounds; `member`: staying in a group
    client            consuming without Dagster

Every other room can call the roles, the rows, the rules and what stands on them; what is inside
`sql_store` and `memory_store`, and the tables, is this room's own. It imports no other room, and
neither Dagster nor Spark. Start with `open_store`; neither a database driver nor Alembic is
imported before it is needed.
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
