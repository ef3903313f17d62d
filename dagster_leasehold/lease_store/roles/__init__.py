"""Roles of the lease store: its operations, one class per subject.

A caller that needs one or two roles names them in its annotations (`store: Ledger`), so that a
reader sees what it can change and a test needs only these; a caller of most of them names
`lease_store.store.LeaseStore`, which is all of them together.

    Identity      which store this is
    Groups        consumer groups and their settings; pictures of a whole group
    Nodes         who answers to a node's name, and beats
    Shards        the shard list, claims, transfers, forced checkpoints: planners and operators
    Tenures       consuming under a tenure: the holder alone
    Ledger        reading batches, journal and gaps; changes nothing
    Rewrites      other output for committed batches: replay and compaction
    Publications  committed output on its way into the group's table
    Windows       the output of hours of event time
    Outbox        events that are still to be delivered
    Retention     deleting history that is old

Each operation is written once, on the rows of a group (`operations`), which `sql_store` and
`memory_store` carry.
"""
