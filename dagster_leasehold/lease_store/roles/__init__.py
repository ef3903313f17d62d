"""Roles of the lease store: its operations, one class per subject.

A caller that needs one role has it in its annotations (`store: Ledger`), which show what the caller
can change. Other callers use `lease_store.store.LeaseStore`.

    Identity      the identity of the store and of logs
    Groups        consumer groups, their nodes, and snapshots of a whole group
    Shards        the shard list, claims, transfers, forced checkpoints: for planners and operators
    Tenures       consumption under a tenure: for the holder
    Ledger        reading batches, journal and gaps
    Rewrites      new output for committed batches: replay and compaction
    Publications  publishing committed output to the group's table
    Windows       the output of event-time windows
    Outbox        undelivered events
    Retention     deleting old history

Each operation is written once, on the rows of a group (`operations`), which `sql_store` and
`memory_store` provide.
"""
