"""Places of output: folders on a disk, or prefixes in an object store, behind one interface.

All code that writes, reads, replaces or removes output uses it, and the settings parse addresses
with it. It depends on neither streams nor Spark.
"""
