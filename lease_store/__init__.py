"""Leases, groups, checkpoints and the ledger."""

from __future__ import annotations

from lease_store.open import open_store

__all__ = ["open_store"]
