"""Hourly assets: decide when an hour of event time is complete, and build it from output.

The watermark sensor and the declarations of hourly assets call this package. It reads committed
output, and depends on neither the batch loop nor rewrites.
"""
