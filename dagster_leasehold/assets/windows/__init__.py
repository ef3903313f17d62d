"""Assets per hour of event time: when an hour is complete, and how it is made from the output.

Called by the watermark sensor and by declarations of hourly assets. It reads what `output` calls
committed, and knows neither the batch loop nor rewrites.
"""
