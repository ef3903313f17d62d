"""Parsing of whole columns: JSON with msgspec, and CSV with the readers of Arrow and Python.

`field_types` parses a schema, and `columns` parses a column piece by piece. `json_values` and
`csv_lines` are the two formats. `texts` converts text to values: the fields of CSV, and the dates
and times of JSON. Only `parsing` calls this package.
"""
