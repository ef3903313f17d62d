"""A protocol in which the table alone names published files: its rules, and their simulation.

The ledger names the files of a batch until a snapshot contains them. From then on, only the table
names them, so every change of a published file is a publication under the publish lock.
"""
