"""The published table: an Iceberg table that follows the ledger, written with PyIceberg.

Runs and the sensor publish with it, `rewriting` keeps the files that a table names, and commands
call it. Spark's workers use only `columns` and `partition_values`. PyIceberg is imported only where
it is needed. Functions raise `TableUnavailable` if the table or its catalog cannot be reached.
"""
