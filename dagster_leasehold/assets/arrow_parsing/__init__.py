"""Parsing of whole columns of values in Arrow, with the results that Spark's functions have.

`field_types` reads a schema, `columns` parses a column piece by piece, `json_values` and
`csv_lines` are the two formats, and `spark_texts` is what Spark reads out of a single text. Each
format has a fast way, for pieces whose records are all as one would expect, and an exact one, which
takes a record at a time and follows Spark into every corner. Called by `parsing` alone.
"""
