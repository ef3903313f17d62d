"""Hourly assets: when an hour of event time is complete, and how it is built from output.

The watermark sensor and the declarations of hourly assets call this package. It reads committed
output, and depends on neither the batch loop nor rewrites.
"""
