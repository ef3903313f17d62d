"""The commands of `leasehold`, by subject: called by `command_line` alone, one module at a time.

Heavy libraries load inside the functions, and nothing imports this room.
"""
