"""Limits of what is parsed, the same for Arrow tables and DataFrames."""

DECIMAL_LETTERS_MAX = 1_000
"""The most letters of a decimal."""
SEPARATORS_MAX = 20_000
"""The most separators of a line of CSV, those in quotes included."""
