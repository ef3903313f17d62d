"""Pure rules: a snapshot goes in, actions or a verdict come out.

No clock, no I/O and no randomness but what is given; `verification` alone reads a store, to prove
its history by the rules beside it. The stores carry out the rules, so that all of them
behave alike. Any room above can ask a rule: planners, sensors, runs, plain clients, the simulation.

| subject | modules |
|---|---|
| a shard's row | `states`, `transitions`, `lineage`, `reopening`, `withdrawal`, `starting_point` |
| nodes | `liveness`, `registration`, `node_settings` |
| plans | `planning`, `assignment_modes`, `assignment_plan` |
| the ledger | `ledger`, `gap_policy`, `isolation`, `deletable_history` |
| proofs | `verification`, `history_proof` |
| one consumer | `consumer_lifecycle`, `failing_steps`, `refusals` |
"""
