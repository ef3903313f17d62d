"""Traffic per hour out of a sharded access log."""
