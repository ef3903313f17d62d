"""Leasehold: Dagster orchestration for sharded logs."""
