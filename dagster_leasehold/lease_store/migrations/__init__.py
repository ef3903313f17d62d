"""The schema's history, one Alembic revision per file in `versions`; only `schema` runs them."""
