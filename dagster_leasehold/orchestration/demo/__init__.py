"""The demonstration: one whole path, from a log in a folder to proven output, on one machine."""
