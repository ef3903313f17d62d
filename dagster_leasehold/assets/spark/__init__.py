"""Spark for runs: Java, the embedded Connect server, sessions, and the user's code on workers.

The other subpackages of `assets` call it, and the supervision that keeps a server warm. It does not
depend on streams or groups.
"""
