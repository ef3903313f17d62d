"""Spark for runs: Java, the embedded Connect server, sessions, and the user's code on workers.

The other subpackages of `assets` use it, and the supervision keeps a server warm with it. It does
not depend on streams or groups.
"""
