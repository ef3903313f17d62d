"""Pure rules: a snapshot goes in, actions or a verdict come out.

No clock, no I/O and no randomness but what is given. The stores carry out what the rules say, so
that all of them behave alike; planners, sensors and `leasehold simulate` ask the same rules.
Nothing in here imports a store.
"""
