"""Decoding of binary records into columns: Avro, Protobuf, JSON Schema, MessagePack and text.

`records` decodes a table of records: it groups them by schema, decodes each group, and joins the
columns. A decoder takes byte strings and a schema, and returns columns and a mask of bad records.
Decoders read nothing else: `schema_registry` fetches schemas. `consuming` calls `stream_decoding`.
"""
