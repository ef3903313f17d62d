"""Committed output: how its files are written, and how they are read.

Called by `consuming`, `rewriting` and `windows`, which write, and by the IO manager and commands,
which read. It does not know the batch loop. All of it raises `StoreError` if the lease store does
not answer; a function that raises `OSError` says so only if that needs a word.
"""
