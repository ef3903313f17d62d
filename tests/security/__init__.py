"""Attacks and careless uses that must not succeed; docs/threat-model.md lists them."""
