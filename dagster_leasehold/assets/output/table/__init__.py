"""The published table: an Iceberg table that follows the ledger, written with PyIceberg.

Called by runs and the sensor, which publish, by `rewriting`, which keeps files that a table names,
and by commands. Spark's workers use only `columns`. PyIceberg is imported only where it is needed.
"""
