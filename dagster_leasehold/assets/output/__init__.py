"""Committed output: how its files are written, and how everybody reads them.

Called by `consuming`, `rewriting` and `windows`, which write, and by the IO manager and commands,
which read. A reader sees the files that the ledger names, and no others. It knows no batch loop.
"""
