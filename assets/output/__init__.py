"""Committed output: how its files are written, and how everybody reads them.

Called by `consuming` and `rewriting`, which write, and by the IO manager, windows and commands,
which read. A reader sees what the ledger names, and nothing else.
"""
