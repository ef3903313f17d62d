"""The published table: an Iceberg table that follows the ledger, made with PyIceberg.

Called by the sensor `publish`, by `rewriting` (files that a table names stay) and by commands. A
worker of Spark uses `columns` alone. PyIceberg is imported where there is something to publish.
"""
