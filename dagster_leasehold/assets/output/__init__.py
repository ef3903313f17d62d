"""Committed output: how its files are written, and how they are read.

`consuming`, `rewriting` and `windows` write with it; the IO manager and commands read with it. They
raise `StoreError` if the lease store does not answer, and `OSError` if the disk or store fails.
"""
