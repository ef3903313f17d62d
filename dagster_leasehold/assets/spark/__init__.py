"""Spark as a run meets it: Java, the embedded Connect server, sessions, and the user's code on it.

Called by the other folders of `assets`, and by the supervision that keeps a server warm. It knows
no stream and no lease store.
"""
