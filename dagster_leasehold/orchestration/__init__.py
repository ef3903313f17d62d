"""The top layer: settings, the definitions that Dagster loads, and the command line.

Dagster loads `definitions`, users' definitions call `build` and `settings`, and the shell runs
`command_line`. `commands` imports `supervision`, and both import the modules of this folder.
"""
