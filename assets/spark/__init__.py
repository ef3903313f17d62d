"""Spark as a run meets it: Java, the embedded Connect server, sessions, and their failures.

Called by `consuming`, `output`, `rewriting` and `windows`, and by the supervision that keeps a
server warm. It knows no stream and no lease store.
"""
