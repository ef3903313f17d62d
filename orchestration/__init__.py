"""What a deployment runs: settings, what Dagster loads, and the command line."""
