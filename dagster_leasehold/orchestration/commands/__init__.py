"""The commands of `leasehold`. Only `command_line` imports these modules, one at a time.

Functions import heavy libraries themselves.
"""
