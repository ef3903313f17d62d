"""Attacks and careless uses that must not succeed; contributing/threat-model.md lists them."""
