"""Parsing of whole columns of values: of JSON with msgspec, of CSV with Python's reader.

`field_types` reads a schema, `columns` takes a column piece by piece, `json_values` and `csv_lines`
are the two formats, and `texts` reads values written as text: the fields of CSV, and the dates
and times of JSON. Called by `parsing` alone.
"""
