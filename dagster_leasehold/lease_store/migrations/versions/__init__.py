"""Revisions, oldest first by their numbers; Alembic loads them."""
