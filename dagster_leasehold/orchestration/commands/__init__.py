"""The commands of `leasehold`. Only `command_line` imports these modules, one at a time.

Heavy libraries are imported in functions.
"""
