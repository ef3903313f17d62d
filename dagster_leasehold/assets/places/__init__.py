"""Places of output: folders on a disk, or prefixes in an object store, behind one interface.

Called by everything that writes, reads, replaces or removes output, and by the settings, which
parse the address. It knows files, and neither streams nor Spark.
"""
