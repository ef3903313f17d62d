"""What an attacker, or a careless user, must not be able to do; docs/threat-model.md lists it."""
