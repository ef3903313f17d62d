"""The streams of the deployment. To be changed: yours."""

from dagster_leasehold import ShardStream, named_source

demo = ShardStream("demo", named_source("local_log", "demo"))
