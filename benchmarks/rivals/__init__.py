"""What Leasehold is compared with; nothing outside the benchmarks uses it."""
