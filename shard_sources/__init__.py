"""Sources of sharded logs: the shard list, and exact reads of their records."""
