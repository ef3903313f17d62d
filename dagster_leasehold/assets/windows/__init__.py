"""Assets per hour of event time: when an hour is complete, and how it is made from output.

Called by the watermark sensor and by declarations of hourly assets. It reads committed output, and
knows neither the batch loop nor rewrites.
"""
