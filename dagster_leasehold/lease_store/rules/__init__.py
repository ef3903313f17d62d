"""Pure rules: a snapshot goes in, actions or a verdict come out.

They use no clock, no I/O and no randomness of their own; only `verification` reads a store. All
packages above can call them: planners, sensors, runs, clients and simulations.

| subject | modules |
|---|---|
| a shard's row | `states`, `transitions`, `lineage`, `reopening`, `withdrawal`, `starting_point` |
| nodes | `liveness`, `node_settings` |
| plans | `planning`, `assignment_plan` |
| the ledger | `ledger`, `gap_policy`, `isolation`, `deletable_history` |
| the table | `publishing`, `rolling_forward`, `event_frontier` |
| proofs | `verification`, `history_proof` |
| one consumer | `consumer_lifecycle`, `failing_steps`, `obstacles`, `progress`, `refusals` |
"""
