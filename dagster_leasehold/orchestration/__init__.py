"""The top room: settings, the definitions that Dagster loads, and the command line.

Called by Dagster (`definitions`), by users' own definitions (`build`, `settings`), and by the shell
(`command_line`). Imports go down within it, too: from `commands` to `supervision`, and
to the modules of this folder.
"""
