"""Other systems that Leasehold is compared with; nothing outside the benchmarks uses them."""
