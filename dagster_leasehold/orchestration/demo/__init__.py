"""The demonstration: one whole path, from a log in a folder to proven output, on one machine.

Called by the commands `demo`, `ui` and `up`, which share the lock of a home.
"""
