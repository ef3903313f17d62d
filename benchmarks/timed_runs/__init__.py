"""Runs that note how long their parts take: the streams of the settings, for `run_start`."""
